package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/interrupted"
	"github.com/scopefs/scopefs/scope"
)

// Series is a command that changes several directories of an agent one after another. Each directory changes as a whole or not at all.
// The file of a Series that was killed says which of them have changed. It is locked while the command runs.
type Series struct {
	file *os.File
	Plan
	Done []string `json:"-"` // those of Dirs that have changed
}

// Plan is what a Series is to do: the first line of its file. Each further line has a directory that has changed.
type Plan struct {
	Op      string   `json:"op"`      // undo, commit
	Command string   `json:"command"` // that goes on with what is left
	Dirs    []string `json:"dirs"`    // in order
}

// ErrSeries reports that another command changes the directories of the agent.
var ErrSeries = errors.New("another undo, redo, commit or discard of the agent's directories runs: wait for its end")

const maxSeries = 1 << 20 // bytes of a file

// BeginSeries begins the only Series of an agent. The caller calls End.
func BeginSeries(state string, of scope.ID, p Plan) (*Series, error) {
	root, err := open(state, "series")
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(string(of), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	s := &Series{file: f, Plan: p}
	if err = s.lock(); err == nil {
		if err = f.Truncate(0); err == nil {
			err = s.add(p)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *Series) lock() error {
	err := interrupted.Retry(func() error { return unix.Flock(int(s.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		return ErrSeries
	}
	return err
}

// add appends a line and waits for the disk.
func (s *Series) add(line any) error {
	text, err := json.Marshal(line)
	if err == nil {
		_, err = s.file.Write(append(text, '\n'))
	}
	return errors.Join(err, s.file.Sync())
}

// Changed notes that a directory has changed.
func (s *Series) Changed(dir string) error {
	s.Done = append(s.Done, dir)
	return s.add(dir)
}

// Left returns the directories that have not changed.
func (s *Series) Left() []string {
	return slices.DeleteFunc(slices.Clone(s.Dirs), func(dir string) bool { return slices.Contains(s.Done, dir) })
}

// End ends the Series. What is left of it is forgotten.
func (s *Series) End() {
	_ = s.file.Truncate(0)
	s.file.Close()
}

// Interrupted returns the Series of an agent that was killed; nil: there is none. The caller calls End, or Close.
func Interrupted(state string, of scope.ID) *Series {
	f, err := os.OpenFile(filepath.Join(state, "series", string(of)), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	s := &Series{file: f}
	if s.lock() != nil || !s.read() || len(s.Left()) == 0 {
		f.Close()
		return nil
	}
	return s
}

// read reads the file up to a line that was not written to its end.
func (s *Series) read() bool {
	lines := json.NewDecoder(io.LimitReader(s.file, maxSeries))
	if lines.Decode(&s.Plan) != nil {
		return false
	}
	for {
		var dir string
		if lines.Decode(&dir) != nil {
			return true
		}
		s.Done = append(s.Done, dir)
	}
}

// Close lets another command see the Series.
func (s *Series) Close() { s.file.Close() }
