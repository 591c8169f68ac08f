package audit

import (
	"cmp"
	"errors"
	"time"
)

// Err returns the last failure while the log fails or only the reserve of the disk is left, and nil otherwise.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.err, l.full)
}

// broken reports whether the log fails, or has recovered without recording it.
func (l *Log) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil || l.full == nil && l.wasFull != nil
}

// setFull records why only the reserve of the disk is left. An empty why means that the disk has space again.
func (l *Log) setFull(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full = nil; why != "" {
		l.full = errors.New(why)
		l.wasFull = l.full
	}
	l.wake()
}

// refuse returns an error for an event that precedes its effect while only the reserve of the disk is left.
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

// OnChange registers f, which the log calls with the error when it starts to fail, and with nil when it works again.
// A goroutine of the log calls f, one call at a time, soon after the change. It may merge or omit changes in quick
// succession. If the log is failing now, it calls f with the error. f may append, but must not close the log.
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

// settle updates err and refused after n events were written or, with an error, refused.
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

// run retries a failing log and calls onChange, until Close.
func (l *Log) run() {
	defer close(l.stopped)
	working := true
	var retry <-chan time.Time // nil: the log works, and wakes nothing
	for {
		broken := l.broken()
		if broken && retry == nil {
			retry = time.After(l.opts.Retry)
		}
		select {
		case <-l.stop:
			return
		case <-retry:
			retry = nil
			if broken {
				l.own.turn <- struct{}{}
				l.flush(&l.own, true)
				<-l.own.turn
			}
		case <-l.changed:
			working = l.notify(working)
		}
	}
}

// notify calls onChange if the state differs from working, and returns the new state.
func (l *Log) notify(working bool) bool {
	l.mu.Lock()
	err, f := cmp.Or(l.err, l.full), l.onChange
	l.mu.Unlock()
	if f == nil || working == (err == nil) {
		return working
	}
	f(err)
	return err == nil
}

// failure returns the reason of the failure and the number of events refused that no event has counted. why is nil if
// there was no failure or the disk is still full.
func (l *Log) failure() (refused uint64, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full == nil {
		return l.refused, cmp.Or(l.err, l.wasFull)
	}
	return l.refused, l.err
}

// recovered subtracts the refused events that OutcomeRecovered has counted.
func (l *Log) recovered(refused uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused -= refused; l.full == nil {
		l.wasFull = nil
	}
}
