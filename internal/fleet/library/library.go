// Package library has the definitions of agents that a node took from its fleet: each as it was signed, and those that hold as
// files of a directory agents.d. A version that was followed by another one, or removed, does not come back.
package library

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/scope"
)

// Max bounds the names of a library. Each was signed by a trusted key.
const Max = 1024

// Held is the last version of an agent's definition that a node took.
type Held struct {
	order.Definition
	By     string // the name of the key; "": it is trusted no more
	signed []byte
	holds  bool
}

// Library is what a node has. One process has it at a time; its methods are called one after the other.
type Library struct {
	node  string
	trust []note.Verifier
	at    string // the directory of all
	dir   string // with agents.d
	held  map[scope.ID]*Held

	changed bool
}

// The directories of a library, beside that of what holds.
const (
	signedDir = "signed" // a file for each name, as it was signed
	tryDir    = "try"    // with agents.d, of what may come to hold
	agentsDir = "agents.d"
)

// Open opens the library of a node, whose definitions that hold are in dir: see config.Fleet. It makes them anew from what is signed
// by the keys that are trusted now, and removes those that other keys and another name have made.
func Open(dir, node string, trust []note.Verifier) (*Library, error) {
	l := &Library{node: node, trust: trust, at: filepath.Dir(dir), dir: dir, held: map[scope.ID]*Held{}}
	signed := filepath.Join(l.at, signedDir)
	if err := os.MkdirAll(signed, 0o700); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(signed)
	if err != nil {
		return nil, err
	}
	for _, entry := range names {
		id, err := scope.ParseID(entry.Name())
		if err != nil {
			continue // of a process that was killed
		}
		if l.held[id], err = l.read(filepath.Join(signed, entry.Name()), id); err != nil {
			return nil, err
		}
	}
	if l.changed, err = l.lay(l.dir, nil); err != nil {
		return nil, err
	}
	others, err := os.ReadDir(l.at)
	for _, entry := range others {
		if name := entry.Name(); name != signedDir && name != filepath.Base(dir) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(l.at, name)))
		}
	}
	return l, err
}

// read reads a definition that was taken. That of a key without trust does not hold, and none that is older follows it.
func (l *Library) read(file string, id scope.ID) (*Held, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := bounded.Read(f, order.MaxDefinition)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	h := &Held{signed: text}
	h.Definition, h.By, err = order.OpenDefinition(text, l.trust)
	if err != nil {
		h.By = ""
		h.Definition, err = order.ReadDefinition(text)
	}
	if err == nil && h.Name != id {
		err = fmt.Errorf("it is of the agent %q", h.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: restore it, or remove it: an older version may come back then", file, err)
	}
	h.holds = h.By != "" && !h.Removed && h.For(l.node)
	return h, nil
}

// Changed reports whether other definitions hold since Open than before.
func (l *Library) Changed() bool { return l.changed }

// All returns what the node took, by name.
func (l *Library) All() []*Held {
	return slices.SortedFunc(maps.Values(l.held), func(a, b *Held) int { return cmp.Compare(a.Name, b.Name) })
}

// Holds reports whether a definition is in agents.d.
func (h *Held) Holds() bool { return h.holds }

// Check returns what a text is as a version that may follow the node's. It returns nil without an error for the version that
// the node has.
func (l *Library) Check(signed []byte, now time.Time) (*Held, error) {
	d, by, err := order.OpenDefinition(signed, l.trust)
	h := &Held{Definition: d, By: by, signed: signed}
	if err != nil {
		return h, err
	}
	old := l.held[d.Name]
	switch {
	case old == nil && len(l.held) >= Max:
		return h, fmt.Errorf("the node has %d definitions: more are not taken", Max)
	case old == nil:
		return h, d.Follows(0, now)
	case bytes.Equal(old.signed, signed):
		return nil, nil
	}
	return h, d.Follows(old.Version, now)
}

// Try lays out what would hold with definitions that Check has returned, and calls load with its directory. It returns why
// each of them does not load; load returns that for each agent.
func (l *Library) Try(next []*Held, load func(dir string) (map[scope.ID]error, error)) (map[scope.ID]error, error) {
	dir := filepath.Join(l.at, tryDir)
	if _, err := l.lay(dir, next); err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	wrong, err := load(dir)
	for _, h := range next {
		if h.Removed || !h.For(l.node) {
			delete(wrong, h.Name)
		}
	}
	return wrong, err
}

// Take keeps a definition that Check has returned. It holds after Lay.
func (l *Library) Take(h *Held) error {
	dir, err := os.OpenRoot(filepath.Join(l.at, signedDir))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := durable.Replace(dir, string(h.Name), h.signed, durable.Options{}); err != nil {
		return err
	}
	h.holds = !h.Removed && h.For(l.node)
	l.held[h.Name] = h
	return nil
}

// Lay writes the definitions that hold to agents.d, each atomically.
func (l *Library) Lay() error {
	_, err := l.lay(l.dir, nil)
	return err
}

// lay is Lay for a directory, and with definitions that are not taken yet. It reports whether a file has changed.
func (l *Library) lay(dir string, next []*Held) (changed bool, err error) {
	want := map[string]string{}
	for id, h := range l.held {
		if h.holds {
			want[string(id)+".md"] = h.Text
		}
	}
	for _, h := range next {
		if delete(want, string(h.Name)+".md"); !h.Removed && h.For(l.node) {
			want[string(h.Name)+".md"] = h.Text
		}
	}
	dir = filepath.Join(dir, agentsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	there, err := fs.ReadDir(root.FS(), ".")
	for _, entry := range there {
		if _, ok := want[entry.Name()]; !ok {
			changed = true
			err = errors.Join(err, root.RemoveAll(entry.Name()))
		}
	}
	for name, text := range want {
		if old, wrong := root.ReadFile(name); wrong == nil && string(old) == text {
			continue
		}
		changed = true
		err = errors.Join(err, durable.Replace(root, name, []byte(text), durable.Options{}))
	}
	return changed, err
}
