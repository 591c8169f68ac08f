package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/bounded"
)

// claimState refuses a state directory that the daemon of another host uses. On a shared file system flock(2) may hold on
// one host alone, as on sshfs. Therefore a file names the host, made with O_EXCL. It stays after a crash, when only the
// operator knows whether that host is gone. On a local file system claimState does nothing.
func (d *Daemon) claimState() error {
	dir, err := unix.Open(d.Paths.State, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	at, err := d.Mounts.FileSystem(dir)
	unix.Close(dir)
	if err != nil || !at.Shared {
		return err
	}
	this, err := thisHost()
	if err != nil {
		return fmt.Errorf("state %q is on %s, and this host has no name to put there: %w", d.Paths.State, at.Type, err)
	}
	name := filepath.Join(d.Paths.State, "host")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	switch {
	case err == nil:
		_, err = f.Write(this)
		err = errors.Join(err, f.Close())
	case errors.Is(err, fs.ErrExist):
		var has []byte
		if has, err = bounded.File(name, maxHost); err == nil && !bytes.Equal(has, this) {
			_, other, _ := bytes.Cut(bytes.TrimSpace(has), []byte(" "))
			return fmt.Errorf("state %q is on %s, and a daemon of the host %q uses it: give --state and --run on a local file system; if that host is gone, remove %s",
				d.Paths.State, at.Type, other, name)
		}
	}
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.claimed = name
	d.Logger.Warn("the state is on a shared file system: for one host, and as slow as that", "state", d.Paths.State, "type", at.Type)
	return nil
}

const maxHost = 4 << 10 // bytes

// thisHost identifies this host: machine-id(5) and the name. Copies of a virtual machine may have one id.
func thisHost() ([]byte, error) {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	name, err := os.Hostname()
	return fmt.Appendf(nil, "%s %s\n", bytes.TrimSpace(id), name), err
}

// unclaim lets the daemon of another host use the state.
func (d *Daemon) unclaim() {
	if d.claimed != "" {
		_ = os.Remove(d.claimed)
	}
}
