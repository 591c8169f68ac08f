package mcp

import (
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp/names"
)

// Bounds of a Log.
const (
	maxCalls = 256 // the last ones
	maxShown = 200 // bytes of a path or target
)

// Log keeps the last calls of a session for its client. It has what the client knows already: which call, and the code of its
// answer. The operator's log also has the rule that decided, and tells a violation from a file that does not exist. The zero
// value is an empty Log, for any number of goroutines.
type Log struct {
	mu    sync.Mutex
	lines []string
	next  int // the place of the next line, if there are maxCalls
}

// logged is a line of a Log.
type logged struct {
	Time    string `json:"time"`
	Call    string `json:"call,omitempty"` // its id in the operator's log
	Tool    string `json:"tool"`
	Path    string `json:"path,omitempty"`
	Target  string `json:"target,omitempty"`
	Outcome string `json:"outcome"` // "ok", or the code of the error
	Exit    *int   `json:"exit,omitempty"`
	MS      int64  `json:"ms"`
}

// Add adds a call that has ended, as it was recorded. It ignores other events.
func (l *Log) Add(e audit.Event) {
	if e.Event != audit.KindCall || e.Outcome == audit.OutcomeBegin {
		return
	}
	text, err := tools.Marshal(logged{Time: time.Now().UTC().Format(time.RFC3339), Call: e.Call,
		Tool: shown(names.OfTool(e.Op)), Path: shown(e.Path), Target: shown(e.Target), Outcome: e.Outcome, Exit: e.Exit, MS: e.DurationUS / 1000})
	if err != nil {
		return // cannot happen: strings and numbers
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < maxCalls {
		l.lines = append(l.lines, string(text))
		return
	}
	l.lines[l.next] = string(text)
	l.next = (l.next + 1) % maxCalls
}

func shown(text string) string { return tools.Clip(tools.Clean(text), maxShown) }

// text returns the lines, the oldest first.
func (l *Log) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := append(append([]string{}, l.lines[l.next:]...), l.lines[:l.next]...)
	return strings.Join(all, "\n") + "\n"
}
