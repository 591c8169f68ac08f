package approvals

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// waitSecond waits a second for an approval, and returns its state then.
func waitSecond(t *testing.T, all *Set, p Approval) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	said, err := all.Wait(ctx, p, ok)
	require.NoError(t, err)
	return said.State
}

// TestApprovalsWait: all who wait for the same get the one decision, which holds until
// it expires and for nothing else.
func TestApprovalsWait(t *testing.T) {
	for _, grant := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all := NewSet(nil)
			host := Approval{Agent: "a", Lasting: true, Tool: "network", Arguments: json.RawMessage(`{"host":"x"}`), Policy: "1"}
			asked := 0
			record := func(Approval) error { asked++; return nil }
			got := make(chan bool, 3)
			for range 3 {
				go func() {
					said, err := all.Wait(t.Context(), host, record)
					assert.NoError(t, err)
					got <- said.State == Granted
				}()
			}
			synctest.Wait()
			require.Len(t, all.List(), 1)
			assert.Empty(t, got)
			_, err := all.Decide(all.List()[0].ID, grant, Answer{}, ok)
			require.NoError(t, err)
			for range 3 {
				assert.Equal(t, grant, <-got)
			}
			assert.Equal(t, 1, asked)
			said, err := all.Wait(t.Context(), host, record)
			assert.NoError(t, err)
			assert.Equal(t, grant, said.State == Granted, "it holds")

			for _, change := range []func(*Approval){
				func(p *Approval) { p.Policy = "2" }, func(p *Approval) { p.Agent = "b" }, func(p *Approval) { p.Chain = "c>a" },
				func(p *Approval) { p.Arguments = json.RawMessage(`{"host":"y"}`) },
			} {
				other := host
				change(&other)
				assert.Equal(t, Waits, waitSecond(t, all, other))
			}
			time.Sleep(lifetime + time.Second)
			assert.Equal(t, Waits, waitSecond(t, all, host), "it has expired")
			_, err = all.Wait(t.Context(), Approval{Agent: "new"}, func(Approval) error { return errors.New("no log") })
			assert.ErrorContains(t, err, "no log")
		})
	}
}

// TestApprovalsOutlast: a connection ends with what approves it, and not before.
func TestApprovalsOutlast(t *testing.T) {
	for name, c := range map[string]struct {
		terms *Terms // nil: of one decision
		do    func(a *Set, id string, p *Approval)
		after time.Duration // to the end
	}{
		"expired":          {after: lifetime},
		"revoked":          {do: func(a *Set, id string, _ *Approval) { _, _ = a.Revoke(id, Answer{}, ok) }},
		"session killed":   {do: func(a *Set, _ string, p *Approval) { _ = a.ForgetSession(p.Agent, p.Session) }},
		"other rules":      {do: changeRules},
		"same rules":       {do: func(a *Set, _ string, p *Approval) { a.Recheck([]scope.ID{"a"}, versionOf(p)) }, after: lifetime},
		"standing":         {terms: &Terms{For: time.Hour}, after: time.Hour},
		"standing revoked": {terms: &Terms{}, do: func(a *Set, id string, _ *Approval) { _, _ = a.Revoke(id, Answer{}, ok) }},
		"standing, rules":  {terms: &Terms{}, do: changeRules},
		"session ended":    {terms: &Terms{Session: true}, do: func(a *Set, _ string, p *Approval) { a.EndSession(p.Session) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := NewSet(nil)
				host := Approval{Agent: "a", Session: "s", Lasting: true, Tool: "network", Arguments: json.RawMessage(`{"host":"x"}`), Policy: "1"}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() { _, _ = all.Wait(ctx, host, ok) }()
				synctest.Wait()
				var err error
				made := all.List()[0]
				if c.terms == nil {
					_, err = all.Decide(made.ID, true, Answer{}, ok)
				} else {
					made, err = all.Stand(made.ID, *c.terms, Answer{}, ok)
				}
				require.NoError(t, err)
				ended := make(chan time.Time, 1)
				began := time.Now()
				go func() {
					all.Outlast(ctx, func() (Approval, error) { return host, nil })
					ended <- time.Now()
				}()
				synctest.Wait()
				require.Empty(t, ended)
				if c.do != nil {
					c.do(all, made.ID, &host)
				}
				got := (<-ended).Sub(began)
				assert.True(t, c.after <= got && got < c.after+time.Second, "after %v", got)
				all.Outlast(ctx, func() (Approval, error) { return host, nil }) // what has no approval has ended
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		all := NewSet(nil)
		host := Approval{Agent: "a", Lasting: true, Tool: "network"}
		waitSecond(t, all, host)
		_, err := all.Decide(all.List()[0].ID, false, Answer{}, ok)
		require.NoError(t, err)
		all.Outlast(t.Context(), func() (Approval, error) { return host, nil }) // a denial approves nothing
	})
}

// TestApprovalsOutlastChain: a standing approval in a chain covers connections under the rules
// that it was made under.
func TestApprovalsOutlastChain(t *testing.T) {
	outlastAfter(t, Approval{Agent: "a", Chain: "b>a", Lasting: true, Policy: "1"}, func(all *Set, p *Approval) func() (Approval, error) {
		go func() {
			synctest.Wait()
			changeRules(all, "", p)
		}()
		return func() (Approval, error) { return *p, nil }
	})
}

// TestApprovalsOutlastChange: the rules change after they were read, and before what they
// approve is looked up.
func TestApprovalsOutlastChange(t *testing.T) {
	outlastAfter(t, Approval{Agent: "a", Lasting: true, Policy: "1"}, func(all *Set, p *Approval) func() (Approval, error) {
		return func() (Approval, error) {
			before := *p
			if before.Policy == "1" {
				changeRules(all, "", p)
			}
			return before, nil
		}
	})
}

// outlastAfter approves a connection for as long as the rules hold and returns when Outlast has
// returned for what of returns.
func outlastAfter(t *testing.T, host Approval, of func(*Set, *Approval) func() (Approval, error)) {
	synctest.Test(t, func(t *testing.T) {
		all := NewSet(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() { _, _ = all.Wait(ctx, host, ok) }()
		synctest.Wait()
		var err error
		if id := all.List()[0].ID; host.Chain == "" {
			_, err = all.Decide(id, true, Answer{}, ok)
		} else {
			_, err = all.Stand(id, Terms{}, Answer{}, ok)
		}
		require.NoError(t, err)
		all.Outlast(ctx, of(all, &host))
		assert.NoError(t, ctx.Err(), "it waited for the end of ctx")
	})
}

func versionOf(p *Approval) func(scope.ID) string {
	return func(scope.ID) string { return p.Policy }
}

func changeRules(a *Set, _ string, p *Approval) {
	p.Policy = "2"
	a.Recheck([]scope.ID{"a"}, versionOf(p))
}
