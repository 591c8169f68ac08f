package account

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
)

// PrepareMountPoint makes sure that at is a directory with no mount but, perhaps, a
// view of the agent that an earlier daemon left, and that nobody writes to it while no
// view is there. It returns the number of entries that the view will hide.
func (h *Host) PrepareMountPoint(id scope.ID, at string) (hidden int, err error) {
	mounted, err := mount.At(at)
	if err != nil {
		return 0, err
	}
	if len(mounted) > 0 {
		top := mounted[len(mounted)-1]
		// ENOTCONN: dead, and the new view replaces it. A live one is another daemon's.
		// The kernel may have the answer of either in its cache: FORCE_SYNC.
		// EACCES: the mount admits its user alone, dead or alive. At a mount point of ours
		// it is dead: the run directory is locked, and the agent has no view.
		err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &unix.Statx_t{})
		dead := errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.EACCES) && (h.owns(at) || KeptMountPoint(h.Paths, id) == at)
		if of, ok := mount.Agent(top); dead && ok && of == id {
			return 0, nil
		}
		return 0, fmt.Errorf("mount point %q has %s mounted on it: choose another with --at", at, top.FSType)
	}
	if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, fmt.Errorf("mount point: %w", err)
	}
	entries, err := os.ReadDir(at)
	if err != nil {
		return 0, fmt.Errorf("mount point: %w", err)
	}
	if !h.Private {
		if err := mount.Immutable(at, true); err != nil {
			h.Logger.Debug("mount point can be written to while no view is there", "at", at, "err", err)
		}
	}
	return len(entries), nil
}

// owns reports whether a mount point is a directory that daemons make.
func (h *Host) owns(at string) bool { return filepath.Dir(at) == h.Paths.Views() }

// Release removes what a mount point has left, and the directory if it is one that daemons make.
func (h *Host) Release(at string) { mount.Release(at, h.owns(at)) }

// KeepMountPoint keeps the mount point in a file, so that the next daemon finds a view
// elsewhere than below the run directory after a crash. "" removes the file.
func (h *Host) KeepMountPoint(id scope.ID, at string) error {
	name := mountPointFile(h.Paths, id)
	if at == "" || h.owns(at) {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(at), 0o600)
}

// KeptMountPoint returns the mount point that is kept for an agent; "" is none.
func KeptMountPoint(p config.Paths, id scope.ID) string {
	text, _ := os.ReadFile(mountPointFile(p, id))
	return string(text)
}

func mountPointFile(p config.Paths, id scope.ID) string {
	return filepath.Join(p.Run, "at", string(id))
}
