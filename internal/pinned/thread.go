// Package pinned runs functions on one OS thread.
package pinned

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Thread runs functions one after another on one OS thread, for attributes that the kernel keeps per thread:
// credentials, namespaces, and PR_SET_PDEATHSIG of forked processes. It is never the main thread, because /proc/self
// shows the main thread's namespaces.
type Thread struct {
	work  chan func()
	quit  chan struct{}
	ended chan struct{}
}

// Start starts a thread. The caller must call Stop.
func Start() Thread {
	t := Thread{work: make(chan func()), quit: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			t.serve()
			return
		}
		defer runtime.UnlockOSThread()
		go t.serve() // on another thread, because this goroutine holds the main one
		<-t.ended
	}()
	return t
}

func (t Thread) serve() {
	defer close(t.ended)
	runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
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

// Stop ends the thread after the current function has returned. Call it once.
func (t Thread) Stop() {
	close(t.quit)
	<-t.ended
}
