// Package programs knows agent programs: how each runs in a sandbox, where it is on this
// host, and which files a sandbox must show to run it.
package programs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Found is a program on this host.
type Found struct {
	File   string   // where the links lead
	Path   []string // directories of its interpreter, for PATH
	Expose []string // what a sandbox must show beside the system's directories
}

// ErrNotFound is the error of a program that is not in PATH.
var ErrNotFound = errors.New("is not in PATH")

// system are the directories that every sandbox shows.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// maxSteps limits the interpreters and version managers between a name and a program.
const maxSteps = 8

// Find looks a command up in PATH, as a shell does, and follows what it finds: links, the
// shims of asdf, mise, pyenv and volta, and the interpreter of a script. It neither reads,
// executes nor shows a file if foreign reports true, for example because agents may write it.
func Find(ctx context.Context, command string, foreign func(name string) bool) (Found, error) {
	found, err := find(ctx, command, foreign)
	for _, name := range found.Expose {
		if err == nil {
			err = Showable(command, name, foreign)
		}
	}
	if err != nil {
		return Found{}, err
	}
	return found, nil
}

// Showable returns an error for what no sandbox shows of a program: files that agents may write, and the home directory.
func Showable(command, name string, foreign func(name string) bool) error {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	if foreign(name) || foreign(real) {
		return fmt.Errorf("%s needs %s, which agents may write: install it elsewhere", command, name)
	}
	if home, err := os.UserHomeDir(); err == nil {
		if at, err := filepath.EvalSymlinks(home); err == nil && strings.HasPrefix(at+"/", real+"/") {
			return fmt.Errorf("%s needs %s, which holds your home directory: install it in a directory of its own", command, name)
		}
	}
	return nil
}

func find(ctx context.Context, command string, foreign func(name string) bool) (found Found, err error) {
	name, err := lookup(command, foreign)
	var more string // an interpreter that the program starts itself
	for range maxSteps {
		if err != nil || !filepath.IsAbs(name) {
			return Found{}, fmt.Errorf("%s %w", command, ErrNotFound)
		}
		var real string
		if real, err = filepath.EvalSymlinks(name); err != nil {
			return Found{}, err
		}
		if foreign(real) {
			return Found{}, fmt.Errorf("%s leads to %s, which agents may write: install it elsewhere", command, real)
		}
		start, err := head(real)
		if err != nil {
			return Found{}, err
		}
		if manager := managerOf(real, start); manager != "" {
			if manager, err = lookup(manager, foreign); err == nil {
				name, err = which(ctx, manager, filepath.Base(name))
			}
			if err != nil {
				return Found{}, err
			}
			continue
		}
		if found.File == "" {
			if found.File = real; !ofSystem(real) {
				found.Expose = append(found.Expose, packageOf(real, start))
			}
			more = startedBy(start)
		} else {
			found.addInterpreter(name)
		}
		next := interpreterOf(start)
		if next == "" {
			next, more = more, ""
		}
		if next == "" {
			return found, nil
		}
		name, err = lookup(next, foreign)
		if err == nil && !filepath.IsAbs(next) { // found by PATH, which a sandbox has otherwise
			var dir string
			dir, err = filepath.EvalSymlinks(filepath.Dir(name))
			name = filepath.Join(dir, filepath.Base(name))
		}
		switch {
		case err != nil && filepath.IsAbs(next):
			return Found{}, fmt.Errorf("%s needs its interpreter: %w", command, err)
		case err != nil:
			return Found{}, fmt.Errorf("%s needs %s, which %v", command, next, ErrNotFound)
		}
	}
	return Found{}, fmt.Errorf("%s leads through more than %d interpreters", command, maxSteps)
}

// addInterpreter adds what a sandbox must show of an interpreter. The kernel and Python read its links.
func (f *Found) addInterpreter(name string) {
	first := name
	for range maxSteps {
		if !ofSystem(name) && !strings.HasPrefix(name, "/etc/") {
			for _, path := range interpreterFiles(name) {
				if !slices.ContainsFunc(f.Expose, func(dir string) bool { return strings.HasPrefix(path+"/", dir+"/") }) {
					f.Expose = append(f.Expose, path)
				}
			}
			if dir := filepath.Dir(first); !slices.Contains(f.Path, dir) {
				f.Path = append(f.Path, dir)
			}
		}
		target, err := os.Readlink(name)
		if err != nil {
			return
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(name), target)
		}
		name = target
	}
}

func ofSystem(name string) bool {
	return slices.ContainsFunc(system, func(dir string) bool { return strings.HasPrefix(name, dir+"/") })
}

// lookup is exec.LookPath without the directories of PATH that are foreign.
func lookup(command string, foreign func(string) bool) (string, error) {
	if strings.Contains(command, "/") {
		real, err := filepath.EvalSymlinks(command)
		if err == nil && foreign(real) {
			err = fmt.Errorf("%s is a file that agents may write", command)
		}
		return command, err
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || !filepath.IsAbs(dir) || foreign(real) {
			continue
		}
		if name, err := exec.LookPath(filepath.Join(dir, command)); err == nil {
			return name, nil
		}
	}
	return "", exec.ErrNotFound
}

// head returns the first bytes of a program, which must be a regular file.
func head(name string) (string, error) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file: install the program again", name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO that takes its place does not block
	if err != nil {
		return "", err
	}
	defer f.Close()
	start := make([]byte, 4096)
	n, _ := f.Read(start)
	return string(start[:n]), nil
}

// interpreterOf returns the interpreter that the first line of a script names (execve(2)),
// or the program that env(1) would start there.
func interpreterOf(start string) string {
	if !strings.HasPrefix(start, "#!") {
		return ""
	}
	line, _, _ := strings.Cut(start[2:], "\n")
	words := strings.Fields(line)
	if len(words) == 0 {
		return ""
	}
	if filepath.Base(words[0]) != "env" {
		return words[0]
	}
	for _, word := range words[1:] {
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			return word
		}
	}
	return ""
}

// managerOf returns the version manager that chooses the program when a file runs.
func managerOf(real, start string) string {
	switch filepath.Base(real) {
	case "mise":
		return "mise"
	case "volta-shim":
		return "volta"
	}
	scan := bufio.NewScanner(strings.NewReader(start))
	for scan.Scan() {
		words := strings.Fields(scan.Text())
		if len(words) < 3 || words[0] != "exec" || words[2] != "exec" {
			continue
		}
		switch manager := strings.Trim(words[1], `"`); filepath.Base(manager) {
		case "asdf", "pyenv":
			return manager
		}
	}
	return ""
}

// startedBy returns node if a script starts it by that name, as those of npm and pnpm do that stand for a package.
func startedBy(start string) string {
	if !strings.HasPrefix(start, "#!") {
		return ""
	}
	for line := range strings.Lines(start) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "exec" && words[1] == "node" {
			return words[1]
		}
	}
	return ""
}

// which asks a version manager for the program of a name. The manager reads the settings
// of HOME: those of a project are the agent's to write.
func which(ctx context.Context, manager, name string) (string, error) {
	out, err := output(ctx, manager, "which", name)
	if err != nil {
		return "", fmt.Errorf("%s which %s: %w: choose a version for your home directory", filepath.Base(manager), name, err)
	}
	return out, nil
}

// outputTime bounds what output runs.
const outputTime = 10 * time.Second

// output runs a program of the host in the home directory, and returns what it prints.
func output(ctx context.Context, program string, words ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, outputTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, words...)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	if home, err := os.UserHomeDir(); err == nil {
		cmd.Dir = home
	}
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}
