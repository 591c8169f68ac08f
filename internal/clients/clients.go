// Package clients writes the settings with which agent programs start scopefs mcp in a
// directory, and with which they leave their own file and shell tools alone.
package clients

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
)

// Server is the command that serves an agent's tools.
type Server struct {
	Command string // absolute, or a name in PATH
	Args    []string
}

// Change is what one file of settings was and is.
type Change struct {
	File   string `json:"file"` // below the directory
	Before []byte `json:"before"`
	Exists bool   `json:"exists"` // there was a file before
	After  []byte `json:"after"`
}

// edit is a file of a program's settings. add returns it with the entries for a server;
// before is nil if there is no file.
type edit struct {
	file string
	add  func(before []byte, s Server) ([]byte, error)
}

// Names returns the programs that Install knows.
func Names() []string { return slices.Sorted(maps.Keys(programs)) }

// Installation is the settings of one program in one directory. It is recorded below
// State, so that Undo restores the files.
type Installation struct {
	Program string
	Dir     string // absolute
	State   string // a directory of the user's; made if it is missing
}

// Install adds the settings for a server. Program must be one of Names. If the program has settings of ours in the
// directory already, Install replaces them. It reads and writes below Dir alone, and no
// symbolic link: an agent may work there.
func (i Installation) Install(s Server) ([]Change, error) {
	if _, err := i.Undo(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	root, err := os.OpenRoot(i.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var all []Change
	for _, e := range programs[i.Program] {
		before, err := load(root, e.file)
		exists := err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("settings of %s: %w", i.Program, err)
		}
		after, err := e.add(before, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(i.Dir, e.file), err)
		}
		all = append(all, Change{e.file, before, exists, after})
	}
	// The record comes first: after an error Undo finds what was written.
	if err := i.record(all); err != nil {
		return nil, fmt.Errorf("record of the settings: %w", err)
	}
	for _, c := range all {
		if err := write(root, c.File, c.After); err != nil {
			_, undone := i.Undo()
			return nil, errors.Join(fmt.Errorf("settings of %s: %w", i.Program, err), undone)
		}
	}
	return all, nil
}

// Undo restores the files as they were before Install. It changes nothing if one of them
// has changed since. The error wraps fs.ErrNotExist if nothing is installed.
func (i Installation) Undo() ([]Change, error) {
	text, err := os.ReadFile(i.path())
	if err != nil {
		return nil, err
	}
	var all []Change
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("record %s: %w: remove it, and the settings by hand", i.path(), err)
	}
	root, err := os.OpenRoot(i.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, c := range all {
		now, err := load(root, c.File)
		missing := errors.Is(err, fs.ErrNotExist)
		switch {
		case err != nil && !missing:
			return nil, fmt.Errorf("settings of %s: %w", i.Program, err)
		case missing && !c.Exists, !missing && (bytes.Equal(now, c.After) || c.Exists && bytes.Equal(now, c.Before)):
		default:
			return nil, fmt.Errorf("%s has changed since: remove its entries for scopefs by hand, and then delete %s",
				filepath.Join(i.Dir, c.File), i.path())
		}
	}
	for _, c := range all {
		if c.Exists {
			err = write(root, c.File, c.Before)
		} else {
			err = in(root, c.File, (*os.Root).Remove)
			_ = root.Remove(filepath.Dir(c.File)) // an empty directory
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("settings of %s: %w", i.Program, err)
		}
	}
	return all, os.Remove(i.path())
}

func (i Installation) path() string {
	sum := sha256.Sum256([]byte(i.Program + "\x00" + i.Dir))
	return filepath.Join(i.State, hex.EncodeToString(sum[:16])+".json")
}

// record stores the changes, which hold whatever the user's settings hold.
func (i Installation) record(all []Change) error {
	text, err := json.Marshal(all)
	if err == nil {
		err = os.MkdirAll(i.State, 0o700)
	}
	if err != nil {
		return err
	}
	return durable.ReplaceAt(i.path(), text, durable.Options{Shared: true})
}

// in calls f with the directory of a file below root, and its name there. No link leads to
// the directory: an agent that works below root would choose which file is read or written.
func in(root *os.Root, file string, f func(dir *os.Root, name string) error) error {
	at, name := filepath.Split(filepath.Clean(file))
	at = filepath.Clean(at)
	named, err := root.Lstat(at)
	if err != nil {
		return err
	}
	if !named.IsDir() {
		return fmt.Errorf("%s is no directory: replace it by one", at)
	}
	dir, err := root.OpenRoot(at)
	if err != nil {
		return err
	}
	defer dir.Close()
	opened, err := dir.Stat(".")
	if err != nil {
		return err
	}
	if !os.SameFile(named, opened) {
		return fmt.Errorf("%s has changed meanwhile: try again", at)
	}
	return f(dir, name)
}

// maxSettings bounds a file of settings, in bytes.
const maxSettings = 1 << 20

// load returns the content of a regular file.
func load(root *os.Root, file string) (text []byte, err error) {
	err = in(root, file, func(dir *os.Root, name string) error {
		f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would block open
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: replace it by one", file)
		}
		if text, err = bounded.Read(f, maxSettings); errors.Is(err, bounded.ErrTooLong) {
			err = fmt.Errorf("%s %w", file, err)
		}
		return err
	})
	return text, err
}

// write replaces a file, by rename, and keeps its mode.
func write(root *os.Root, file string, text []byte) error {
	if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return in(root, file, func(dir *os.Root, name string) error {
		mode := fs.FileMode(0o644)
		if info, err := dir.Lstat(name); err == nil {
			if !info.Mode().IsRegular() {
				return fmt.Errorf("%s is no regular file: replace it by one", file)
			}
			mode = info.Mode().Perm()
		}
		return durable.Replace(dir, name, text, durable.Options{Mode: mode, Shared: true})
	})
}
