package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

// foldAll returns what a folder makes of events, a line each: count, path and seconds.
func foldAll(f *folder, events ...audit.Event) (lines []string) {
	add := func(all []folded) {
		for _, e := range all {
			lines = append(lines, fmt.Sprintf("%d %s %s %.0f", e.Count, e.Event.Event, e.Path, e.Last.Sub(e.Time).Seconds()))
		}
	}
	for _, e := range events {
		add(f.Add(e))
	}
	add(f.Rest())
	return lines
}

func TestFold(t *testing.T) {
	denial := func(second float64, change func(*audit.Event)) audit.Event {
		e := audit.Event{Event: audit.KindFile, Agent: "a", Op: "lookup", Path: ".env", Verdict: audit.Deny, Rule: "r", Program: "node",
			Time: time.Unix(0, 0).Add(time.Duration(second * float64(time.Second)))}
		if change != nil {
			change(&e)
		}
		return e
	}
	other := func(second float64) audit.Event { return denial(second, func(e *audit.Event) { e.Path = "x" }) }
	call := denial(1, func(e *audit.Event) { e.Event, e.Verdict = audit.KindCall, audit.Allow })
	for name, c := range map[string]struct {
		events []audit.Event
		want   string
	}{
		"equal":                  {[]audit.Event{denial(0, nil), denial(5, nil), denial(12, nil)}, "3 file .env 12"},
		"others between":         {[]audit.Event{denial(0, nil), other(1), denial(2, nil), other(3)}, "2 file .env 2, 2 file x 2"},
		"processes and calls":    {[]audit.Event{denial(0, nil), denial(1, func(e *audit.Event) { e.PID, e.Session, e.Call, e.Seq = 7, "s", "c", 9 })}, "2 file .env 1"},
		"a gap":                  {[]audit.Event{denial(0, nil), denial(11, nil)}, "1 file .env 0, 1 file .env 0"},
		"a minute":               {[]audit.Event{denial(0, nil), denial(9, nil), denial(18, nil), denial(27, nil), denial(36, nil), denial(45, nil), denial(54, nil), denial(61, nil)}, "7 file .env 54, 1 file .env 0"},
		"what is allowed":        {[]audit.Event{call, call}, "1 call .env 0, 1 call .env 0"},
		"the order of the first": {[]audit.Event{denial(0, nil), call, denial(2, nil)}, "2 file .env 2, 1 call .env 0"},
		"another program":        {[]audit.Event{denial(0, nil), denial(1, func(e *audit.Event) { e.Program = "cat" })}, "1 file .env 0, 1 file .env 0"},
		"another answer":         {[]audit.Event{denial(0, nil), denial(1, func(e *audit.Event) { e.Errno = "EACCES" })}, "1 file .env 0, 1 file .env 0"},
		"a violation":            {[]audit.Event{denial(0, nil), denial(1, func(e *audit.Event) { e.Verdict = audit.Violation })}, "1 file .env 0, 1 file .env 0"},
		"another agent":          {[]audit.Event{denial(0, nil), denial(1, func(e *audit.Event) { e.Agent = "b" })}, "1 file .env 0, 1 file .env 0"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, strings.Join(foldAll(&folder{}, c.events...), ", "))
		})
	}
	f := folder{}
	f.Add(denial(0, func(e *audit.Event) { e.Unrecorded = 3 }))
	f.Add(denial(1, func(e *audit.Event) { e.Unrecorded = 4 }))
	assert.EqualValues(t, 7, f.Rest()[0].Unrecorded)
}

// TestFoldIsBounded: a flood of distinct denials takes no more memory than 256, and loses
// none.
func TestFoldIsBounded(t *testing.T) {
	var f folder
	total, most := 0, 0
	count := func(all []folded) {
		for _, e := range all {
			total += e.Count
		}
	}
	for i := range 100_000 {
		count(f.Add(audit.Event{Agent: "a", Path: fmt.Sprint(i), Verdict: audit.Deny}))
		most = max(most, len(f.waiting), len(f.open))
	}
	count(f.Rest())
	assert.Equal(t, 100_000, total)
	assert.LessOrEqual(t, most, maxFolds)
	assert.Empty(t, f.open)
}
