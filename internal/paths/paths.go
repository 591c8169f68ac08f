// Package paths finds the directories of a scopefs host, of a user and of a project. It reads no definition.
package paths

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
)

// The names of files of the operator.
const (
	HostFile       = "scopefs.yaml"  // of a base or of the user's settings
	RepositoryFile = ".scopefs.yaml" // of a project's repository, which proposes keys
)

// Paths are the directories of one host, or of one user.
type Paths struct {
	Base  string // agents/, agents.d/ and scopefs.yaml
	State string // the audit log; default {base}/state
	Run   string // control socket and mount points; default {base}/run
	User  string // the settings of the user for all bases of his; "": the base is no user's. Complete sets it

	Proposal string // the text of a RepositoryFile that counts in place of the trusted one; "" is the trusted one
}

// Host are the directories of the daemon that the package installs, for all users.
var Host = Paths{Base: "/var/lib/scopefs", State: "/var/lib/scopefs-state", Run: "/run/scopefs"}

// OfUser returns the directories of an ordinary user's daemon, by the XDG base directory
// specification. Run is "" in a session without XDG_RUNTIME_DIR.
func OfUser() (p Paths, err error) {
	if p.Base, err = xdg("XDG_DATA_HOME", ".local/share"); err != nil {
		return p, err
	}
	state, err := StateHome()
	if err != nil {
		return p, err
	}
	p.Base, p.State = filepath.Join(p.Base, "scopefs"), filepath.Join(state, "scopefs", "daemon") // beside projects
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		p.Run = filepath.Join(run, "scopefs")
	}
	return p, nil
}

// xdg returns the directory that a variable names, or its default below the home
// directory. A relative one is invalid, and so is none: XDG Base Directory Specification.
func xdg(variable, def string) (string, error) {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w: set HOME, or %s to a directory", err, variable)
	}
	return filepath.Join(home, filepath.FromSlash(def)), nil
}

// StateHome returns the directory of the user's state, $XDG_STATE_HOME.
func StateHome() (string, error) { return xdg("XDG_STATE_HOME", ".local/state") }

// usual returns the directories for commands without a base: those of the user, if the
// user has a base, else those of the host, if it has one.
func usual() (Paths, error) {
	own, err := OfUser()
	if _, no := os.Stat(own.Base); os.Geteuid() != 0 && err == nil && no == nil {
		return own, nil
	}
	if _, no := os.Stat(Host.Base); no == nil {
		return Host, nil
	}
	return Paths{}, ErrNoBase
}

// ErrNoBase is the error of Complete where neither a base is given nor the user or the host has one.
var ErrNoBase = errors.New("no base directory: give --base DIR or set SCOPEFS_BASE, or --dir DIR for a project")

// Complete makes the paths absolute and sets the defaults. Without a Base they are those
// of the user's daemon, or of the host's. It returns an error if Base is not an existing
// directory.
func (p Paths) Complete() (Paths, error) {
	if p.Base == "" {
		own, err := usual()
		if err != nil {
			return p, err
		}
		p = Paths{Base: own.Base, State: cmp.Or(p.State, own.State), Run: cmp.Or(p.Run, own.Run)}
	}
	info, err := os.Stat(p.Base)
	if errors.Is(err, fs.ErrNotExist) {
		return p, fmt.Errorf("base %q does not exist: create it with agents.d/ in it", p.Base)
	}
	if err != nil {
		return p, fmt.Errorf("base: %w", err)
	}
	if !info.IsDir() {
		return p, fmt.Errorf("base %q is not a directory", p.Base)
	}
	for _, d := range []struct {
		path *string
		def  string
	}{{&p.Base, ""}, {&p.State, "state"}, {&p.Run, "run"}} {
		if *d.path == "" {
			*d.path = filepath.Join(p.Base, d.def)
		}
		if *d.path, err = filepath.Abs(*d.path); err != nil {
			return p, err
		}
	}
	p.User = userOf(p.Base)
	return p, nil
}

// Audit returns the directory of the audit log.
func (p Paths) Audit() string { return filepath.Join(p.State, "audit") }

// Socket returns the path of the operator's control socket.
func (p Paths) Socket() string { return filepath.Join(p.Run, "control.sock") }

// Holder returns the socket of the process that keeps views for the next daemon.
func (p Paths) Holder() string { return filepath.Join(p.Run, "holder.sock") }

// Stop returns the command that ends the daemon, and what lives on without it.
func (p Paths) Stop() string {
	words := []string{"scopefs", "daemon", "--stop", "--base", p.Base}
	if p.Run != filepath.Join(p.Base, "run") {
		words = append(words, "--run", p.Run)
	}
	return cmp.Or(printable.Command(words...), "scopefs daemon --stop")
}

// UserDaemon returns the path of the socket of the user's daemon, in the run directory of the user's own base.
func (p Paths) UserDaemon() string { return filepath.Join(p.Run, "user.sock") }

// Web is the directory of sessions over HTTP: see outlive.Web.
func (p Paths) Web() string { return filepath.Join(p.Run, "web") }

// ToolSocket returns the path of the socket of an agent's tools.
func (p Paths) ToolSocket(id string) string { return filepath.Join(p.Run, "mcp", id+".sock") }

// UserSocket returns the path of the socket that a daemon of root has for an agent's user.
func (p Paths) UserSocket(uid uint32) string {
	return filepath.Join(p.Users(), strconv.FormatUint(uint64(uid), 10)+".sock")
}

// Users returns the directory of the users' sockets.
func (p Paths) Users() string { return filepath.Join(p.Run, "users") }

// Homes returns the directory of the HOME directories of agents.
func (p Paths) Homes() string { return filepath.Join(p.State, "home") }

// Home returns the directory that is HOME in an agent's sandboxes.
func (p Paths) Home(id scope.ID) string { return filepath.Join(p.Homes(), string(id)) }

// Histories returns the directory of the histories of agents, except of those with a history.dir.
func (p Paths) Histories() string { return filepath.Join(p.Base, "history") }

// History returns the path of an agent's history, or of what its branch holds. dir is the history.dir of the definition; "": it has none.
func (p Paths) History(id scope.ID, dir string) string {
	return filepath.Join(cmp.Or(dir, p.Histories()), string(id))
}

// Views returns the directory of the mount points.
func (p Paths) Views() string { return filepath.Join(p.Run, "views") }

// SettingsStamp returns a text that differs when scopefs.yaml of the base or of the user has changed.
func (p Paths) SettingsStamp() (stamp string) {
	for _, dir := range []string{p.Base, p.User} {
		if info, err := os.Stat(filepath.Join(dir, HostFile)); dir != "" && err == nil {
			st := info.Sys().(*syscall.Stat_t)
			stamp += fmt.Sprintln(st.Dev, st.Ino, st.Size, st.Ctim, st.Mtim)
		} else {
			stamp += "none\n"
		}
	}
	return stamp
}

// Own returns what is in the base directory: agents' files, definitions and what they name.
func (p Paths) Own() (own []string) {
	for _, name := range []string{"agents", "agents.d", "extensions.d", "presets.d", "protect.d", "programs.d",
		"skills", "activities.d", "history", "scopefs.yaml"} {
		own = append(own, filepath.Join(p.Base, name))
	}
	return own
}

// Meet reports whether two paths are one, or one of them is below the other.
func Meet(a, b string) bool {
	a, b = strings.TrimSuffix(Real(a), "/")+"/", strings.TrimSuffix(Real(b), "/")+"/"
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// Real returns path with its symbolic links resolved, or a clean path if that fails.
func Real(path string) string {
	if to, err := Resolve(path); err == nil {
		return to
	}
	return filepath.Clean(path)
}
