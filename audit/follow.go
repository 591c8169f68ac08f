package audit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pollInterval limits how late a reader with follow returns a new event where inotify(7) reports nothing: before the first
	// segment, around a rotation, and if the user has no instance left (fs.inotify.max_user_instances).
	pollInterval = 50 * time.Millisecond
	// watchInterval is the same for what another host writes.
	watchInterval = time.Second
)

// A follower waits for changes of one segment.
type follower struct {
	dir   string
	file  *os.File // of inotify(7); nil: there is none
	fd    int      // of file
	watch int      // of the current segment; 0: there is none
	idle  bool     // the last wait was woken
	buf   [4096]byte
}

// begin watches a segment in place of the last one. The caller reads the segment after that.
func (f *follower) begin(name string) {
	if f.file == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return
		}
		f.fd, f.file = fd, os.NewFile(uintptr(fd), "inotify")
	}
	if f.watch > 0 {
		_, _ = unix.InotifyRmWatch(f.fd, uint32(f.watch)) // fails for a segment that was removed
	}
	// A segment that is complete changes its mode.
	watch, _ := unix.InotifyAddWatch(f.fd, filepath.Join(f.dir, name), unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_DONT_FOLLOW)
	f.watch = max(watch, 0)
}

// wait returns when the segment may have changed, or ctx has ended. fresh says that the reader has found something since the last
// wait. A wake-up without that is of a segment that is complete, and its successor is about to come.
func (f *follower) wait(ctx context.Context, fresh bool) error {
	if f.watch == 0 || f.idle && !fresh {
		f.idle = false
		select {
		case <-ctx.Done():
		case <-time.After(pollInterval):
		}
		return ctx.Err()
	}
	_ = f.file.SetReadDeadline(time.Now().Add(watchInterval))
	stop := context.AfterFunc(ctx, func() { _ = f.file.SetReadDeadline(time.Unix(0, 1)) })
	defer stop()
	_, err := f.file.Read(f.buf[:])
	f.idle = err == nil
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return ctx.Err()
}
