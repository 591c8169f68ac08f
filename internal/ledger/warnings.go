package ledger

import (
	"log/slog"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
)

// warnPause is the time between two equal warnings.
const warnPause = time.Minute

// Warnings is a logger for warnings that clients can cause without limit. It writes
// the first warning of an agent and text at once. Those of the next
// minute are counted, and at its end the last of them is written with the count.
type Warnings struct {
	logger *slog.Logger
	pause  time.Duration

	mu   sync.Mutex
	held map[warning]*repeats
}

type warning struct {
	agent scope.ID
	text  string
}

// repeats are equal warnings that were not written.
type repeats struct {
	timer *time.Timer
	count int
	args  []any // of the last
}

// NewWarnings returns a logger that writes to another.
func NewWarnings(logger *slog.Logger) *Warnings {
	return &Warnings{logger: logger, pause: warnPause, held: map[warning]*repeats{}}
}

// Warn writes a warning, or counts it.
func (w *Warnings) Warn(agent scope.ID, text string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := warning{agent, text}
	if r := w.held[key]; r != nil {
		r.count++
		r.args = args
		return
	}
	w.held[key] = &repeats{timer: time.AfterFunc(w.pause, func() { w.flush(key) })}
	w.logger.Warn(text, append([]any{"agent", agent}, args...)...)
}

// flush writes what was counted. A pause without a warning ends the series.
func (w *Warnings) flush(key warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.held[key]
	switch {
	case r == nil: // closed
	case r.count == 0:
		delete(w.held, key)
	default:
		w.write(key, r)
		r.count = 0
		r.timer.Reset(w.pause)
	}
}

func (w *Warnings) write(key warning, r *repeats) {
	w.logger.Warn(key.text, append([]any{"agent", key.agent, "more", r.count}, r.args...)...)
}

// Close writes what was counted so far.
func (w *Warnings) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, r := range w.held {
		r.timer.Stop()
		if r.count > 0 {
			w.write(key, r)
		}
		delete(w.held, key)
	}
}
