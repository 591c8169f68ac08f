// Package thread runs functions on one OS thread.
package thread

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Thread runs functions one after another on one OS thread, for what the kernel
// ties to a thread: its credentials, its namespaces, and PR_SET_PDEATHSIG of the
// processes that it forks. It is never the main thread, whose namespaces
// /proc/self shows.
type Thread struct {
	work  chan func()
	quit  chan struct{}
	ended chan struct{}
}

// Start starts a thread; Stop ends it.
func Start() Thread {
	t := Thread{work: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			t.serve()
			return
		}
		defer runtime.UnlockOSThread()
		go t.serve() // on another thread: this goroutine keeps the main one
		<-t.ended
	}()
	return t
}

func (t Thread) serve() {
	defer close(t.ended)
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for {
		select {
		case f := <-t.work:
			f()
		case <-t.quit:
			return
		}
	}
}

// Do runs f on the thread and returns its error. It returns os.ErrClosed after Stop.
func (t Thread) Do(f func() error) error {
	done := make(chan error, 1)
	select {
	case t.work <- func() { done <- f() }:
		return <-done
	case <-t.ended:
		return os.ErrClosed
	}
}

// Stop ends the thread, after the function that it runs. Call it once.
func (t Thread) Stop() {
	close(t.quit)
	<-t.ended
}
