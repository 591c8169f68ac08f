package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/paths"
)

// OpenUser opens a directory of a user's settings; rel "" is user itself. It rejects one inside the views of base, and
// directories and files that another user owns or can write.
func OpenUser(base, user, rel string) (Folder, error) {
	if user == "" {
		return Folder{}, fs.ErrNotExist
	}
	f, err := os.OpenFile(user, unix.O_DIRECTORY, 0) // follows links; the checks use the descriptor
	if errors.Is(err, fs.ErrNotExist) {
		if _, dangling := paths.Resolve(user); dangling != nil {
			err = dangling
		}
		return Folder{}, err
	}
	if err != nil {
		return Folder{}, fmt.Errorf("%w: make it a directory that you may read", err)
	}
	dir := Folder{f, user, true}
	where, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err == nil && base != "" {
		err = outsideViews(where, base, user)
	}
	if err == nil {
		err = owned(int(f.Fd()))
	}
	if err != nil || rel == "" {
		if err != nil {
			f.Close()
		}
		return dir, err
	}
	defer f.Close()
	sub, err := dir.Sub(rel)
	if err == nil {
		if err = owned(int(sub.Fd())); err != nil {
			sub.Close()
		}
	}
	return sub, err
}

// owned returns an error for an open file or directory that is not of this process's user, or that others can write.
func owned(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return errors.New("is of another user: chown it to the user who runs scopefs, or set HOME or XDG_CONFIG_HOME")
	case st.Mode&0o022 != 0:
		return errors.New("can be written by others: chmod go-w")
	}
	return nil
}
