package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/daemon"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/slack"
	"github.com/scopefs/scopefs/internal/version"
	"github.com/scopefs/scopefs/scope"
)

// A daemon with onlyFlag serves one command, which ends with the daemon's status.
const daemonName, onlyFlag = "daemon", "only"

type daemonOptions struct {
	user  bool   // serve the user who starts it, in namespaces
	leash int    // descriptor: the daemon writes "ready" to it, and exits at its EOF
	only  string // mount this agent alone
	bare  bool   // do not mount it, either
	trace bool
	http  string
	idle  time.Duration

	metrics        string
	console        console.Options
	onDemand, stop bool // of the user's daemon: see package bases
}

func (a *app) daemonCmd() *cobra.Command {
	var o daemonOptions
	c := &cobra.Command{
		Use:   daemonName + " --base DIR",
		Short: "mount the views of all agents and run their sandboxes",
		Long: `Mounts the view of every agent in BASE/agents.d/ at RUN/views/<id>, keeps it
mounted, and answers on RUN/control.sock, also while views are still starting. Under
systemd it reports readiness, progress and, with WatchdogSec, that it is not stuck
(sd_notify(3)).

Clients of tools connect to RUN/mcp/AGENT.sock. --http serves them on TCP, too, with
tokens (scopefs token). In place of it a socket of systemd may be named http
(FileDescriptorName=, scopefs-http.socket): systemd keeps its port while no daemon runs.

A port of --http, --metrics or --console that another program has is an error in
scopefs ps. The daemon does everything else, and takes the port when it is free.

Views and the sandboxes of run outlive a daemon of root that gets SIGTERM or is killed. The next
one takes them over; without one they end after grace of scopefs.yaml, 60 s (0s: with the daemon).
--stop, SIGINT and SIGHUP end everything at once.

With --user an ordinary user runs the daemon for agents of his own. Without --base it
uses $XDG_DATA_HOME/scopefs, $XDG_STATE_HOME/scopefs/daemon and
$XDG_RUNTIME_DIR/scopefs, and makes the first. Every other command of the user finds it there. Views are mounted in
namespaces of the daemon: sandboxes have them, other programs of the user do not.

That daemon serves the projects of the user as well, each by a process of its own, from
the first command with --dir on until nothing has used the project for --idle. run, mcp
and call start it if XDG_RUNTIME_DIR is set; it then ends with the last project. --user --stop
ends it. A socket of systemd starts it too (scopefs.socket of the user's units).

Exit status: 78 if the command line or scopefs.yaml is refused, 3 if nothing can be
mounted on this host (with the reason in one line), otherwise as for scopefs. The
units restart the daemon after every other status than these two.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return a.daemon(c.Context(), o) },
	}
	c.Flags().BoolVar(&o.trace, "trace", false, "log every FUSE request on standard error")
	c.Flags().StringVar(&o.http, "http", "", "serve MCP also at this ADDRESS:PORT of the loopback interface (see scopefs help token)")
	c.Flags().StringVar(&o.metrics, "metrics", "",
		"serve metrics at http://ADDRESS:PORT/metrics of the loopback interface (see scopefs help metrics)")
	c.Flags().StringVar(&o.console.Listen, "console", "", "serve the web page at this ADDRESS:PORT, or unix:PATH (see scopefs help console)")
	c.Flags().StringVar(&o.console.Cert, "console-tls-cert", "",
		"`FILE` with the web page's certificate and its chain, PEM: an address off the loopback interface needs one")
	c.Flags().StringVar(&o.console.Key, "console-tls-key", "", "`FILE` with the certificate's key, PEM")
	c.Flags().BoolVar(&o.user, "user", false, "serve this user's own agents, without root")
	c.Flags().DurationVar(&o.idle, "idle", 0, "with --user: end the daemon of a project that nothing has used for so long (default 1m)")
	c.Flags().BoolVar(&o.stop, "stop", false,
		"end the daemon, and what lives on without it; with --user, the user's daemon with all sessions of his projects")
	c.Flags().BoolVar(&o.onDemand, bases.OnDemand, false, "")
	_ = c.Flags().MarkHidden(bases.OnDemand)
	c.Flags().IntVar(&o.leash, "leash", 0, "")
	c.Flags().StringVar(&o.only, onlyFlag, "", "")
	_ = c.Flags().MarkHidden("leash")
	c.Flags().BoolVar(&o.bare, embedded.Unmounted, false, "")
	_ = c.Flags().MarkHidden(onlyFlag)
	_ = c.Flags().MarkHidden(embedded.Unmounted)
	return c
}

func (a *app) daemon(ctx context.Context, o daemonOptions) error {
	slack.Coarse()
	if !o.user && o.idle > 0 {
		return exit.Usagef("--idle is for a user's daemon: add --user")
	}
	if o.user && o.leash == 0 {
		return a.userDaemon(ctx, o)
	}
	p, err := a.paths()
	if err != nil {
		return err
	}
	if o.stop {
		return daemon.Stop(p)
	}
	if o.leash == 0 && os.Geteuid() != 0 {
		return exit.Usagef("scopefs daemon needs root; --user serves your own agents; run, mcp and call do without a daemon")
	}
	for flag, address := range map[string]string{"http": o.http, "metrics": o.metrics} {
		if address == "" {
			continue
		}
		if err := loopback.Check(flag, address); err != nil {
			return exit.With(exit.Usage, err)
		}
	}
	if o.console.Listen != "" {
		if err := o.console.Check("console", "console-tls-cert", "console-tls-key"); err != nil {
			return exit.With(exit.Usage, err)
		}
	}
	inherited, err := inheritedHTTP()
	if err == nil && inherited != nil && o.http != "" {
		err = errors.New("--http and a socket of systemd (LISTEN_FDS): give one of them")
	}
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	if err := mount.Check(); err != nil {
		return err
	}
	// Views and sandboxes must not inherit descriptors of our parent: close_range(2).
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("inherited descriptors: %w", err)
	}
	// A closed standard error must not end the daemon (os/signal, SIGPIPE). The signal
	// is caught and not ignored, because child processes inherit an ignored signal. The other
	// two may be ignored by the command that has started this daemon (internal/terminal).
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU)
	ctx, end := daemon.Signals(ctx)
	defer end()
	level := slog.LevelInfo
	ready, notify := func() { notifySystemd(systemd.SdNotifyReady) }, notifySystemd
	watchdog, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("watchdog: %w: correct WATCHDOG_USEC", err)
	}
	var started atomic.Pointer[daemon.Daemon]
	if o.leash > 0 {
		leash := os.NewFile(uintptr(o.leash), "leash")
		unix.CloseOnExec(o.leash)
		go func() {
			_, _ = io.Copy(io.Discard, leash)
			if d := started.Load(); d != nil && !o.user {
				d.Outlast(ctx, func() { fmt.Fprintln(leash, embedded.Used) })
			}
			end()
		}()
		// Our mounts must not propagate out of our mount namespace. A daemon that lives long
		// receives the host's: it would keep what the host unmounts.
		propagation := uintptr(unix.MS_SLAVE)
		told := ready
		ready = func() {
			fmt.Fprintln(leash, "ready")
			if o.user {
				told()
			}
		}
		if !o.user {
			level = slog.LevelError
			notify, watchdog = nil, 0
			// The command that started us may have been killed before it removed the directory.
			defer embedded.RemoveRun(p)
			propagation = unix.MS_PRIVATE
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("mount propagation: %w", err)
		}
	}
	collect(o.only != "")
	d, err := daemon.New(daemon.Options{
		Notify: notify, Watchdog: watchdog, Idle: o.idle,
		Paths: p, Only: scope.ID(o.only), Unmounted: o.bare, Trace: o.trace, HTTP: o.http, HTTPSocket: inherited, Metrics: o.metrics,
		Console: o.console, Headless: o.only != "", Version: version.Version,
		Logger: slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level})),
	})
	if _, bad := errors.AsType[*fields.FileError](err); bad { // in scopefs.yaml
		return &api.NotLoadedError{Err: err}
	}
	if err != nil {
		return err
	}
	started.Store(d)
	return d.Run(ctx, ready)
}

// collect sets when the garbage collector runs. brief is a daemon for one command, which has mostly ended before it has allocated 16 MiB:
// the first collection is then, or two minutes after its start.
func collect(brief bool) {
	// The heap is small and a call allocates much. Resident memory is up to this much more than what is in use, and a message of
	// 16 MiB that arrives must not raise it by 64 MiB.
	const percent = 150
	debug.SetGCPercent(percent)
	if brief {
		debug.SetGCPercent(400) // of the 4 MiB that the runtime begins with
		runtime.AddCleanup(new(daemonOptions), func(percent int) { debug.SetGCPercent(percent) }, percent)
	}
	debug.SetMemoryLimit(512 << 20) // above it the collector runs more often
}

// inheritedHTTP returns the socket for MCP over HTTP that the service manager has opened: sd_listen_fds(3). Nil: none.
func inheritedHTTP() (net.Listener, error) {
	all, err := activation.ListenersWithNames()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	http := all["http"]
	if len(all) > 1 || len(http) != 1 || http[0] == nil {
		return nil, errors.New("LISTEN_FDS: want one socket with FileDescriptorName=http: correct the socket unit")
	}
	if err := loopback.Check("http", http[0].Addr().String()); err != nil {
		return nil, fmt.Errorf("LISTEN_FDS: %w", err)
	}
	return http[0], nil
}

// notifySystemd sends a state to the service manager, if there is one.
func notifySystemd(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		slog.Error("sd_notify", "err", err)
	}
}
