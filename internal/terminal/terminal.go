// Package terminal connects a command of the daemon to the user's terminal, streams and signals.
package terminal

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/scopefs/scopefs/internal/client"
	"github.com/scopefs/scopefs/internal/sigaction"
)

// Raw is the user's terminal in raw mode: a command with a terminal of its own, or a screen of ours, has its input. The mode
// is set only in the foreground: in the background the terminal is the shell's.
type Raw struct {
	FD int

	old  *term.State // what Restore restores; nil: the terminal is not raw. follow owns it while it runs
	stop func()      // ends follow and waits for it; nil: it does not run
}

// Enter puts the terminal in raw mode, if it is a terminal, whenever the process is in the foreground. It calls back in a
// goroutine when that happens later.
func (t *Raw) Enter(back func()) {
	if !term.IsTerminal(t.FD) {
		return
	}
	ignoreStops()
	t.look()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	t.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		for pause(ctx) {
			if t.look() && back != nil {
				back()
			}
		}
	}()
}

// look sets the raw mode in the foreground, and reports whether it has. A process that has lost the foreground restores
// nothing: the shell has set modes of its own, also while the process was stopped.
func (t *Raw) look() bool {
	switch here := Foreground(t.FD); {
	case !here:
		t.old = nil
	case t.old == nil || canonical(t.FD):
		t.old, _ = term.MakeRaw(t.FD)
		return t.old != nil
	}
	return false
}

// canonical reports whether a terminal is read line by line: ICANON of termios(3).
func canonical(fd int) bool {
	state, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil && state.Lflag&unix.ICANON != 0
}

// Restore ends the raw mode.
func (t *Raw) Restore() {
	if t.stop == nil {
		return
	}
	t.stop()
	t.stop = nil
	if t.old != nil && Foreground(t.FD) {
		_ = term.Restore(t.FD, t.old)
	}
	t.old = nil
}

// forward forwards signals to the command until stop is called. stop waits until the
// last one is sent. stopped stops this process too, as a command that has stopped itself.
func forward(run *client.Run, own *Raw, keys *input, out *relay) (stopped, stop func()) {
	// The command gets SIGPIPE for a closed standard output, not this process.
	signal.Ignore(unix.SIGPIPE)
	signals := make(chan os.Signal, 16)
	stops, quit := make(chan struct{}, 1), make(chan struct{})
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT, unix.SIGALRM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer signal.Stop(signals)
		var again <-chan time.Time
		stop := func(group bool) {
			if keys != nil {
				defer keys.hold()()
			}
			select {
			case <-stops: // the same
			default:
			}
			redo := func() {}
			if run.TTY != nil {
				redo = out.tidy()
			}
			stopSelf(run, own, group)
			redo()
			again = time.After(continueTime)
		}
		for {
			select {
			case <-quit:
				return
			case s := <-signals:
				switch sig := s.(unix.Signal); {
				case sig == unix.SIGWINCH && run.TTY != nil:
					fit(run)
				case sig == unix.SIGTSTP:
					run.NextTurn()
					_ = run.Signal(unix.SIGSTOP)
					stop(false)
				case sig == unix.SIGCONT:
					again = nil
					_ = run.Continue()
				default:
					_ = run.Signal(sig)
				}
			case <-stops:
				out.settle()
				run.NextTurn()
				stop(true)
			case <-again:
				again = nil
				_ = run.Continue()
			}
		}
	}()
	stopped = func() {
		select {
		case stops <- struct{}{}:
		default:
		}
	}
	return stopped, func() {
		close(quit)
		<-done
	}
}

// continueTime is how long the SIGCONT that has resumed this process takes to arrive. Without one, nothing has stopped it.
const continueTime = 100 * time.Millisecond

// stopSelf stops this process until somebody continues it. The terminal is the shell's meanwhile.
func stopSelf(run *client.Run, own *Raw, group bool) {
	raw := own.stop != nil
	own.Restore()
	suspend(group)
	if raw {
		own.Enter(func() { fit(run) })
		fit(run)
	}
}

// suspend stops this process by SIGTSTP until SIGCONT, with its group as Ctrl-Z does, such as the script that has started it, or alone.
// It returns at once where the kernel drops the signal, because nobody would continue the process: setpgid(2).
func suspend(group bool) {
	// Stop this thread: a signal to the process may first reach another thread, while
	// this one runs on (signal(7)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ours sigaction.Action
	if sigaction.Set(unix.SIGTSTP, &sigaction.Action{Handler: sigaction.Ignore}, &ours) != nil {
		return
	}
	if group {
		_ = unix.Kill(0, unix.SIGTSTP)
	}
	_ = sigaction.Set(unix.SIGTSTP, &sigaction.Action{}, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP)
	_ = sigaction.Set(unix.SIGTSTP, &ours, nil)
}

// fit gives the command's terminal the size of ours. The kernel sends SIGWINCH to the foreground alone.
func fit(run *client.Run) { _ = run.Resize(*Size()) }

// Size returns the size of the terminal of the standard streams; 24 rows of 80 columns without one.
func Size() *client.Size {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			return &client.Size{Rows: uint16(h), Cols: uint16(w)}
		}
	}
	return &client.Size{Rows: 24, Cols: 80}
}

// Is reports whether a stream is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
