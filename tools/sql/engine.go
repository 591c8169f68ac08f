package sql

import (
	"context"
	"errors"
	"fmt"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// An Engine executes the statements of agents. Its methods are safe for concurrent use.
type Engine interface {
	// Do executes a request in the agent's database. The error is for the agent; see
	// [Check].
	Do(ctx context.Context, agent scope.ID, r engine.Request) (engine.Reply, error)
}

// errNonsense is the cause of the error of a reply that no engine gives.
var errNonsense = errors.New("no engine gives this reply")

// Check returns the reply to a request, or its error in the form for an agent. A reply that
// no engine gives is an error.
func Check(r *engine.Request, reply engine.Reply) (engine.Reply, error) {
	err := error(nil)
	switch {
	case reply.Error != nil:
		if err = errorOf(reply.Error); err != nil {
			return engine.Reply{}, err
		}
		err = fmt.Errorf("%w: unknown code %.40q", errNonsense, reply.Error.Code)
	case len(reply.Rows) > r.Limit || len(reply.Tables) > r.Limit:
		err = fmt.Errorf("%w: too many rows", errNonsense)
	}
	for _, row := range reply.Rows {
		if len(row) != len(reply.Columns) {
			err = fmt.Errorf("%w: a row with too few or many values", errNonsense)
		}
	}
	if err == nil {
		return reply, nil
	}
	return engine.Reply{}, unavailable("the database's process answered nonsense and was ended", err)
}

// errorOf returns the agent's form of an engine's error; nil for an unknown code.
func errorOf(from *engine.Error) error {
	codes := map[engine.Code]tools.Code{engine.Invalid: tools.Invalid, engine.Conflict: tools.Conflict,
		engine.TooLarge: tools.TooLarge, engine.Busy: tools.Unavailable}
	message, hint := tools.Clip(tools.Clean(from.Message), 500), tools.Clip(tools.Clean(from.Hint), 200)
	switch from.Code {
	case engine.Denied:
		return denied(message, hint)
	case engine.Failed:
		return unavailable("the database cannot be used", errors.New(from.Message))
	}
	code, ok := codes[from.Code]
	if !ok {
		return nil
	}
	return tools.Errorf(code, "%s", message).Suggest(hint)
}
