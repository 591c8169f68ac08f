package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
)

// userDaemon runs the daemon of an ordinary user until it ends.
func (a *app) userDaemon(ctx context.Context, o daemonOptions) error {
	p, err := a.userPaths()
	if err != nil {
		return err
	}
	var flags []string
	if o.http != "" {
		flags = append(flags, "--http", o.http)
	}
	if o.metrics != "" {
		flags = append(flags, "--metrics", o.metrics)
	}
	if o.trace {
		flags = append(flags, "--trace")
	}
	return embedded.RunUser(ctx, p, flags...)
}

// userPaths returns the directories of a user's daemon, and makes those that are missing.
func (a *app) userPaths() (config.Paths, error) {
	if os.Geteuid() == 0 {
		return config.Paths{}, exit.Usagef("--user is for an ordinary user: for root, scopefs daemon")
	}
	if a.flags.Base != "" || a.dir != "" {
		return a.paths()
	}
	own, err := config.OfUser()
	switch {
	case err != nil:
	case own.Run == "" && a.flags.Run == "":
		err = errors.New("XDG_RUNTIME_DIR is not set: log in with a session (pam_systemd), or give --run DIR")
	default:
		err = os.MkdirAll(filepath.Join(own.Base, "agents.d"), 0o700)
	}
	if err != nil {
		return own, exit.Usagef("daemon --user: %w", err)
	}
	a.flags = config.Paths{Base: own.Base, State: cmp.Or(a.flags.State, own.State), Run: cmp.Or(a.flags.Run, own.Run)}
	return a.paths()
}
