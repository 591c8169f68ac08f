// Package companion finds the programs that are installed with this one.
package companion

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Remedy says how a missing program is installed.
const Remedy = "make build builds it, make install and the package install it"

// Program is a program of a whole installation.
type Program struct {
	For  string // what does not work without it
	Part string // "views" or "sandboxes", if none of those works; "": only what For says
}

// Programs returns the programs that a whole installation has beside scopefs, by name.
func Programs() map[string]Program {
	return map[string]Program{
		"scopefsd":        {"everything but scopefs version", "views"},
		"scopefs-log":     {"the log, and so the daemon", "views"},
		"scopefs-view":    {"views", "views"},
		"scopefs-context": {"the context of calls", "sandboxes"},
		"scopefs-holder":  {"the daemon", "views"},
		"scopefs-init":    {"sandboxes", "sandboxes"},
		"scopefs-files":   {"file tools", "sandboxes"},
		"scopefs-agent":   {"the network of sandboxes", ""},
		"scopefs-ssh":     {"ssh and signatures of git in sandboxes", ""},
		"scopefs-yaml":    {"a repository's own rules", ""},
		"scopefs-stores":  {"stores of agents", ""},
		"scopefs-export":  {"streams, exports and fleets", ""},
		"scopefs-console": {"the console", ""},
		"scopefs-csi":     {"volumes of Kubernetes", ""},
	}
}

// MissingError is the error of a program that is not installed.
type MissingError struct{ Name string }

// What says what is missing. It names no directory: users of agents may see it.
func (e *MissingError) What() string { return e.Name + " is not installed beside scopefs" }

func (e *MissingError) Error() string { return e.What() + ": " + Remedy }

// Open opens a program with O_PATH: that of an absolute path, or of a name beside this program or in the package's
// libexec. The caller closes it.
func Open(name string) (*os.File, error) {
	places := []string{name}
	if !strings.Contains(name, "/") {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		dir := filepath.Dir(self)
		places = []string{filepath.Join(dir, name), filepath.Join(dir, "../libexec/scopefs", name), filepath.Join(dir, "../lib/scopefs", name)}
	}
	for _, place := range places {
		file, err := os.OpenFile(place, unix.O_PATH, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return file, err
	}
	return nil, &MissingError{name}
}

// Exec executes a program with arguments, of which the first is its name for itself, in place of this one: see Open, execve(2). It returns
// only an error.
func Exec(name string, argv ...string) error {
	program, err := Open(name)
	if err != nil {
		return err
	}
	defer program.Close()
	return fmt.Errorf("execute %q: %w", program.Name(), unix.Exec(program.Name(), argv, os.Environ()))
}

// Command returns the path of scopefs, the command: beside this program, or in bin where this one is in the package's libexec.
func Command() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, place := range []string{filepath.Join(dir, "scopefs"), filepath.Join(dir, "../../bin/scopefs")} {
		if _, err := os.Stat(place); err == nil {
			return place, nil
		}
	}
	return "", fmt.Errorf("scopefs is not installed beside %q: %s", self, Remedy)
}
