// Package beside finds the programs that are installed with this one.
package beside

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

// Programs returns the programs that a whole installation has beside scopefs, with what does not work without each.
func Programs() map[string]string {
	return map[string]string{
		"scopefsd":       "everything but version",
		"scopefs-stores": "stores of agents", "scopefs-export": "streams, exports and fleets", "scopefs-console": "the console", "scopefs-csi": "volumes of Kubernetes",
	}
}

// Open opens a program with O_PATH: that of an absolute path, or of a name beside this program or in the package's
// libexec. The caller closes it.
func Open(name string) (*os.File, error) {
	places, self := []string{name}, name
	if !strings.Contains(name, "/") {
		var err error
		if self, err = os.Executable(); err != nil {
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
	return nil, fmt.Errorf("%s is not installed beside %q: %s", name, self, Remedy)
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
