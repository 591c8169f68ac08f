package tools

import (
	"context"

	"github.com/scopefs/scopefs/audit/trace"
)

type traceKey struct{}

// Trace returns the span of the call of ctx, for the programs that the call starts or calls; the zero value if there is none.
func Trace(ctx context.Context) trace.Context {
	own, _ := ctx.Value(traceKey{}).(trace.Context)
	return own
}
