package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
)

// reserveDescriptors makes the kernel's table of this process's descriptors large. A table that threads share waits for an
// RCU grace period when it grows, 10 ms (expand_fdtable in fs/file.c): now nothing else waits for that.
func reserveDescriptors() {
	const enough = 1024 // also the usual soft limit: getrlimit(2)
	if fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, enough-1); err == nil {
		unix.Close(fd)
	}
}

// lockTime bounds the wait for a lock. A process that a killed daemon was starting has the daemon's descriptors until execve(2).
const lockTime = 2 * time.Second

// takeRun locks the run directory, so that one daemon uses it.
func (d *Daemon) takeRun() error {
	for _, dir := range []string{d.Paths.Run, d.Paths.Views()} {
		// Agents' users pass through to their own mount point.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(d.Paths.Run, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := waitFree(lock, time.Now().Add(lockTime)); err != nil {
		lock.Close()
		return fmt.Errorf("a daemon is running already with --run %s", d.Paths.Run)
	}
	d.lock = lock
	// Without links, as the kernel reports mount points.
	if d.Paths.Run, err = filepath.EvalSymlinks(d.Paths.Run); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if d.only == "" {
		if err := d.lockBase(); err != nil {
			return err
		}
	}
	d.extend()
	if err := d.startHolder(); err != nil {
		return err
	}
	return d.abortLeft()
}

// abortLeft ends the connections of views that a killed daemon left, but for those that its holder has handed over. The dead
// mounts stay until new ones take their places, so that nothing is written to what they hide.
func (d *Daemon) abortLeft() (err error) {
	if d.left, err = leftMounts(d.Paths); err != nil {
		return err
	}
	d.points, _ = os.ReadDir(d.Paths.Views())
	for _, m := range d.left {
		if id, _ := mount.Agent(m); d.Views.IsLeft(id, m.Mountpoint) {
			continue
		}
		if err := abort(d.Control, m); err != nil {
			d.Logger.Warn("abort what an earlier daemon left", "at", m.Mountpoint, "err", err)
		}
	}
	return nil
}

// leftMounts returns the views that are mounted below a run directory, and those that its daemon has mounted elsewhere.
func leftMounts(p config.Paths) (left []*mountinfo.Info, err error) {
	all, err := mountinfo.GetMounts(mountinfo.FSTypeFilter(mount.Type))
	for _, m := range all {
		id, ours := mount.Agent(m)
		if ours && (filepath.Dir(m.Mountpoint) == p.Views() || account.KeptMountPoint(p, id) == m.Mountpoint) {
			left = append(left, m)
		}
	}
	return left, err
}

func abort(control fusemount.Control, m *mountinfo.Info) error {
	conn := control.Connection(uint32(m.Minor), m.Mountpoint)
	defer conn.Close()
	return conn.Abort()
}

// unmountLeft unmounts the dead mounts that no new view has replaced, and removes the mount points of agents that are gone: the holder
// has unmounted a view that ended without a daemon.
func (d *Daemon) unmountLeft() {
	d.mu.Lock()
	left, points := d.left, d.points
	d.left, d.points = nil, nil
	d.mu.Unlock()
	kept, homes := map[string]bool{}, map[string]*agent.Agent{}
	for _, a := range d.all() {
		kept[a.MountPoint()], homes[a.HomePoint()] = true, a
	}
	for _, m := range slices.Backward(left) {
		if kept[m.Mountpoint] {
			continue
		}
		unmount := func() {
			d.Logger.Info("unmounting what an earlier daemon left", "at", m.Mountpoint)
			if err := unmountDead(d.Paths, m); err != nil {
				d.Logger.Error("unmount", "at", m.Mountpoint, "err", err)
			}
		}
		if a := homes[m.Mountpoint]; a != nil {
			a.WithoutHome(unmount)
		} else {
			unmount()
		}
	}
	for _, e := range points {
		if at := filepath.Join(d.Paths.Views(), e.Name()); homes[at] == nil && d.agent(scope.ID(e.Name())) == nil {
			mount.Release(at, true)
		}
	}
}

func unmountDead(p config.Paths, m *mountinfo.Info) error {
	id, _ := mount.Agent(m)
	_, err := mount.UnmountStale(id, m.Mountpoint, 0)
	mount.Release(m.Mountpoint, filepath.Dir(m.Mountpoint) == p.Views())
	return err
}

// prepare makes {base}/agents for the first daemon on a base, which finds no file of the log. The service manager may have made
// {state}, and the operator may have mounted file systems there. A later daemon does not make it: where it is missing then, its
// file system may be. Agents may pass through it and not list it.
func prepare(p config.Paths) error {
	entries, err := os.ReadDir(p.Audit())
	if err != nil && !errors.Is(err, os.ErrNotExist) || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Type().IsRegular() }) {
		return nil // there was one before, or the error is that of the log
	}
	err = os.Mkdir(filepath.Join(p.Base, "agents"), 0o711)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("base directory: %w: give a --base that can be written to", err)
	}
	return nil
}

// lockBase locks a base directory for one daemon that mounts all its agents. The
// lock ends with the descriptor, and so with the process: flock(2). Where the file
// system has no locks of directories it returns nil and says so.
func (d *Daemon) lockBase() error {
	dir, err := os.Open(d.Paths.Base)
	if err != nil {
		return fmt.Errorf("base: %w", err)
	}
	err = waitFree(dir, time.Now().Add(lockTime))
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
