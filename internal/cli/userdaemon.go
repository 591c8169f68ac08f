package cli

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/daemon"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
)

// userDaemon runs the daemon of an ordinary user until it ends: of one base if one is given, else of all.
func (a *app) userDaemon(ctx context.Context, o daemonOptions) error {
	if os.Geteuid() == 0 {
		return exit.Usagef("--user is for an ordinary user: for root, scopefs daemon")
	}
	one := a.Flags.Base != "" || a.Dir != ""
	if o.stop && !one {
		return bases.Stop(ctx)
	}
	var flags []string
	if o.http != "" {
		flags = append(flags, "--http", o.http)
	}
	if o.metrics != "" {
		flags = append(flags, "--metrics", o.metrics)
	}
	if o.console.Listen != "" {
		flags = append(flags, "--console", o.console.Listen)
	}
	if o.console.Cert != "" {
		flags = append(flags, "--console-tls-cert", o.console.Cert, "--console-tls-key", o.console.Key)
	}
	if o.trace {
		flags = append(flags, "--trace")
	}
	if one {
		p, err := a.paths()
		if err != nil {
			return err
		}
		if o.stop {
			return daemon.Stop(p)
		}
		return embedded.RunUser(ctx, p, flags...)
	}
	listeners, err := activation.Listeners()
	if err != nil || len(listeners) > 1 {
		return exit.Usagef("daemon --user: LISTEN_FDS: want one unix socket: correct the socket unit")
	}
	all := bases.Options{Idle: cmp.Or(o.idle, time.Minute), Stderr: a.err, Notify: notifySystemd}
	if len(listeners) == 1 {
		all.Listener = listeners[0]
	}
	if all.Watchdog, err = systemd.SdWatchdogEnabled(false); err != nil {
		return err
	}
	onDemand := (o.onDemand || all.Listener != nil) && o.http+o.metrics+o.console.Listen == ""
	if all.Own, err = a.ownPaths(!onDemand); err != nil {
		return exit.Usagef("daemon --user: %w", err)
	}
	if !onDemand {
		all.Keep = func(ctx context.Context) error { return embedded.RunUser(ctx, all.Own, flags...) }
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer context.AfterFunc(ctx, stop)() // a second signal ends us at once
	return bases.Serve(ctx, all)
}

// ownPaths returns the directories of the user's own base, which need not exist, or are made.
func (a *app) ownPaths(existing bool) (config.Paths, error) {
	own, err := paths.OfUser()
	own.State, own.Run = cmp.Or(a.Flags.State, own.State), cmp.Or(a.Flags.Run, own.Run)
	switch {
	case err != nil:
	case own.Run == "":
		err = errors.New("XDG_RUNTIME_DIR is not set: log in with a session (pam_systemd), or give --run DIR")
	case existing:
		if err = os.MkdirAll(filepath.Join(own.Base, "agents.d"), 0o700); err == nil {
			return own.Complete()
		}
	}
	return own, err
}

// logs returns the directories of the logs of the user's projects and of his own base.
func (a *app) logs() (dirs []string, err error) {
	if a.Dir != "" || a.Given("base") {
		return nil, exit.Usagef("--all and --base or --dir: give one of them")
	}
	all := paths.Projects()
	if own, err := paths.OfUser(); err == nil {
		all = append(all, own)
	}
	for _, p := range all {
		dirs = append(dirs, p.Audit())
	}
	return dirs, nil
}
