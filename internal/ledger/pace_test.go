package ledger

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

// took is how long something takes.
func took(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

// TestPaceOrdinary: what agents do is not slowed down.
func TestPaceOrdinary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPaces(256<<20, nil)
		e := audit.Event{Path: "src/main.go", Op: "read_file", Verdict: audit.Allow, Detail: strings.Repeat("x", 80), Rule: "tools: *"}
		assert.Equal(t, time.Minute, took(func() {
			for range 60 * 500 {
				assert.NoError(t, p.Wait(t.Context(), nil, e))
				assert.NoError(t, p.Wait(t.Context(), nil, e))
				time.Sleep(time.Second / 500)
			}
		}))
	})
}

// TestLineBytes: what counts is what is written, not what was said.
func TestLineBytes(t *testing.T) {
	assert.Less(t, lineBytes(audit.Event{Path: strings.Repeat("x", 16<<10)}), 5000)
	assert.Less(t, lineBytes(audit.Event{Path: strings.Repeat("\x01", 16<<10), Target: strings.Repeat("\xff", 16<<10)}), 17000)
	assert.Greater(t, lineBytes(audit.Event{Path: strings.Repeat("\x01", 800)}), 4000)
}

// TestPaceDay: what an agent can have written in a day is bounded, denials are recorded when the calls have used up their
// part, and it is told once.
func TestPaceDay(t *testing.T) {
	const budget = 8 << 20
	for name, verdict := range map[string]audit.Verdict{"calls": audit.Allow, "denials": audit.Deny, "violations": audit.Violation} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				told := 0
				p := NewPaces(budget, func() { told++ })
				end := time.Now().Add(24 * time.Hour)
				ctx, cancel := context.WithDeadline(t.Context(), end)
				defer cancel()
				e := audit.Event{Path: strings.Repeat("x", 4000), Verdict: verdict}
				written := 0
				for p.Wait(ctx, nil, e) == nil {
					written += lineBytes(e)
				}
				assert.Less(t, written, 2*budget)
				assert.Greater(t, written, budget/4)
				assert.NotZero(t, told)
				if verdict == audit.Allow {
					e.Verdict = audit.Deny
					assert.Zero(t, took(func() { assert.NoError(t, p.Wait(t.Context(), nil, e)) }), "denials have their own part")
				}
			})
		})
	}
}
