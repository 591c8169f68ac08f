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
	return nil, fmt.Errorf("%s is not installed beside %q: install it", name, self)
}

// Exec executes a program in place of this one: see Open, execve(2). It returns only an error.
func Exec(name string, args ...string) error {
	program, err := Open(name)
	if err != nil {
		return err
	}
	defer program.Close()
	return fmt.Errorf("execute %q: %w", program.Name(), unix.Exec(program.Name(), append([]string{name}, args...), os.Environ()))
}
