// Package beside finds the programs that are installed with this one.
package beside

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
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
		"scopefs-log":     {"the log, and so the daemon", "views"},
		"scopefs-view":    {"views", "views"},
		"scopefs-context": {"the context of calls", "sandboxes"},
		"scopefs-holder":  {"the daemon", "views"},
		"scopefs-init":    {"sandboxes", "sandboxes"},
		"scopefs-files":   {"file tools", "sandboxes"},
		"scopefs-tunnels": {"tunnels through agents' networks, as of HTTPS", ""},
		"scopefs-stores":  {"stores of agents", ""},
		"scopefs-export":  {"streams, exports and fleets", ""},
		"scopefs-console": {"the console", ""},
		"scopefs-csi":     {"volumes of Kubernetes", ""},
	}
}

// Build returns which build a program is of: the tag scopefs_VERSION that make build builds all programs with, "" without one. With
// nil it is this program.
func Build(program *os.File) (string, error) {
	info, ok := debug.ReadBuildInfo()
	if program != nil {
		var err error
		if info, err = buildinfo.ReadFile(fmt.Sprintf("/proc/self/fd/%d", program.Fd())); err != nil {
			return "", err
		}
	} else if !ok {
		return "", errors.New("no build information")
	}
	for _, s := range info.Settings {
		if s.Key != "-tags" {
			continue
		}
		for tag := range strings.SplitSeq(s.Value, ",") {
			if version, ok := strings.CutPrefix(tag, "scopefs_"); ok {
				return version, nil
			}
		}
	}
	return "", nil
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

// Exec executes a program in place of this one: see Open, execve(2). It returns only an error.
func Exec(name string, args ...string) error {
	program, err := Open(name)
	if err != nil {
		return err
	}
	defer program.Close()
	return fmt.Errorf("execute %q: %w", program.Name(), unix.Exec(program.Name(), append([]string{name}, args...), os.Environ()))
}
