package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

// waiter is a set whose calls wait for the operator.
type waiter struct {
	*desk
	t    *testing.T
	gate Gate
	set  *Set
}

func newWaiter(t *testing.T, change func(*Gate)) *waiter {
	w := &waiter{t: t, desk: &desk{hash: "h1"}}
	w.gate = w.desk.gate(t, asks)
	w.gate.Wait = time.Minute
	if change != nil {
		change(&w.gate)
	}
	var err error
	w.set, err = NewSet(w.gate, echo(t, "bash", Hints{}, nil))
	require.NoError(t, err)
	return w
}

// begin makes a call, and returns when it waits or has ended.
func (w *waiter) begin(ctx context.Context, path string) chan error {
	ended := make(chan error, 1)
	go func() {
		_, err := w.set.Call(ctx, Call{Tool: "bash", Args: json.RawMessage(fmt.Sprintf(`{"path":%q}`, path))})
		ended <- err
	}()
	synctest.Wait()
	return ended
}

func (w *waiter) decide(grant bool) {
	for _, p := range w.gate.Approvals.List() {
		if p.State == approvals.Waits {
			_, err := w.gate.Approvals.Decide(p.ID, grant, approvals.Answer{}, ok)
			require.NoError(w.t, err)
		}
	}
	synctest.Wait()
}

// TestCallWaits: a call waits for the operator's word, no longer than it may, and is
// decided again before it runs.
func TestCallWaits(t *testing.T) {
	for name, test := range map[string]func(*waiter){
		"approved": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			assert.Empty(w.t, call)
			w.decide(true)
			assert.NoError(w.t, <-call)
			assert.Equal(w.t, []string{"approval bash asked", "approval bash used", "call bash begin", "call bash ok"}, w.told())
			assert.Empty(w.t, w.gate.Approvals.List())
		},
		"denied": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			w.decide(false)
			assert.Equal(w.t, Denied, code(w.t, <-call))
		},
		"denied with a reason": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			_, err := w.gate.Approvals.Decide(w.gate.Approvals.List()[0].ID, false, approvals.Answer{Reason: "use\x1b[31m \u202emake\n test"}, ok)
			assert.NoError(w.t, err)
			refused := <-call
			assert.Equal(w.t, Denied, code(w.t, refused))
			assert.ErrorContains(w.t, refused, "the operator has denied this call of bash: use [31m make test (")
		},
		"the content changes before it is approved": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			shown := w.gate.Approvals.List()[0]
			w.hash = "h2"
			_, err := w.gate.Approvals.Decide(shown.ID, true, approvals.Answer{Shown: shown.Hash}, ok)
			changed, is := errors.AsType[*approvals.ConflictError](err)
			require.True(w.t, is, "%v", err)
			assert.Equal(w.t, approvals.Changed, changed.Outcome)
			assert.NotEqual(w.t, shown.Hash, changed.Now.Hash)
			synctest.Wait()
			assert.Empty(w.t, call)
			all := w.gate.Approvals.List()
			require.Len(w.t, all, 1, "it waits in its place, once")
			assert.Equal(w.t, changed.Now.ID, all[0].ID)
			_, err = w.gate.Approvals.Decide(all[0].ID, true, approvals.Answer{Shown: shown.Hash}, ok)
			assert.ErrorContains(w.t, err, "is not the one that was shown")
			_, err = w.gate.Approvals.Decide(all[0].ID, true, approvals.Answer{Shown: all[0].Hash}, ok)
			assert.NoError(w.t, err)
			assert.NoError(w.t, <-call)
		},
		"the rules change before it is approved": func(w *waiter) {
			w.set.gate.Wait = 0
			assert.Equal(w.t, ApprovalRequired, code(w.t, <-w.begin(w.t.Context(), "x")))
			shown := w.gate.Approvals.List()[0]
			w.set.gate.Rules = func() Rules { return load(w.t, "policy: {tools: {exclude: [bash]}}").Grants }
			_, err := w.gate.Approvals.Decide(shown.ID, true, approvals.Answer{Shown: shown.Hash}, ok)
			assert.ErrorContains(w.t, err, "the agent's rules have changed")
			assert.Empty(w.t, w.gate.Approvals.List())
		},
		"not decided": func(w *waiter) {
			began := time.Now()
			err := <-w.begin(w.t.Context(), "x")
			assert.Equal(w.t, ApprovalRequired, code(w.t, err))
			assert.NotEmpty(w.t, err.(*Error).ApprovalID)
			assert.ErrorContains(w.t, err, "timed out: nobody has decided about this call of bash within 1m0s")
			assert.NotContains(w.t, err.Error(), "denied")
			assert.Equal(w.t, time.Minute, time.Since(began))
			w.decide(true)
			assert.NoError(w.t, <-w.begin(w.t.Context(), "x"), "it may be called again")
		},
		"the client goes": func(w *waiter) {
			ctx, cancel := context.WithCancel(w.t.Context())
			call := w.begin(ctx, "x")
			cancel()
			assert.Equal(w.t, Internal, code(w.t, <-call))
			w.decide(true)
			assert.NotContains(w.t, w.told(), "call bash begin")
			assert.False(w.t, w.gate.Approvals.Close(), "nothing waits")
		},
		"the daemon ends": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			w.gate.Approvals.Close()
			err := <-call
			assert.Equal(w.t, ApprovalRequired, code(w.t, err))
			assert.NotEmpty(w.t, err.(*Error).ApprovalID)
			assert.Equal(w.t, ApprovalRequired, code(w.t, <-w.begin(w.t.Context(), "y")), "at once")
		},
		"the content changes": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			w.hash = "h2"
			w.decide(true)
			assert.Empty(w.t, call, "it is asked again")
			w.decide(true)
			assert.NoError(w.t, <-call)
		},
		"the rules change": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			w.set.gate.Rules = func() Rules { return load(w.t, "policy: {tools: {exclude: [bash]}}").Grants }
			w.gate.Approvals.Recheck([]scope.ID{"b"}, nil)
			synctest.Wait()
			assert.Empty(w.t, call, "not those of this agent")
			w.gate.Approvals.Recheck([]scope.ID{"a"}, nil)
			assert.Equal(w.t, Denied, code(w.t, <-call))
			w.decide(true)
			assert.Equal(w.t, Denied, code(w.t, <-w.begin(w.t.Context(), "x")))
		},
		"the rules allow it": func(w *waiter) {
			call := w.begin(w.t.Context(), "x")
			w.set.gate.Rules = func() Rules { return load(w.t, "").Grants }
			w.gate.Approvals.Recheck([]scope.ID{"a"}, nil)
			assert.NoError(w.t, <-call)
		},
		"it expires": func(w *waiter) {
			w.set.gate.Wait = time.Hour
			call := w.begin(w.t.Context(), "x")
			first := w.gate.Approvals.List()[0].ID
			time.Sleep(15*time.Minute + time.Second)
			synctest.Wait()
			_, err := w.gate.Approvals.Decide(first, true, approvals.Answer{}, ok)
			assert.ErrorContains(w.t, err, "timed out")
			all := w.gate.Approvals.List()
			require.Len(w.t, all, 1, "it is asked again")
			assert.NotEqual(w.t, first, all[0].ID)
			w.decide(true)
			assert.NoError(w.t, <-call)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(newWaiter(t, nil)) })
		})
	}
}

// TestCallsThatWaitAreFew: an agent whose calls all wait keeps nothing from its other
// calls nor from other agents: neither places nor turns.
func TestCallsThatWaitAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		queue := limit.NewQueue(1, 1, time.Hour)
		w := newWaiter(t, func(g *Gate) { g.Queue = queue })
		var calls []chan error
		for i := range 16 {
			calls = append(calls, w.begin(ctx, fmt.Sprint(i)))
		}
		assert.Equal(t, ApprovalRequired, code(t, <-w.begin(ctx, "one more")), "at once")
		for _, call := range calls {
			assert.Empty(t, call)
		}
		other := newWaiter(t, func(g *Gate) { g.Queue, g.Approvals, g.Agent = queue, w.gate.Approvals, "b" })
		call := other.begin(ctx, "x")
		assert.Empty(t, call, "it has its own places")
		turn, err := queue.Take(ctx, "c")
		require.NoError(t, err, "who waits has no turn")
		turn()
		w.decide(true)
		for _, call := range append(calls, call) {
			assert.NoError(t, <-call)
		}
		cancel()
		assert.False(t, w.gate.Approvals.Close(), "nothing waits")
	})
}
