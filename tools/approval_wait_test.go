package tools

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestApprovalsWait: all who wait for the same get the one decision, which holds until
// it expires and for nothing else.
func TestApprovalsWait(t *testing.T) {
	for _, grant := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all := NewApprovals(nil)
			host := Approval{Agent: "a", Lasting: true, Tool: "network", Arguments: json.RawMessage(`{"host":"x"}`), Policy: "1"}
			asked := 0
			record := func(Approval) error { asked++; return nil }
			got := make(chan bool, 3)
			for range 3 {
				go func() {
					said, err := all.Wait(t.Context(), host, record)
					assert.NoError(t, err)
					got <- said.State == ApprovalGranted
				}()
			}
			synctest.Wait()
			require.Len(t, all.List(), 1)
			assert.Empty(t, got)
			_, err := all.Decide(all.List()[0].ID, grant, nil, func(Approval) error { return nil })
			require.NoError(t, err)
			for range 3 {
				assert.Equal(t, grant, <-got)
			}
			assert.Equal(t, 1, asked)
			said, err := all.Wait(t.Context(), host, record)
			assert.NoError(t, err)
			assert.Equal(t, grant, said.State == ApprovalGranted, "it holds")

			for _, change := range []func(*Approval){
				func(p *Approval) { p.Policy = "2" }, func(p *Approval) { p.Agent = "b" }, func(p *Approval) { p.Chain = "c>a" },
				func(p *Approval) { p.Arguments = json.RawMessage(`{"host":"y"}`) },
			} {
				other := host
				change(&other)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				said, err := all.Wait(ctx, other, record)
				assert.NoError(t, err)
				assert.Equal(t, ApprovalWaits, said.State)
				cancel()
			}
			time.Sleep(approvalTime + time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			said, err = all.Wait(ctx, host, record)
			assert.NoError(t, err)
			assert.Equal(t, ApprovalWaits, said.State, "it has expired")
			_, err = all.Wait(ctx, Approval{Agent: "new"}, func(Approval) error { return errors.New("no log") })
			assert.ErrorContains(t, err, "no log")
		})
	}
}
