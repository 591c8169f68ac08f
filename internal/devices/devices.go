// Package devices keeps the devices that are paired with the console: {state}/console/devices.json. The programs that serve
// a console, and the commands that list and remove devices, use the file at once: a lock orders their changes, and a
// change replaces the file. Only the daemon's user can read it. It has public keys, and the path of the console's pages.
package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/interrupted"
)

// The bounds of the store.
const (
	MaxDevices = 32
	maxFile    = 1 << 20

	lockTime  = 10 * time.Second // that a change waits for another one
	lockEvery = 10 * time.Millisecond
)

// Role is what a device may do. Each includes those before it.
type Role string

// The roles. Look reads. Decide answers what waits in the inbox. All does what the operator may.
const (
	Look   Role = "look"
	Decide Role = "decide"
	All    Role = "all"
)

// Roles are the roles, the least first.
var Roles = []Role{Look, Decide, All}

// Covers reports whether a visitor of the role may do what needs another one. A role that is none covers nothing, and
// nothing covers it.
func (r Role) Covers(need Role) bool {
	at := slices.Index(Roles, need)
	return at >= 0 && slices.Index(Roles, r) >= at
}

// Device is a browser with a key.
type Device struct {
	Name   string    `json:"name"` // unique
	ID     string    `json:"id"`   // random, and never used again: what belongs to the device is kept by it
	Role   Role      `json:"role"`
	Paired time.Time `json:"paired"`
	Seen   time.Time `json:"seen"`           // to a minute
	From   string    `json:"from,omitempty"` // the address that it was seen at; of IPv6 the network. "": none, a unix socket

	Passkey json.RawMessage `json:"passkey,omitempty"` // its public key and counter, as go-webauthn keeps them
	Push    string          `json:"push,omitempty"`    // the endpoint by which a push service wakes it; a secret
	Key     []byte          `json:"key,omitempty"`     // or the public key that the browser keeps: ECDSA with P-256, PKIX
	Origin  string          `json:"origin,omitempty"`  // of the pages that can use Key
}

// Kind returns where the private key is.
func (d Device) Kind() string {
	if d.Passkey != nil {
		return "passkey"
	}
	return "browser key"
}

var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,31}$`) })

// CheckName fails for a name that no device can have. Names are in the log, and in arguments of commands.
func CheckName(name string) error {
	if !names().MatchString(name) {
		return fmt.Errorf("device %.40q: a name has up to 32 of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit", name)
	}
	return nil
}

// ErrUnknown reports that no device has the name or the id.
var ErrUnknown = errors.New("no such device: scopefs console devices lists them")

// Store is the devices of a daemon. Its methods are safe for concurrent use, also by other processes.
type Store struct {
	root *os.Root
	wait time.Duration // for the lock

	mu    sync.Mutex
	stamp os.FileInfo // of the file that last is from
	last  kept
}

// kept is the content of the file.
type kept struct {
	Path    string   `json:"path"` // of the pages, which devices remember; "": nothing is paired
	Devices []Device `json:"devices"`
}

const file, lock = "devices.json", "lock"

// Dir returns the directory of a store, in {state}.
func Dir(state string) string { return filepath.Join(state, "console") }

// Open opens the store in {state}, and creates its directory.
func Open(state string) (*Store, error) {
	dir := Dir(state)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("devices: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	return &Store{root: root, wait: lockTime}, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.root.Close() }

// List returns the devices in the order in which they were paired. It reads the file only when it has changed.
func (s *Store) List() ([]Device, error) {
	k, err := s.read()
	return k.Devices, err
}

// Path returns the path of the pages; "": nothing is paired.
func (s *Store) Path() (string, error) {
	k, err := s.read()
	return k.Path, err
}

func (s *Store) read() (kept, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := s.root.Lstat(file)
	if errors.Is(err, os.ErrNotExist) {
		s.stamp, s.last = nil, kept{}
		return kept{}, nil
	}
	if err != nil {
		return kept{}, fmt.Errorf("devices: %w", err)
	}
	if s.stamp != nil && os.SameFile(info, s.stamp) && info.ModTime().Equal(s.stamp.ModTime()) && info.Size() == s.stamp.Size() {
		return s.last, nil
	}
	f, err := s.root.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // the console's process may have made a FIFO of it
	if err != nil {
		return kept{}, fmt.Errorf("devices: %w", err)
	}
	defer f.Close()
	var k kept
	var text []byte
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err == nil {
		text, err = bounded.Read(f, maxFile)
	}
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		return kept{}, fmt.Errorf("devices: %s: %w: remove it, and pair the devices again", filepath.Join(s.root.Name(), file), err)
	}
	s.stamp, s.last = info, k
	return k, nil
}

// Get returns the device with an id.
func (s *Store) Get(id string) (Device, error) {
	list, err := s.List()
	if err != nil {
		return Device{}, err
	}
	for _, d := range list {
		if d.ID == id {
			return d, nil
		}
	}
	return Device{}, ErrUnknown
}

// CanAdd fails for a name that is invalid or in use, and when there are too many devices.
func (s *Store) CanAdd(name string) error {
	k, err := s.read()
	if err != nil {
		return err
	}
	return k.canAdd(name)
}

func (k kept) canAdd(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if slices.ContainsFunc(k.Devices, func(d Device) bool { return d.Name == name }) {
		return fmt.Errorf("device %q exists: give another name, or remove it with scopefs console devices remove %s", name, name)
	}
	if len(k.Devices) >= MaxDevices {
		return fmt.Errorf("there are %d devices: remove one with scopefs console devices remove NAME", MaxDevices)
	}
	return nil
}

// Add adds a device whose pages are below a path. All devices have the same path.
func (s *Store) Add(d Device, path string) error {
	return s.change(func(k *kept) error {
		if err := k.canAdd(d.Name); err != nil {
			return err
		}
		if k.Path != "" && k.Path != path {
			return errors.New("another console has paired a device since this one started: start this one again")
		}
		k.Path = path
		k.Devices = append(k.Devices, d)
		return nil
	})
}

// Remove removes the device with a name or an id, which no name is like. After the last one the pages get another path.
func (s *Store) Remove(name string) error {
	return s.change(func(k *kept) error {
		at := slices.IndexFunc(k.Devices, func(d Device) bool { return d.Name == name || d.ID == name })
		if at < 0 {
			return fmt.Errorf("device %.40q: %w", name, ErrUnknown)
		}
		if k.Devices = slices.Delete(k.Devices, at, at+1); len(k.Devices) == 0 {
			k.Path = ""
		}
		return nil
	})
}

// Update changes the device with an id. It fails with ErrUnknown for one that was removed.
func (s *Store) Update(id string, change func(*Device)) error {
	return s.change(func(k *kept) error {
		for i := range k.Devices {
			if k.Devices[i].ID == id {
				change(&k.Devices[i])
				return nil
			}
		}
		return ErrUnknown
	})
}

// change replaces the file, which no other process changes meanwhile. flock(2).
func (s *Store) change(f func(*kept) error) (err error) {
	l, err := s.root.OpenFile(lock, os.O_CREATE|os.O_RDWR|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	defer l.Close()
	for until := time.Now().Add(s.wait); ; time.Sleep(lockEvery) {
		err := interrupted.Retry(func() error { return unix.Flock(int(l.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(until) {
			return fmt.Errorf("devices: %s: %w: end the console, which may hold it", filepath.Join(s.root.Name(), lock), err)
		}
	}
	s.mu.Lock()
	s.stamp = nil // a file's number and time may be those of one that was replaced
	s.mu.Unlock()
	k, err := s.read()
	if err != nil {
		return err
	}
	k.Devices = slices.Clone(k.Devices)
	if err := f(&k); err != nil {
		return err
	}
	text, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.Replace(s.root, file, text, durable.Options{}); err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	return nil
}
