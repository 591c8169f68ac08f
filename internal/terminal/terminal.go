// Package terminal connects a command of the daemon to the user's terminal, streams and signals.
package terminal

import (
	"io"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Raw is the user's terminal. While a command has its own terminal, ours is in
// raw mode and its input is forwarded.
type Raw struct {
	FD  int
	old *term.State
}

// Enter puts the terminal in raw mode, if it is a terminal.
func (t *Raw) Enter() {
	if old, err := term.MakeRaw(t.FD); err == nil {
		t.old = old
	}
}

// Restore ends the raw mode.
func (t *Raw) Restore() {
	if t.old != nil {
		_ = term.Restore(t.FD, t.old)
		t.old = nil
	}
}

// forward forwards signals to the command until stop is called. stop waits until the
// last one is sent.
func forward(run *api.Run, own *Raw) (stop func()) {
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
				_ = run.Resize(*Size())
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
func stopBoth(run *api.Run, own *Raw) {
	raw := own.old != nil
	own.Restore()
	_ = run.Signal(unix.SIGSTOP)
	// Stop this thread: a signal to the process may first reach another thread, while
	// this one runs on (signal(7)).
	runtime.LockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
	runtime.UnlockOSThread()
	if raw {
		own.Enter()
		_ = run.Resize(*Size())
	}
}

// Size returns the size of the terminal of the standard streams; 24 rows of 80 columns without one.
func Size() *sandbox.Size {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return &sandbox.Size{Rows: uint16(h), Cols: uint16(w)}
		}
	}
	return &sandbox.Size{Rows: 24, Cols: 80}
}

// Is reports whether a stream is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
