package daemon

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/claim"
)

// claimState refuses a state directory that the daemon of another host uses. On a local file system it does nothing.
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
	if d.claimed, err = claim.Take(filepath.Join(d.Paths.State, "host"), false); err != nil {
		return fmt.Errorf("state %q is on %s: give --state and --run on a local file system: %w", d.Paths.State, at.Type, err)
	}
	d.Logger.Warn("the state is on a shared file system: for one host, and as slow as that", "state", d.Paths.State, "type", at.Type)
	return nil
}
