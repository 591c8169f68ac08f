package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime/debug"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/daemon"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
)

type daemonOptions struct {
	leash int    // descriptor: the daemon ends when it does, and says there when it is ready
	only  string // mount this agent alone
	trace bool
	http  string
}

func (a *app) daemonCmd() *cobra.Command {
	var o daemonOptions
	c := &cobra.Command{
		Use:   "daemon --base DIR",
		Short: "mount the views of all agents and run their sandboxes",
		Long: `Mounts the view of every agent in BASE/agents.d/ at RUN/views/<id>, keeps it
mounted, and answers on RUN/control.sock, also while views are still starting. On
SIGTERM or SIGINT it ends the sandboxes, unmounts the views and exits. Under
systemd it says when it answers (sd_notify), how far it is, and, with WatchdogSec,
that it is not stuck.

Exit status: 3 when nothing can be mounted on this host (told in one line), else as
of scopefs.`,
		Args: args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.daemon(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.trace, "trace", false, "tell on standard error of every request that the kernel makes of a view")
	c.Flags().StringVar(&o.http, "http", "", "serve MCP at this ADDRESS:PORT of the loopback interface (see scopefs help token)")
	c.Flags().IntVar(&o.leash, "leash", 0, "")
	c.Flags().StringVar(&o.only, "only", "", "")
	_ = c.Flags().MarkHidden("leash")
	_ = c.Flags().MarkHidden("only")
	return c
}

func (a *app) daemon(ctx context.Context, o daemonOptions) error {
	p, err := a.paths()
	if err != nil {
		return err
	}
	if o.leash == 0 && os.Geteuid() != 0 {
		return &exitError{exitUsage, errors.New("scopefs daemon needs root; run, mcp and call do without a daemon")}
	}
	if o.http != "" {
		if err := daemon.CheckHTTP(o.http); err != nil {
			return &exitError{exitUsage, err}
		}
	}
	if err := mount.Check(); err != nil {
		return err
	}
	// What our parent left open is not for views and sandboxes: close_range(2).
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("inherited descriptors: %w", err)
	}
	// That nobody reads what we log is no reason to end (os/signal, SIGPIPE). Not
	// ignored, which what we start would inherit.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	level := slog.LevelInfo
	ready, notify := func() { notifySystemd(systemd.SdNotifyReady) }, notifySystemd
	watchdog, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("watchdog: %w: correct WATCHDOG_USEC", err)
	}
	if o.leash > 0 {
		level = slog.LevelError
		leash := os.NewFile(uintptr(o.leash), "leash")
		unix.CloseOnExec(o.leash)
		ready, notify, watchdog = func() { fmt.Fprintln(leash, "ready") }, nil, 0
		go func() {
			_, _ = io.Copy(io.Discard, leash)
			stop()
		}()
		// Who started us may have been killed, and left its directory to us.
		defer daemon.RemoveRun(p)
		// A mount namespace of our own: what we mount, nobody else sees.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
	}
	// Our heap is small and a call makes much garbage: collected at the default of
	// 100, one call in five would wait for it.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(512 << 20) // beyond it, as soon as need be
	d, err := daemon.New(daemon.Options{
		Notify: notify, Watchdog: watchdog,
		Paths: p, Only: scope.ID(o.only), Trace: o.trace, HTTP: o.http, Headless: o.leash > 0, Version: Version,
		Logger: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		return err
	}
	return d.Run(ctx, ready)
}

// notifySystemd tells a state to who started us, if it is a service manager.
func notifySystemd(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		slog.Error("sd_notify", "err", err)
	}
}
