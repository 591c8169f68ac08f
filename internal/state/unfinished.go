package state

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
)

// Unfinished records the calls of file tools that may leave a temporary file if they are killed. Each daemon has a
// directory, which it locks while it runs, with a symbolic link for each call: AGENT.TOKEN links to the path. A link
// is metadata. A file system with a journal writes it no later than the temporary file.
type Unfinished struct {
	state string

	mu       sync.Mutex
	name     string          // the path of own
	own      *os.File        // the daemon's directory; nil until it is needed
	inFlight map[string]bool // names of the calls in flight
}

// NewUnfinished returns the record of one daemon. The caller must close it.
func NewUnfinished(state string) *Unfinished {
	return &Unfinished{state: filepath.Join(state, "unfinished"), inFlight: map[string]bool{}}
}

// UnfinishedOf is the record of one agent.
type UnfinishedOf struct {
	*Unfinished
	id scope.ID
}

// Of returns the record of an agent.
func (u *Unfinished) Of(id scope.ID) UnfinishedOf { return UnfinishedOf{u, id} }

// Begin records a call. If it fails, the call runs anyway.
func (u UnfinishedOf) Begin(token, path string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		var err error
		if u.own, err = u.open(); err != nil {
			return
		}
	}
	name := string(u.id) + "." + token
	u.inFlight[name] = true
	_ = unix.Symlinkat(path, int(u.own.Fd()), name)
}

// open creates the daemon's directory. It locks the directory before it renames it to a name that other daemons read.
func (u *Unfinished) open() (*os.File, error) {
	making := filepath.Join(u.state, "."+rand.Text())
	if err := os.MkdirAll(making, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.Open(making)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		u.name = filepath.Join(u.state, filepath.Base(making)[1:])
		err = os.Rename(making, u.name)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// End removes the record of a call. If the call is not clean, because its worker did not respond, the record stays.
func (u UnfinishedOf) End(token string, clean bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := string(u.id) + "." + token
	delete(u.inFlight, name)
	if clean && u.own != nil {
		_ = unix.Unlinkat(int(u.own.Fd()), name, 0)
	}
}

// Left calls clean for each recorded call that is not in flight, and removes its record if clean returns true.
func (u UnfinishedOf) Left(clean func(token, path string) bool) {
	dirs, _ := os.ReadDir(u.state)
	for _, d := range dirs {
		if !strings.HasPrefix(d.Name(), ".") {
			u.cleanDir(filepath.Join(u.state, d.Name()), clean)
		}
	}
}

func (u UnfinishedOf) cleanDir(name string, clean func(token, path string) bool) {
	dir, err := os.Open(name)
	if err != nil {
		return
	}
	defer dir.Close() // also releases the lock
	dead := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	if !dead && !u.isOwn(dir) {
		return
	}
	calls, _ := dir.Readdirnames(-1)
	for _, call := range calls {
		token, ours := strings.CutPrefix(call, string(u.id)+".")
		if !ours || u.isInFlight(call) {
			continue
		}
		full := filepath.Join(name, call)
		if path, err := os.Readlink(full); err == nil && clean(token, path) {
			_ = os.Remove(full)
		}
	}
	if dead {
		_ = os.Remove(name) // fails unless it is empty
	}
}

func (u *Unfinished) isInFlight(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.inFlight[name]
}

func (u *Unfinished) isOwn(dir *os.File) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		return false
	}
	a, err1 := dir.Stat()
	b, err2 := u.own.Stat()
	return errors.Join(err1, err2) == nil && os.SameFile(a, b)
}

// Close releases the daemon's directory. Records that remain are for the next daemon.
func (u *Unfinished) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		return nil
	}
	_ = os.Remove(u.name) // fails unless it is empty
	err := u.own.Close()
	u.own = nil
	return err
}
