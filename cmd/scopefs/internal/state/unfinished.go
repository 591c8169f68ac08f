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

// Unfinished holds the calls of file tools that may leave a temporary file when
// they are killed. It is a directory for each daemon, which the daemon has locked
// while it lives, with a symbolic link for each call: AGENT.TOKEN leads to the
// path. A link is metadata, which a file system with a journal writes no later
// than the temporary.
type Unfinished struct {
	state string

	mu   sync.Mutex
	name string          // of own
	own  *os.File        // nil until it is needed
	live map[string]bool // names of calls under way
}

// NewUnfinished returns the calls of one daemon. Close it.
func NewUnfinished(state string) *Unfinished {
	return &Unfinished{state: filepath.Join(state, "unfinished"), live: map[string]bool{}}
}

// UnfinishedOf is the part of an agent.
type UnfinishedOf struct {
	*Unfinished
	id scope.ID
}

// Of returns the part of an agent.
func (u *Unfinished) Of(id scope.ID) UnfinishedOf { return UnfinishedOf{u, id} }

// Begin notes a call. One that cannot be noted runs all the same.
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
	u.live[name] = true
	_ = unix.Symlinkat(path, int(u.own.Fd()), name)
}

// open makes the daemon's directory, which others see once it is locked.
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

// End notes that a call has ended. One that is not clean, because its worker did
// not answer, is left.
func (u UnfinishedOf) End(token string, clean bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	name := string(u.id) + "." + token
	delete(u.live, name)
	if clean && u.own != nil {
		_ = unix.Unlinkat(int(u.own.Fd()), name, 0)
	}
}

// Left hands what calls may have left that will not go on to clean, and drops
// those for which it returns true.
func (u UnfinishedOf) Left(clean func(token, path string) bool) {
	dirs, _ := os.ReadDir(u.state)
	for _, d := range dirs {
		if !strings.HasPrefix(d.Name(), ".") {
			u.leftIn(filepath.Join(u.state, d.Name()), clean)
		}
	}
}

func (u UnfinishedOf) leftIn(name string, clean func(token, path string) bool) {
	dir, err := os.Open(name)
	if err != nil {
		return
	}
	defer dir.Close() // and so the lock
	dead := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	if !dead && !u.isOwn(dir) {
		return
	}
	calls, _ := dir.Readdirnames(-1)
	for _, call := range calls {
		token, ours := strings.CutPrefix(call, string(u.id)+".")
		if !ours || u.isLive(call) {
			continue
		}
		full := filepath.Join(name, call)
		if path, err := os.Readlink(full); err == nil && clean(token, path) {
			_ = os.Remove(full)
		}
	}
	if dead {
		_ = os.Remove(name) // when it is empty
	}
}

func (u *Unfinished) isLive(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.live[name]
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

// Close ends the daemon's part. What calls have left stays for the next daemon.
func (u *Unfinished) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.own == nil {
		return nil
	}
	_ = os.Remove(u.name) // when it is empty
	err := u.own.Close()
	u.own = nil
	return err
}
