package embedded

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/exit"
)

// RunUser runs the daemon of an ordinary user, with flags, in namespaces of its own, and waits for it.
// The daemon ends with this process, however that ends.
func RunUser(ctx context.Context, p config.Paths, flags ...string) error {
	ours, theirs, err := newLeash()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := namespaced(p, theirs, append(flags, "--user")...)
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
	if status, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.With(max(status.ExitCode(), 1), nil) // it has said why
	}
	return err
}
