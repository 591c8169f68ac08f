package terminal

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/client"
)

// Attend connects a command to our streams and signals until it exits, and returns how it ended. It prints the daemon's
// notes, with the remedies that remedy returns for them. If the command has a terminal, prompt may ask the user until the
// command has ended; nil: nothing is asked.
func Attend(run *client.Run, stdin io.Reader, stdout, stderr io.Writer, remedy func(client.Note) string, prompt func(context.Context, Ask)) (client.RunExit, error) {
	own := &Raw{FD: int(os.Stdin.Fd())}
	between := newRelay(run, stdout)
	told := &notes{to: stderr, run: run, remedy: remedy, relay: between}
	defer told.rest()
	ignoreStops()
	if run.TTY != nil {
		own.Enter(func() { fit(run) })
		defer own.Restore()
		defer func() { _ = between.tidy() }()
	}
	keys, _ := stdin.(*input)
	stopped, stop := forward(run, own, keys, between)
	defer stop()
	// Each copy ends when either side closes. The command gets SIGPIPE or EOF, and
	// its exit status is the result.
	var copies sync.WaitGroup
	if run.TTY != nil {
		go between.input(stdin)
		copies.Go(func() { _, _ = io.Copy(between, run.TTY) })
	} else {
		go func() {
			_, _ = io.Copy(run.Stdin, stdin)
			run.Stdin.Close()
		}()
		// If our reader closes its end, the command must get SIGPIPE.
		copies.Go(func() { _, _ = io.Copy(stdout, run.Stdout); run.Stdout.Close() })
		copies.Go(func() { _, _ = io.Copy(stderr, run.Stderr); run.Stderr.Close() })
	}
	ctx, stopAsking := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	if prompt != nil && run.TTY != nil {
		asking.Go(func() { prompt(ctx, between.ask) })
	}
	exit, err := run.Wait(told.note, stopped)
	stopAsking()
	asking.Wait()
	if exit.OutOfMemory {
		defer fmt.Fprintln(stderr, "scopefs: out of memory: the agent's limit was reached")
	}
	run.End() // also ends the streams, which background processes may hold open
	copied := make(chan struct{})
	go func() { copies.Wait(); close(copied) }()
	if err != nil { // such as a stopped daemon, which ends no sandbox
		select {
		case <-copied:
		case <-time.After(200 * time.Millisecond):
		}
		return exit, err
	}
	<-copied
	return exit, nil
}
