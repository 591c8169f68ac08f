package journal

import (
	"bytes"
	"encoding/json"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// Log is a file of entries that one process appends to. A crash may tear its end, which the next OpenLog drops.
type Log struct {
	beneath.File
	form Form
	size int64
}

// Form is how a Log has its entries.
type Form int

// The forms; another one is the size of each entry. Frames have checksums; lines have no newline in them, and each
// tells whether it is whole.
const (
	Frames Form = iota
	Lines
)

// MaxEntry bounds an entry of a Log, in bytes.
const MaxEntry = 8 << 20

// cut returns the first entry of what a log has; false if it is torn.
func (f Form) cut(text []byte) (entry, rest []byte, ok bool) {
	switch {
	case f == Lines:
		return bytes.Cut(text, []byte("\n"))
	case f > Lines:
		n := min(int(f), len(text))
		return text[:n], text[n:], n == int(f)
	}
	entry, rest, err := cutFrame(text, MaxEntry)
	return entry, rest, err == nil
}

func (f Form) append(text, entry []byte) []byte {
	switch {
	case f == Lines:
		return append(append(text, entry...), '\n')
	case f > Lines:
		return append(text, entry...)
	}
	start := len(text)
	text = append(append(text, make([]byte, HeadSize)...), entry...)
	seal(text[start:])
	return text
}

// OpenOrCreate opens a file of a directory for reading and writing.
func OpenOrCreate(top beneath.Dir, name string) (beneath.File, error) {
	f, err := top.Create(name, unix.O_RDWR, 0o600)
	if err != unix.EEXIST {
		return f, err
	}
	f, _, err = beneath.NewRoot(top.Self().FD()).OpenAny(name, unix.O_RDWR)
	return f, err
}

// OpenLog opens a log of a directory, or makes it. It calls each for the entries, up to one that is torn or for which
// each returns false. With own it drops the rest: no other process appends.
func OpenLog(top beneath.Dir, name string, form Form, own bool, each func(entry []byte) bool) (l *Log, err error) {
	l = &Log{form: form}
	if l.File, err = OpenOrCreate(top, name); err != nil {
		return nil, err
	}
	if l.size, err = Scan(l.File, form, each); err == nil && own {
		err = l.Truncate(l.size)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Scan calls each for the entries of a log, up to one that is torn or for which each returns false, and returns the
// size of those. An entry is valid until each returns.
func Scan(f beneath.File, form Form, each func(entry []byte) bool) (size int64, err error) {
	text, room := []byte{}, make([]byte, 64<<10)
	for at := int64(0); ; {
		n, err := f.ReadAt(room, at)
		if err != nil {
			return size, err
		}
		text, at = append(text, room[:n]...), at+int64(n)
		rest := text
		for {
			entry, after, ok := form.cut(rest)
			if !ok {
				break
			}
			if !each(entry) {
				return size, nil
			}
			size, rest = size+int64(len(rest)-len(after)), after
		}
		if text = text[:copy(text, rest)]; n == 0 || len(text) > MaxEntry+HeadSize {
			return size, nil
		}
	}
}

// Append appends entries, all or none unless the process is killed. An entry of Frames has at least two bytes.
func (l *Log) Append(entries ...[]byte) error {
	var text []byte
	for _, entry := range entries {
		if len(entry) > MaxEntry {
			return unix.EFBIG
		}
		text = l.form.append(text, entry)
	}
	return l.AppendText(text)
}

// AppendJSON is Append of values in JSON.
func AppendJSON[T any](l *Log, all ...T) error {
	texts := make([][]byte, len(all))
	for i := range all {
		var err error
		if texts[i], err = json.Marshal(&all[i]); err != nil {
			return err
		}
	}
	return l.Append(texts...)
}

// AppendText is Append of entries that have the form of the log.
func (l *Log) AppendText(text []byte) error {
	if err := l.WriteAll(text, l.size); err != nil {
		return errors.Join(err, l.Truncate(l.size))
	}
	l.size += int64(len(text))
	return nil
}

// Size returns the size of the log in bytes.
func (l *Log) Size() int64 { return l.size }

// Clear removes all entries.
func (l *Log) Clear() error {
	l.size = 0
	return l.Truncate(0)
}
