package streams

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/durable"
)

// position is what the file of a cursor has.
type position struct {
	Log  string `json:"log"`  // the id of the log
	Sent uint64 `json:"sent"` // the number of the last event that the receiver has, or needs not; 0: none
}

// A cursor is the file of a stream, locked: one process has it at a time.
type cursor struct {
	dir  *os.Root
	lock *os.File
	file *os.File // nil: it is not open yet
	at   position
}

// The public key of a log, and the files of a stream.
const (
	keyName    = "key.pub"
	cursorName = "cursor"
	lockName   = "lock"
)

// maxCursor limits the file, in bytes.
const maxCursor = 4 << 10

// errBusy is the error of a stream that the process of another daemon has.
var errBusy = errors.New("another daemon gives the log to this receiver")

// openCursor opens the cursor in a directory, for a log with an id. A new one begins where from says. The cursor of another
// log begins at the start of this one.
func openCursor(dir, log, id, from string) (_ *cursor, err error) {
	c := &cursor{}
	if c.dir, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.lock, err = c.dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(c.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errBusy
	}
	f, err := c.dir.OpenFile(cursorName, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		first := position{Log: id}
		if from == config.FromNow {
			if first.Sent, err = audit.Last(log); err != nil {
				return nil, err
			}
		}
		return c, c.begin(first)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCursor))
	if err == nil {
		err = json.Unmarshal(text, &c.at)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove it, and the stream begins anew", cursorName, err)
	}
	last, err := audit.Last(log)
	switch {
	case err != nil:
		return nil, err
	case c.at.Log != id:
		return c, c.begin(position{Log: id})
	case c.at.Sent > last: // an older copy of the log was restored: its next events have numbers that were sent
		return c, c.begin(position{Log: id, Sent: last})
	}
	return c, c.begin(c.at)
}

// cursorSize is more than a position has, and less than a sector, which a disk writes atomically.
const cursorSize = 256

func (at position) encode() ([]byte, error) {
	text, err := json.Marshal(at)
	if err == nil && len(text) >= cursorSize {
		err = fmt.Errorf("%s: the id of the log has %d bytes", cursorName, len(at.Log))
	}
	return fmt.Appendf(nil, "%-*s\n", cursorSize-1, text), err
}

// move records that the receiver has all events up to a number. A crash of the kernel may leave an older one: the receiver gets
// the events after that again.
func (c *cursor) move(sent uint64) error {
	at := position{Log: c.at.Log, Sent: sent}
	text, err := at.encode()
	if err == nil {
		_, err = c.file.WriteAt(text, 0)
	}
	if err == nil {
		c.at = at
	}
	return err
}

// begin replaces the file by one that move writes in place.
func (c *cursor) begin(at position) error {
	text, err := at.encode()
	if err != nil {
		return err
	}
	d, err := durable.Begin(c.dir, cursorName, durable.Options{})
	if err != nil {
		return err
	}
	if _, err = d.Write(text); err == nil {
		err = d.Place()
	}
	if err != nil {
		return errors.Join(err, d.Close())
	}
	c.file, c.at = d.File, at
	return nil
}

func (c *cursor) close() {
	for _, f := range []*os.File{c.file, c.lock} {
		if f != nil {
			f.Close()
		}
	}
	c.dir.Close()
}

// logKey returns the public key of the log in a directory, and the id of the log, which is the name of its key.
func logKey(dir string) (key, id string, err error) {
	f, err := os.Open(filepath.Join(dir, keyName))
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxCursor))
	key = strings.TrimSpace(string(text))
	id, _, ok := strings.Cut(key, "+")
	if err == nil && !ok {
		err = fmt.Errorf("%s: is no key", keyName)
	}
	return key, id, err
}
