package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
)

// takeRun makes the run directory ours: one daemon a directory.
func (d *Daemon) takeRun() error {
	for _, dir := range []string{d.paths.Run, d.paths.Views()} {
		// Agents' users pass through to their own mount point.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(d.paths.Run, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("a daemon is running already with --run %s", d.paths.Run)
	}
	d.lock = lock
	// Without links, as the kernel tells mount points.
	if d.paths.Run, err = filepath.EvalSymlinks(d.paths.Run); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if d.only == "" {
		if err := d.lockBase(); err != nil {
			return err
		}
	}
	d.extend()
	return d.abortLeft()
}

// abortLeft ends the connections of views that a killed daemon left: those below
// our run directory, and those that it had mounted elsewhere. The dead mounts stay
// until new ones take their places, so that nothing is written to what they hide.
func (d *Daemon) abortLeft() error {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(fsType))
	if err != nil {
		return err
	}
	places := d.places()
	for _, m := range all {
		id, ours := strings.CutPrefix(m.Source, "scopefs:")
		if !ours {
			continue
		}
		if filepath.Dir(m.Mountpoint) == d.paths.Views() || places[scope.ID(id)] == m.Mountpoint {
			conn := d.control.Connection(uint32(m.Minor), m.Mountpoint)
			if err := conn.Abort(); err != nil {
				d.logger.Warn("abort what an earlier daemon left", "at", m.Mountpoint, "err", err)
			}
			conn.Close()
			d.left = append(d.left, m)
		}
	}
	return nil
}

// unmountLeft takes down the dead mounts of which no view has taken the place.
func (d *Daemon) unmountLeft() {
	d.mu.Lock()
	left := d.left
	d.left = nil
	kept := map[string]bool{}
	for _, v := range d.views {
		kept[v.at] = true
	}
	d.mu.Unlock()
	for _, m := range slices.Backward(left) {
		if kept[m.Mountpoint] {
			continue
		}
		d.logger.Info("unmounting what an earlier daemon left", "at", m.Mountpoint)
		if _, err := unmountStale(scope.ID(strings.TrimPrefix(m.Source, "scopefs:")), m.Mountpoint, 0); err != nil {
			d.logger.Error("unmount", "at", m.Mountpoint, "err", err)
		}
		d.release(m.Mountpoint)
	}
}

// place remembers where an agent is mounted, so that a view elsewhere than
// below the run directory is found after a crash. The file holds the path.
func (d *Daemon) place(id scope.ID, at string) error {
	dir := filepath.Join(d.paths.Run, "at")
	name := filepath.Join(dir, string(id))
	if at == "" || filepath.Dir(at) == d.paths.Views() {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(at), 0o600)
}

// places reads what place remembered.
func (d *Daemon) places() map[scope.ID]string {
	at := map[scope.ID]string{}
	dir := filepath.Join(d.paths.Run, "at")
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if place := d.placeOf(scope.ID(e.Name())); place != "" {
			at[scope.ID(e.Name())] = place
		}
	}
	return at
}

// placeOf reads what place remembered of one agent; "" is nothing.
func (d *Daemon) placeOf(id scope.ID) string {
	text, _ := os.ReadFile(filepath.Join(d.paths.Run, "at", string(id)))
	return string(text)
}
