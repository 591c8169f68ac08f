package cli

import (
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/api"
)

// terminal is the user's terminal. While a command has its own terminal, ours is in
// raw mode and its input is forwarded.
type terminal struct {
	fd  int
	old *term.State
}

func (t *terminal) raw() {
	if old, err := term.MakeRaw(t.fd); err == nil {
		t.old = old
	}
}

func (t *terminal) restore() {
	if t.old != nil {
		_ = term.Restore(t.fd, t.old)
		t.old = nil
	}
}

// forward forwards signals to the command until stop is called. stop waits until the
// last one is sent.
func forward(run *api.Run, own *terminal) (stop func()) {
	// The command gets SIGPIPE for a closed standard output, not this process.
	signal.Ignore(unix.SIGPIPE)
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT, unix.SIGALRM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s := range signals {
			switch sig := s.(unix.Signal); {
			case sig == unix.SIGWINCH && run.TTY != nil:
				_ = run.Resize(*terminalSize())
			case sig == unix.SIGTSTP:
				stopBoth(run, own)
			default:
				_ = run.Signal(sig)
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
		<-done
	}
}

// stopBoth stops the command and then this process. It sends SIGSTOP, because SIGTSTP
// has no effect in an orphaned process group such as the command's (setpgid(2),
// credentials(7)). forward forwards the SIGCONT that resumes us.
func stopBoth(run *api.Run, own *terminal) {
	raw := own.old != nil
	own.restore()
	_ = run.Signal(unix.SIGSTOP)
	// Stop this thread: a signal to the process may first reach another thread, while
	// this one runs on (signal(7)).
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	runtime.UnlockOSThread()
	if raw {
		own.raw()
		_ = run.Resize(*terminalSize())
	}
}
