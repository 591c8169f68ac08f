package beneath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watch reports changes in a set of directories, made by any process. It is a
// fanotify(7) group that reports directory handles and names
// (FAN_REPORT_DFID_NAME). An unprivileged process may create one since Linux
// 5.13.
type Watch struct {
	fd   int
	stop int // an eventfd(2)
	pid  int32
	buf  []byte
}

// NewWatch returns a Watch without directories. It returns EMFILE if the user
// has too many groups (fs.fanotify.max_user_groups), and ENOSYS or EINVAL if
// the kernel does not support this kind of group.
func NewWatch() (*Watch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_REPORT_DFID_NAME, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("fanotify: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	return &Watch{fd: fd, stop: stop, pid: int32(os.Getpid()), buf: make([]byte, 64<<10)}, nil
}

// Stop makes the current and every later call of Wait return os.ErrClosed.
func (w *Watch) Stop() { _, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// Close closes the Watch. The caller must ensure that no other method is
// running.
func (w *Watch) Close() error { return errors.Join(unix.Close(w.fd), unix.Close(w.stop)) }

const (
	inDirectory = unix.FAN_CREATE | unix.FAN_DELETE | unix.FAN_MOVED_FROM | unix.FAN_MOVED_TO
	ofFile      = unix.FAN_ATTRIB | unix.FAN_MODIFY
	watched     = inDirectory | ofFile | unix.FAN_ONDIR | unix.FAN_EVENT_ON_CHILD

	atHandleFID = 0x200 // AT_HANDLE_FID, linux/fcntl.h: a handle only to compare, since Linux 6.5

	addDir     = unix.FAN_MARK_ADD | unix.FAN_MARK_ONLYDIR
	removeDir  = unix.FAN_MARK_REMOVE | unix.FAN_MARK_ONLYDIR
	muteFile   = unix.FAN_MARK_ADD | unix.FAN_MARK_IGNORED_MASK | unix.FAN_MARK_IGNORED_SURV_MODIFY
	unmuteFile = unix.FAN_MARK_REMOVE | unix.FAN_MARK_IGNORED_MASK
	flushAll   = unix.FAN_MARK_FLUSH
)

// WatchFlags and HandleFlags are the flags of a Watch's fanotify_mark(2) and
// name_to_handle_at(2) calls. A seccomp filter must allow them.
var (
	WatchFlags  = []uint32{addDir, removeDir, muteFile, unmuteFile, flushAll}
	HandleFlags = []uint32{unix.AT_EMPTY_PATH | atHandleFID, unix.AT_EMPTY_PATH}
)

// Add watches a directory and returns its handle, which identifies the
// directory in a Change. It returns EACCES if the directory cannot be read,
// ENOSPC if the user has too many marks (fs.fanotify.max_user_marks), and
// EOPNOTSUPP, ENODEV or EXDEV on file systems without handles.
func (w *Watch) Add(d Dir) (string, error) {
	h, _, err := unix.NameToHandleAt(d.fd, "", unix.AT_EMPTY_PATH|atHandleFID)
	if err == unix.EINVAL {
		h, _, err = unix.NameToHandleAt(d.fd, "", unix.AT_EMPTY_PATH)
	}
	if err != nil {
		return "", err
	}
	if err := unix.FanotifyMark(w.fd, addDir, watched, d.fd, "."); err != nil {
		return "", err
	}
	key := binary.NativeEndian.AppendUint32(nil, uint32(h.Type()))
	return string(append(key, h.Bytes()...)), nil
}

// Remove stops watching a directory.
func (w *Watch) Remove(d Dir) error {
	return unix.FanotifyMark(w.fd, removeDir, watched, d.fd, ".")
}

// Flush stops watching all directories and cancels every Mute.
func (w *Watch) Flush() error { return unix.FanotifyMark(w.fd, flushAll, 0, unix.AT_FDCWD, "") }

// Mute suppresses content changes (FAN_MODIFY) of a file until Unmute.
func (w *Watch) Mute(f File) error {
	return unix.FanotifyMark(w.fd, muteFile, unix.FAN_MODIFY, f.fd, "")
}

// Unmute cancels Mute.
func (w *Watch) Unmute(f File) error {
	return unix.FanotifyMark(w.fd, unmuteFile, unix.FAN_MODIFY, f.fd, "")
}

// Change is an event in a watched directory.
type Change struct {
	Dir   []byte // the directory's handle
	Name  []byte // the name in the directory; empty for the directory itself
	Names bool   // the name was created, removed or moved
	Moved bool   // the object was moved away from the name
	IsDir bool   // the name refers to a directory
	Own   bool   // this process made the change
	Lost  bool   // the kernel dropped events; no other field is set
}

// Wait blocks until the Watch has events. It returns os.ErrClosed after Stop.
func (w *Watch) Wait() error {
	for {
		poll := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(w.stop), Events: unix.POLLIN}}
		_, err := unix.Ppoll(poll, nil, nil)
		if err == nil && poll[1].Revents != 0 {
			err = os.ErrClosed
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// Read calls each for every event in the queue and returns when the queue is
// empty. A Change is valid until each returns.
func (w *Watch) Read(each func(Change)) error {
	for {
		n, err := unix.Read(w.fd, w.buf)
		switch {
		case err == unix.EAGAIN:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		}
		for rest := w.buf[:n]; len(rest) >= int(unsafe.Sizeof(unix.FanotifyEventMetadata{})); {
			meta := (*unix.FanotifyEventMetadata)(unsafe.Pointer(&rest[0]))
			if meta.Event_len < uint32(meta.Metadata_len) || int(meta.Event_len) > len(rest) {
				return fmt.Errorf("fanotify: event of %d bytes", meta.Event_len)
			}
			w.parse(meta, rest[meta.Metadata_len:meta.Event_len], each)
			rest = rest[meta.Event_len:]
		}
	}
}

// parse decodes an event's information record: 4 bytes of header, 8 bytes of
// file system id, 4 bytes each of handle size and type, the handle, the name.
func (w *Watch) parse(meta *unix.FanotifyEventMetadata, info []byte, each func(Change)) {
	if meta.Mask&unix.FAN_Q_OVERFLOW != 0 {
		each(Change{Lost: true})
		return
	}
	if len(info) < 20 || info[0] != unix.FAN_EVENT_INFO_TYPE_DFID_NAME && info[0] != unix.FAN_EVENT_INFO_TYPE_DFID {
		return
	}
	size := int(binary.NativeEndian.Uint32(info[12:]))
	if size > len(info)-20 {
		return
	}
	name, _, _ := bytes.Cut(info[20+size:], []byte{0})
	if string(name) == "." {
		name = nil
	}
	each(Change{
		Dir:   info[16 : 20+size],
		Name:  name,
		Names: meta.Mask&inDirectory != 0,
		Moved: meta.Mask&unix.FAN_MOVED_FROM != 0,
		IsDir: meta.Mask&unix.FAN_ONDIR != 0,
		Own:   meta.Pid == w.pid,
	})
}
