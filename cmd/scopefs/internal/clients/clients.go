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
)

// Server is the command that serves an agent's tools.
type Server struct {
	Command string // absolute
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
// directory already, Install replaces them. It writes below Dir alone: a symbolic link
// that leads out of it is an error.
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
		before, err := root.ReadFile(e.file)
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
		now, err := root.ReadFile(c.File)
		missing := errors.Is(err, fs.ErrNotExist)
		switch {
		case err != nil && !missing:
			return nil, fmt.Errorf("settings of %s: %w", i.Program, err)
		case missing && !c.Exists, !missing && (bytes.Equal(now, c.After) || c.Exists && bytes.Equal(now, c.Before)):
		default:
			return nil, fmt.Errorf("%s has changed since: remove its entries for scopefs by hand, and then %s", filepath.Join(i.Dir, c.File), i.path())
		}
	}
	for _, c := range all {
		if c.Exists {
			err = write(root, c.File, c.Before)
		} else {
			err = root.Remove(c.File)
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
	name := i.path() + ".new"
	if err := os.WriteFile(name, text, 0o600); err != nil {
		return err
	}
	return os.Rename(name, i.path())
}

// write replaces a file, by rename, and keeps its mode.
func write(root *os.Root, name string, text []byte) error {
	mode := fs.FileMode(0o644)
	if info, err := root.Lstat(name); err == nil {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: replace it by one", name)
		}
		mode = info.Mode().Perm()
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	temp := name + ".scopefs-new"
	if err := root.WriteFile(temp, text, mode); err != nil {
		return err
	}
	err := root.Rename(temp, name)
	if err != nil {
		_ = root.Remove(temp)
	}
	return err
}
