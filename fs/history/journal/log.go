package journal

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Log is a file of frames that one process appends to. A crash may tear its end, which the next OpenLog drops.
type Log struct {
	beneath.File
	size int64
}

// MaxFrame bounds a frame of a Log, in bytes.
const MaxFrame = 8 << 20

// OpenOrCreate opens a file of a directory for reading and writing.
func OpenOrCreate(top beneath.Dir, name string) (beneath.File, error) {
	f, err := top.Create(name, unix.O_RDWR, 0o600)
	if err != unix.EEXIST {
		return f, err
	}
	st, err := top.Stat(name)
	if err != nil {
		return f, err
	}
	return beneath.NewRoot(top.Self().FD()).Open(name, unix.O_RDWR, st.ID())
}

// OpenLog opens a log of a directory, or makes it. It calls each for the frames, up to one that is torn or for which each returns false,
// and drops the rest.
func OpenLog(top beneath.Dir, name string, each func(frame []byte) bool) (l *Log, err error) {
	l = &Log{}
	if l.File, err = OpenOrCreate(top, name); err != nil {
		return nil, err
	}
	text, err := l.ReadAll()
	for rest := text; err == nil; {
		frame, after, torn := cutFrame(rest, MaxFrame)
		if torn != nil || !each(frame) {
			break
		}
		l.size, rest = l.size+int64(len(rest)-len(after)), after
	}
	if err == nil && l.size < int64(len(text)) {
		err = l.Truncate(l.size)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// ReadAll returns what the file has.
func (l *Log) ReadAll() ([]byte, error) {
	st, err := l.Stat()
	if err != nil {
		return nil, err
	}
	text := make([]byte, st.Size)
	n, err := l.ReadAt(text, 0)
	return text[:n], err
}

// Append appends frames of at least two bytes each, all or none unless the process is killed.
func (l *Log) Append(frames ...[]byte) error {
	var text []byte
	for _, frame := range frames {
		if len(frame) > MaxFrame {
			return unix.EFBIG
		}
		start := len(text)
		text = append(append(text, make([]byte, HeadSize)...), frame...)
		seal(text[start:])
	}
	n, err := l.WriteAt(text, l.size, false)
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	if err != nil {
		return errors.Join(err, l.Truncate(l.size))
	}
	l.size += int64(n)
	return nil
}

// Size returns the size of the log in bytes.
func (l *Log) Size() int64 { return l.size }

// Clear removes all frames.
func (l *Log) Clear() error {
	l.size = 0
	return l.Truncate(0)
}
