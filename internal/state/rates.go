package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// Rates is the file of an agent's rate limits. It implements limit.Store. Daemons that run for one command share
// the file.
type Rates struct{ name string }

// RatesOf returns the Rates of an agent.
func RatesOf(state string, id scope.ID) *Rates {
	return &Rates{filepath.Join(state, "rates", string(id))}
}

// TrafficOf returns the Rates of an agent's network. No id has a dot.
func TrafficOf(state string, id scope.ID) *Rates {
	return &Rates{filepath.Join(state, "rates", string(id)+".network")}
}

const (
	maxRates = 1 << 20     // limit of a file in bytes
	lockTime = time.Second // limit of Update's wait for another process
)

// Update calls change with the stored refills and stores the result. lost means that the file was damaged. Update
// waits at most one second for another process.
func (r *Rates) Update(change func(kept limit.Refills, lost bool)) error {
	f, err := r.open()
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer f.Close() // also releases the lock: flock(2)
	if err := lock(f); err != nil {
		return fmt.Errorf("state: %s: another process has it locked: %w", r.name, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxRates))
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	kept, lost := limit.Refills{}, false
	if len(text) > 0 && (json.Unmarshal(text, &kept) != nil || kept == nil) {
		kept, lost = limit.Refills{}, true
	}
	change(kept, lost)
	now, err := json.Marshal(kept)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	// A single write that never shortens the file: a killed process leaves the old text or the new one. Trailing
	// blanks are valid JSON.
	if n := len(text) - len(now); n > 0 {
		now = append(now, bytes.Repeat([]byte{' '}, n)...)
	}
	if _, err := f.WriteAt(now, 0); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

func (r *Rates) open() (*os.File, error) {
	const flags = os.O_CREATE | os.O_RDWR | unix.O_NOFOLLOW
	f, err := os.OpenFile(r.name, flags, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(r.name), 0o700); err == nil {
			f, err = os.OpenFile(r.name, flags, 0o600)
		}
	}
	return f, err
}

// lock takes the file's lock. It polls, because in flock(2) a stopped process that holds the lock could block it
// forever.
func lock(f *os.File) error {
	for end := time.Now().Add(lockTime); ; time.Sleep(time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			return err
		}
	}
}
