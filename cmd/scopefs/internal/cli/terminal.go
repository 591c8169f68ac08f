package cli

import (
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/cmd/scopefs/internal/control"
)

// terminal is ours, which while a command has one of its own passes on what is
// typed: raw. The zero state is a stream that is no terminal.
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

// forward passes signals on until stop is called, which waits.
func forward(run *control.Run, own *terminal) (stop func()) {
	// Against SIGPIPE: a closed standard output is told to the command.
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

// stopBoth stops the command and then ourselves; SIGCONT is passed on. SIGTSTP
// would not stop it: its process group is an orphaned one, in which that has no
// effect (setpgid(2), credentials(7)).
func stopBoth(run *control.Run, own *terminal) {
	raw := own.old != nil
	own.restore()
	_ = run.Signal(unix.SIGSTOP)
	// To this thread: sent to the process, it may reach another one first, and this
	// one would go on for a while (signal(7)).
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	runtime.UnlockOSThread()
	if raw {
		own.raw()
		_ = run.Resize(*terminalSize())
	}
}
