package account

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
)

// homeTime bounds how long HomeUse counts.
const homeTime = 2 * time.Second

// HomeUse returns the bytes that the files in an agent's HOME have on the disk. whole is
// false if the agent has so many that HomeUse stopped counting. The error wraps ENOENT if
// there is no HOME yet.
func HomeUse(p config.Paths, id scope.ID) (size int64, whole bool, err error) {
	root, err := beneath.OpenRoot(p.Homes(), string(id))
	if err != nil {
		return 0, false, err
	}
	defer root.Close()
	u := use{root: root, until: time.Now().Add(homeTime), dirs: []string{""}}
	for len(u.dirs) > 0 {
		rel := u.dirs[len(u.dirs)-1]
		u.dirs = u.dirs[:len(u.dirs)-1]
		// A directory that the agent removes or replaces meanwhile does not count.
		if err := u.add(rel); errors.Is(err, os.ErrDeadlineExceeded) {
			return u.size, false, nil
		} else if err != nil && rel == "" {
			return 0, false, err
		}
	}
	return u.size, true, nil
}

// use counts below a directory that its owner changes.
type use struct {
	root  *beneath.Root
	until time.Time
	dirs  []string // that are not counted yet
	size  int64
}

func (u *use) add(rel string) error {
	object, err := u.root.Object(rel)
	if err != nil {
		return err
	}
	st, err := object.Stat()
	object.Close()
	if err != nil {
		return err
	}
	dir, err := u.root.Open(rel, unix.O_RDONLY|unix.O_DIRECTORY, st.ID())
	if err != nil {
		return err
	}
	list := os.NewFile(uintptr(dir.FD()), rel)
	defer list.Close()
	for {
		names, err := list.Readdirnames(1000)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			if time.Now().After(u.until) {
				return os.ErrDeadlineExceeded
			}
			st, err := dir.Dir().Stat(name)
			switch {
			case err != nil: // removed, or a mount
			case st.IsDir():
				u.dirs = append(u.dirs, beneath.Join(rel, name))
				u.size += int64(st.Blocks) * 512
			default: // statx(2) counts in 512 bytes; all names of a file are here
				u.size += int64(st.Blocks) * 512 / max(1, int64(st.Nlink))
			}
		}
	}
}
