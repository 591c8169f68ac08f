package toolbox

import (
	"context"
	"errors"
	"os"

	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/embedded"
)

// Use runs f with a client of the tools. The context of f ends when the daemon stops answering. Without ask no question
// of a tool is answered. Calls are made in the span that the environment names: opentelemetry.io/docs/specs/otel/context/env-carriers.
func (t *Toolbox) Use(ctx context.Context, version string, ask caller.Ask, f func(context.Context, *caller.Session) error) error {
	defer t.Close()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	for again := t.task == "" && embedded.Serves(t.given); ; again = false {
		conn, err := t.open(ctx, ctx)
		if err != nil {
			return err
		}
		go t.pulse().Watch(ctx, leave)
		session, err := caller.Open(ctx, conn, version, ask)
		if err == nil {
			defer session.Close()
			session.Meta = trace.Parse(os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE")).Meta()
			return f(ctx, session)
		}
		if !again || !errors.Is(err, caller.ErrUnheard) { // else the daemon had nothing to do, and has ended before it read
			return err
		}
	}
}
