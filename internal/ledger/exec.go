package ledger

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// CommandLine joins the words of a command so that each word's end can be seen.
func CommandLine(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		if words[i] = word; word == "" || strings.ContainsAny(word, " \"'\\") {
			words[i] = strconv.Quote(word)
		}
	}
	return strings.Join(words, " ")
}

// Exec is the operation of events about a command in a sandbox.
const Exec = "exec"

// recorder is the log of an agent.
type recorder interface {
	Record(context.Context, audit.Event) error
	Event(audit.Event)
}

// RecordExec records a command before it starts; a command that cannot be recorded must not run. ended records the end.
func RecordExec(ctx context.Context, log recorder, e audit.Event) (ended func(outcome string), err error) {
	e.Event, e.Op, e.Outcome = audit.KindSandbox, Exec, audit.OutcomeBegin
	began := time.Now()
	if err := log.Record(ctx, e); err != nil {
		return nil, err
	}
	return func(outcome string) {
		e.Outcome, e.DurationUS = outcome, time.Since(began).Microseconds()
		log.Event(e)
	}, nil
}
