package ledger

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWarnings: a flood of equal warnings is two lines a pause at most, and none
// of it goes uncounted.
func TestWarnings(t *testing.T) {
	var text bytes.Buffer
	var mu sync.Mutex
	w := NewWarnings(slog.New(slog.NewTextHandler(locked{&mu, &text}, nil)))
	w.pause = 300 * time.Millisecond
	lines := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Split(strings.TrimSpace(text.String()), "\n")
	}
	for range 10_000 {
		w.Warn("a", "flood", "err", "x")
	}
	w.Warn("b", "flood", "err", "another's is written")
	assert.Contains(t, lines()[0], `msg=flood agent=a err=x`)
	assert.Less(t, len(lines()), 10, "10,000 warnings")
	assert.Eventually(t, func() bool { return strings.Contains(strings.Join(lines(), "\n"), "more=") }, 20*time.Second, 10*time.Millisecond)
	assert.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.held) == 0
	}, 20*time.Second, 10*time.Millisecond, "a series ends")
	w.Warn("a", "flood", "err", "again")
	assert.Contains(t, lines()[len(lines())-1], "agent=a err=again")
	w.Warn("a", "flood", "err", "last")
	w.Close()
	assert.Contains(t, lines()[len(lines())-1], "agent=a more=1 err=last")
}

type locked struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.to.Write(b)
}
