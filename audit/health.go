package audit

import (
	"cmp"
	"errors"
	"time"
)

// Err is nil while the log works, and the reason of the last failure while it does not.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.err, l.full)
}

// broken reports whether the log fails, or worked again and has not recorded that.
func (l *Log) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || l.full == nil && l.wasFull != nil
}

// setFull takes note that only the reserve of the disk is left, and why, or that there is room again.
func (l *Log) setFull(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full = nil; why != "" {
		l.full = errors.New(why)
		l.wasFull = l.full
	}
	l.wake()
}

// refuse refuses what has not happened yet while only the reserve of the disk is left.
func (l *Log) refuse(e Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	future := e.Outcome == OutcomeBegin || e.Verdict == Allow && e.Event == KindFile || e.Event == KindSandbox && e.Outcome == ""
	if l.full == nil || !future {
		return nil
	}
	l.refused++
	return l.full
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
	if err != nil {
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
			if l.broken() {
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
	err, f := cmp.Or(l.err, l.full), l.onChange
	l.mu.Unlock()
	if f == nil || working == (err == nil) {
		return working
	}
	f(err)
	return err == nil
}

// failure returns why events were refused that no event counts yet, and how many; nil when there was no failure, or the
// disk is still full.
func (l *Log) failure() (refused uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full == nil {
		return l.refused, cmp.Or(l.err, l.wasFull)
	}
	return l.refused, l.err
}

// recovered takes note that an event has counted the refused.
func (l *Log) recovered(refused uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused -= refused; l.full == nil {
		l.wasFull = nil
	}
}
