package beneath

import "runtime"

// Thread runs functions one after another on one OS thread. A file that has no
// name may be given one only with the very credentials that opened it, and the
// kernel compares the pointers: threads of one process that were each told to
// drop a capability have credentials of their own (linkat(2), AT_EMPTY_PATH).
type Thread struct {
	work chan func()
}

// NewThread starts a thread; Stop ends it.
func NewThread() Thread {
	t := Thread{work: make(chan func())}
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		for f := range t.work {
			f()
		}
	}()
	return t
}

// Do runs f on the thread and returns what it does.
func (t Thread) Do(f func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- f() }
	return <-done
}

// Stop ends the thread. Do must not be called any more.
func (t Thread) Stop() { close(t.work) }
