package audit

import (
	"time"
)

// Err is nil while the log works, and the reason of the last failure while it does not.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// OnChange has f called when the log begins to fail, with the reason, and when it works again, with nil. Calls come one
// at a time, from a goroutine of the log, soon after the change; changes that follow each other quickly may be one call
// or none. When the log fails already, f is told that first. F may append, but not close the log.
func (l *Log) OnChange(f func(error)) {
	l.mu.Lock()
	l.onChange = f
	l.mu.Unlock()
	l.wake()
}

func (l *Log) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// settle keeps the books after n events were written or, with an error, refused.
func (l *Log) settle(err error, n int) {
	l.mu.Lock()
	changed := (err == nil) != (l.err == nil)
	if err == nil {
		l.refused = 0 // they are in the group just written: remarks
	} else {
		l.refused += uint64(n)
	}
	l.err = err
	l.mu.Unlock()
	if changed {
		l.wake()
	}
}

// run retries and tells, until Close.
func (l *Log) run() {
	defer close(l.stopped)
	retry := time.NewTicker(l.opts.Retry)
	defer retry.Stop()
	working := true
	for {
		select {
		case <-l.stop:
			return
		case <-retry.C:
			if l.Err() != nil {
				l.turn <- struct{}{}
				l.flush(true)
				<-l.turn
			}
		case <-l.changed:
			working = l.tell(working)
		}
	}
}

// tell calls the function of OnChange when the log is no longer as it was told to be, and returns what is told now.
func (l *Log) tell(working bool) bool {
	l.mu.Lock()
	err, f := l.err, l.onChange
	l.mu.Unlock()
	if f == nil || working == (err == nil) {
		return working
	}
	f(err)
	return err == nil
}
