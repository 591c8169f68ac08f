package file

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file/message"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// Files does an agent's file work in a worker. Set the fields before the first call.
type Files struct {
	*worker.Worker

	// Dirs returns the directories that the agent has now. Nil means its own alone.
	Dirs func() message.Dirs
	// Quick reports whether a call may be answered before its changes are on the disk.
	// Nil means no.
	Quick func() bool
	// Unfinished records the temporary files that killed calls may leave; nil records
	// nothing.
	Unfinished Unfinished
	// RefusedFrom reports whether the policy refused the old name of a call's rename. Nil
	// means no.
	RefusedFrom func(call string) bool
	// Refused returns what the agent reads of the rule by which the policy refused a call at a path, and what the agent can
	// do; "" if no rule did, or the agent must not know the rule. Nil means no.
	Refused func(call, path string) (message, hint string)
}

// New returns a Files that uses a worker. It sets the worker's Started.
func New(w *worker.Worker) *Files {
	f := &Files{Worker: w}
	w.Started = f.sweep
	return f
}

func (f *Files) dirs() message.Dirs {
	if f.Dirs == nil {
		return Own()
	}
	return f.Dirs()
}

// An operation is an operation of the worker.
type operation struct {
	name   string
	repeat bool // may be repeated if the worker died meanwhile
}

// do sends an operation of the call id to the worker and returns its result.
func do[In, Out any](ctx context.Context, f *Files, call string, op operation, in In) (out Out, err error) {
	r := message.Request{Call: call, Op: op.name, Approved: approved(ctx), Quick: f.Quick != nil && f.Quick()}
	temp, end := f.note(in)
	answered := false
	defer func() { end(answered) }()
	r.Temp = temp
	r.Blob = message.Detach(&in)
	if r.Args, err = json.Marshal(in); err != nil {
		return out, err
	}
	answered, err = f.Do(ctx, r, op.repeat, func(a message.Reply) error {
		if err := peer.Decode(a.Result, &out); err != nil {
			return err
		}
		return message.Attach(&out, a.Blob)
	})
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Code == tools.Denied {
		// The daemon records the view's rule instead, if the view refused it.
		by := scope.Decision{Kind: scope.KindNeed, Rule: "the owner and mode of the file"}
		refused := tools.Refused(by, e.Code, "%s", e.Message)
		refused.Path, refused.Hint = e.Path, e.Hint
		f.explain(call, refused)
		err = refused
	}
	if err != nil {
		return *new(Out), err
	}
	return out, nil
}

// explain says in the error of a refused call which rule it was.
func (f *Files) explain(call string, e *tools.Error) {
	if f.Refused == nil {
		return
	}
	if message, hint := f.Refused(call, e.Path); message != "" {
		e.Message, e.Hint = message, hint
	}
}

// approved returns the objects of an approved call.
func approved(ctx context.Context) map[string]message.Object {
	var all map[string]message.Object
	for path, o := range tools.Approved(ctx) {
		if all == nil {
			all = map[string]message.Object{}
		}
		all[path] = message.Object{Path: o.Path, ID: o.ID}
	}
	return all
}
