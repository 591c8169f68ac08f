package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
)

// userDaemon runs the daemon of an ordinary user in namespaces of its own, and waits for
// it. The daemon ends with this process, however that ends.
func (a *app) userDaemon(ctx context.Context, o daemonOptions) error {
	p, err := a.userPaths()
	if err != nil {
		return err
	}
	ours, theirs, err := newLeash()
	if err != nil {
		return err
	}
	defer ours.Close()
	flags := []string{"--user"}
	if o.http != "" {
		flags = append(flags, "--http", o.http)
	}
	if o.trace {
		flags = append(flags, "--trace")
	}
	cmd := namespaced(p, theirs, flags...)
	cmd.Stderr = os.Stderr
	// The watchdog's notifications come from the daemon: sd_watchdog_enabled(3).
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "WATCHDOG_PID=") })
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return noNamespaces(err)
	}
	defer context.AfterFunc(ctx, func() {
		stop() // a second signal ends us at once
		ours.Close()
	})()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &exitError{max(exit.ExitCode(), exitFailed), nil} // it has said why
	}
	return err
}

// userPaths returns the directories of a user's daemon, and makes those that are missing.
func (a *app) userPaths() (config.Paths, error) {
	if os.Geteuid() == 0 {
		return config.Paths{}, &exitError{exitUsage, errors.New("--user is for an ordinary user: for root, scopefs daemon")}
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
		return own, &exitError{exitUsage, fmt.Errorf("daemon --user: %w", err)}
	}
	a.flags.Base = own.Base
	if a.flags.State == "" {
		a.flags.State = own.State
	}
	if a.flags.Run == "" {
		a.flags.Run = own.Run
	}
	return a.paths()
}
