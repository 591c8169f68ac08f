package pid1

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/sigaction"
)

// deadly are the signals with which the Go runtime ends a program even if os/signal delivers them: it takes one that
// another process has queued (sigqueue(3)) for a fault of the program.
var deadly = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS}

// ignoreAddr is the address of a handler that does nothing.
var ignoreAddr uintptr

// survive makes process 1 survive every signal that another process of the sandbox can send, and sends those that the
// runtime delivers to the channel. Each of them takes 30 µs.
//
// The kernel discards a signal from inside whose action is the default (pid_namespaces(7)). But Linux 6.1 ends the
// process if its main thread blocks the signal and another thread does not (complete_signal, kernel/signal.c), and the
// main thread blocks all signals while it handles one. So no signal that ends a process has the default action.
//
// A fault of process 1 itself ends it also if its signal is ignored. A command inherits nothing: the runtime gives it the
// default action of each signal that it had a handler for (syscall.ForkExec), and execve(2) of those with another.
func survive(signals chan<- os.Signal) error {
	signal.Notify(signals, unix.SIGCHLD, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGABRT)
	for _, sig := range deadly {
		if err := sigaction.Set(sig, &sigaction.Action{Handler: sigaction.Ignore}, nil); err != nil {
			return err
		}
	}
	var action sigaction.Action
	if err := sigaction.Set(unix.SIGURG, nil, &action); err != nil { // for what the runtime needs of any handler
		return err
	}
	action.Handler = ignoreAddr
	for _, sig := range []unix.Signal{32, 34} { // those of C libraries, for which the runtime has no handler
		if err := sigaction.Set(sig, &action, nil); err != nil {
			return err
		}
	}
	return nil
}
