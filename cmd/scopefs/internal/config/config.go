// Package config says where a scopefs host keeps its things and what its
// operator has set for all agents.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope/agents"
)

// Paths are the directories of one host.
type Paths struct {
	Base  string // agents/, agents.d/ and scopefs.yaml
	State string // the audit log; default {base}/state
	Run   string // control socket and mount points; default {base}/run
}

// Complete makes the paths absolute and fills in the defaults. Base must be an
// existing directory.
func (p Paths) Complete() (Paths, error) {
	if p.Base == "" {
		return p, errors.New("no base directory: give --base DIR or set SCOPEFS_BASE")
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
	return p, nil
}

// Audit is the directory of the log.
func (p Paths) Audit() string { return filepath.Join(p.State, "audit") }

// Socket is the operator's control socket.
func (p Paths) Socket() string { return filepath.Join(p.Run, "control.sock") }

// ToolSocket is the socket of an agent's tools.
func (p Paths) ToolSocket(id string) string { return filepath.Join(p.Run, "mcp", id+".sock") }

// Views is the directory of the mount points.
func (p Paths) Views() string { return filepath.Join(p.Run, "views") }

// The defaults of the log: one agent that does its worst cannot fill it within the time that events are kept, so that it
// cannot push out what was recorded of others.
const (
	logKeep     = 30 * 24 * time.Hour
	logSize     = 10 << 30
	logAgentDay = 256 << 20
)

func logOf(l agents.LogLimits) agents.LogLimits {
	return agents.LogLimits{Keep: cmp.Or(l.Keep, logKeep), Size: cmp.Or(l.Size, logSize), AgentDay: cmp.Or(l.AgentDay, logAgentDay)}
}

// Load reads {base}/scopefs.yaml and fills in the limits of the log. A missing
// file sets nothing. An unknown key is an error, and so is exposing what is not
// for agents. here has the tools that there are, and checks what the file names on this host, for a process that
// starts sandboxes on it.
func Load(p Paths, here agents.HostChecks) (agents.HostFile, error) {
	text, err := os.ReadFile(filepath.Join(p.Base, "scopefs.yaml"))
	if errors.Is(err, fs.ErrNotExist) {
		return agents.HostFile{Host: agents.Host{Tools: here.Tools}, Log: logOf(agents.LogLimits{})}, nil
	}
	if err != nil {
		return agents.HostFile{}, err
	}
	h, err := agents.ParseHost(text, agents.HostChecks{Tools: here.Tools, Runner: here.Runner, Expose: func(path string) error {
		err := p.private(path)
		if err == nil && here.Expose != nil {
			err = here.Expose(path)
		}
		return err
	}})
	h.Log = logOf(h.Log)
	return h, err
}

// private fails for a path that leads to agents' files, definitions, the log or
// the socket, or that holds them.
func (p Paths) private(path string) error {
	shown := real(path)
	for _, own := range []string{filepath.Join(p.Base, "agents"), filepath.Join(p.Base, "agents.d"), filepath.Join(p.Base, "extensions.d"),
		filepath.Join(p.Base, "scopefs.yaml"), p.State, p.Run} {
		own = real(own)
		if strings.HasPrefix(shown+"/", own+"/") || strings.HasPrefix(own+"/", strings.TrimSuffix(shown, "/")+"/") {
			return fmt.Errorf("%q would show %s to agents: remove it", path, own)
		}
	}
	return nil
}

// real is a path without links, as far as it exists.
func real(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return filepath.Clean(path)
}
