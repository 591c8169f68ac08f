// Package config reads the operator's settings for all agents: scopefs.yaml.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
)

// The defaults of the log. At its daily limit, one agent cannot fill the log within the time that events are kept,
// and so cannot evict events of others.
const (
	logKeep     = 30 * 24 * time.Hour
	logSize     = 10 << 30
	logAgentDay = 256 << 20
)

func logOf(l LogLimits) LogLimits {
	return LogLimits{Keep: cmp.Or(l.Keep, logKeep), Size: cmp.Or(l.Size, logSize),
		AgentDay: cmp.Or(l.AgentDay, logAgentDay), Anchors: l.Anchors, Streams: l.Streams}
}

// Load reads scopefs.yaml of the user's settings and of the base, see parse, and sets the defaults of the log. If neither
// exists, Load returns only the defaults. It returns an error for an unknown key, and for an exposed path that agents must not
// see. here has the tools of this program, and checks the paths that the files name, for a process that starts sandboxes here.
func Load(p Paths, here Checks) (Settings, error) {
	user, err := userText(p)
	if err != nil {
		return Settings{}, err
	}
	texts := append(repositoryText(p), user...)
	var own []byte
	if err = fs.ErrNotExist; p.Base != "" {
		own, err = os.ReadFile(filepath.Join(p.Base, paths.HostFile))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && texts == nil:
		return Settings{Host: agents.Host{Tools: here.Tools, User: p.User, Foreign: yamlProcess{}}, Log: logOf(LogLimits{}), Grace: usualGrace}, nil
	case err == nil:
		texts = append(texts, text{paths.HostFile, own})
	case !errors.Is(err, fs.ErrNotExist):
		return Settings{}, err
	}
	h, err := parse(texts, Checks{Tools: here.Tools, Stores: here.Stores, Runner: here.Runner, Preset: func(name string) error { return preset(p, name) }, Expose: func(path string, sockets bool) error {
		err := private(p, path)
		if err == nil && here.Expose != nil {
			err = here.Expose(path, sockets)
		}
		return err
	}})
	if wrong := checkAnchors(p, h.Log); err == nil && wrong != nil {
		at := h.From["log.anchors"]
		return Settings{}, fields.ErrorAt(at.File, at.Line, "", wrong)
	}
	h.Log, h.User, h.Signed, h.Foreign = logOf(h.Log), p.User, h.Fleet.Signed(p.State), yamlProcess{}
	return h, err
}

// preset returns an error for the name of a preset that does not exist.
func preset(p Paths, name string) error {
	all, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definitions' to report
	if all[name] == nil {
		return fmt.Errorf("there is no preset %q: scopefs presets lists them", name)
	}
	return nil
}

// private returns an error for a path that shows one of Own, the state or the sockets.
func private(p Paths, path string) error {
	private := append(p.Own(), p.State, p.Run)
	if user, err := paths.UserDir(); err == nil {
		if _, err := os.Stat(user); err == nil { // before, a directory that will hold it may be shown
			private = append(private, user)
		}
	}
	for _, own := range private {
		if paths.Meet(path, own) {
			return fmt.Errorf("%q would show %s to agents: remove it", path, paths.Real(own))
		}
	}
	return nil
}
