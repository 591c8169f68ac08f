package account

import (
	"errors"
	"fmt"
	"github.com/scopefs/scopefs/scope/agents"
	"io/fs"
	"os"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// OpenHome opens the directory of an agent in {state}/home, and makes it if it is
// missing. Only the daemon's user passes through {state}/home. What is in the agent's
// directory is the agent's: the daemon opens nothing there.
func OpenHome(p config.Paths, id scope.ID, owner User) (*os.File, error) {
	if err := os.MkdirAll(p.Homes(), 0o700); err != nil {
		return nil, fmt.Errorf("home: %w", err)
	}
	if err := os.Chmod(p.Homes(), 0o700); err != nil {
		return nil, fmt.Errorf("home: %w", err)
	}
	if err := os.Mkdir(p.Home(id), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("home: %w", err)
	}
	root, err := beneath.OpenRoot(p.Homes(), string(id))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, err := root.Object("")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dir.FD()), p.Home(id))
	st, err := dir.Stat()
	if err == nil && st.Uid != owner.UID && int(st.Uid) == os.Geteuid() && isEmpty(p.Home(id)) {
		// New, perhaps made by a daemon that was killed before this.
		if err = dir.Chown(int(owner.UID), int(owner.GID)); err == nil {
			st, err = dir.Stat()
		}
	}
	if err == nil && st.Uid != owner.UID {
		err = fmt.Errorf(
			"home %q is of user %d, and the agent runs as user %d: move it away, or change the owner of what is in it",
			p.Home(id), st.Uid, owner.UID)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func isEmpty(dir string) bool {
	list, err := os.ReadDir(dir)
	return err == nil && len(list) == 0
}

// CacheEnv has the variables that lead programs to their caches, and the directories
// below HOME.
var CacheEnv = map[agents.Kept]map[string]string{
	agents.KeptNPM:   {"npm_config_cache": ".npm"},
	agents.KeptPIP:   {"PIP_CACHE_DIR": ".cache/pip"},
	agents.KeptGo:    {"GOMODCACHE": "go/pkg/mod", "GOCACHE": ".cache/go-build"},
	agents.KeptCargo: {"CARGO_HOME": ".cargo"},
}
