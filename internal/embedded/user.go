package embedded

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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
)

// RunUser runs the daemon of an ordinary user, with flags, in namespaces of its own, and waits for it.
// The daemon ends with this process, however that ends.
func RunUser(ctx context.Context, p paths.Paths, flags ...string) error {
	cmd, ours, err := namespaced(self, p, append(flags, "--user")...)
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd.Stderr = os.Stderr
	// The watchdog's notifications come from the daemon: sd_watchdog_enabled(3).
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "WATCHDOG_PID=") })
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	err = cmd.Start()
	cmd.ExtraFiles[0].Close()
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

// LockUser takes the run directory for the one daemon of the user.
func LockUser(run string) (*os.File, error) {
	if err := os.MkdirAll(run, 0o711); err != nil { // agents' users pass through to the mount point, which only they see
		return nil, fmt.Errorf("run directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(run, "user.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("a daemon is running already with --run %s", run)
	}
	return lock, nil
}

// freeTime bounds how long the next daemon of a base waits for the end of the last one.
const freeTime = 30 * time.Second

// WaitFree returns when no daemon has the run directory of a base.
func WaitFree(ctx context.Context, p paths.Paths) error {
	for end := time.Now().Add(freeTime); ; {
		lock, err := os.Open(filepath.Join(p.Run, "lock"))
		if err != nil {
			return nil // none was there yet, or the daemon says why
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		lock.Close()
		switch {
		case err == nil:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("the last daemon of %s has not ended within %v: end the process that has %s open", p.Base, freeTime, lock.Name())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// privateDir reports whether the parent of a run directory is this user's alone, as XDG_RUNTIME_DIR has to be.
func privateDir(run string) bool {
	var st unix.Stat_t
	err := unix.Lstat(filepath.Dir(run), &st)
	return run != "" && err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && int(st.Uid) == os.Geteuid() && st.Mode&0o077 == 0
}

// Serves reports whether a user's daemon may serve a base: not root's, not in a session without XDG_RUNTIME_DIR, only a
// project or the user's own base, and only in the usual directories.
func Serves(p paths.Paths) bool {
	usual, ok := paths.Served(p.Base)
	own, err := paths.OfUser()
	return os.Geteuid() != 0 && err == nil && ok && p == usual && privateDir(own.Run)
}

// userTime bounds the start of the user's daemon.
const userTime = 10 * time.Second

// StartUser starts the user's daemon in a session of its own, and returns when it answers. Of two that start at once one
// stays.
func StartUser(ctx context.Context, answers func(context.Context) bool, flags ...string) error {
	ctx, cancel := context.WithTimeout(ctx, userTime)
	defer cancel()
	state, err := paths.StateHome()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(state, "scopefs"), 0o700); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(state, "scopefs", "daemon.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if st, err := log.Stat(); err == nil && st.Size() > maxLog {
		_ = log.Truncate(0)
	}
	cmd := exec.Command(self, append([]string{"daemon", "--user"}, flags...)...)
	cmd.Dir, cmd.Stderr, cmd.SysProcAttr = "/", log, &syscall.SysProcAttr{Setsid: true}
	for _, name := range []string{"HOME", "PATH", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"} {
		if value, ok := os.LookupEnv(name); ok { // nothing of this project
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{}, 1)
	go func() {
		_ = cmd.Wait()
		ended <- struct{}{}
	}()
	for !answers(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended: // perhaps because another has the lock, and listens soon
			time.AfterFunc(time.Second, cancel)
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// maxLog is the size of the log of the user's daemon, in bytes, above which the next start empties it.
const maxLog = 1 << 20
