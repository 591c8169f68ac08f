package daemon

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockBase locks a base directory for one daemon that mounts all its agents. The
// lock ends with the descriptor, and so with the process: flock(2). Where the file
// system has no locks of directories it returns nil and says so.
func (d *Daemon) lockBase() error {
	dir, err := os.Open(d.Paths.Base)
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		d.base = dir
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("base %q: another daemon serves it, with another --run: stop that one, or give this one another --base", d.Paths.Base)
	case errors.Is(err, unix.EBADF), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EOPNOTSUPP): // NFS locks only files open for writing
		d.Logger.Warn("base cannot be locked: start no other daemon on it", "base", d.Paths.Base, "err", err)
		err = nil
	default:
		err = fmt.Errorf("lock base %q: %w", d.Paths.Base, err)
	}
	dir.Close()
	return err
}
