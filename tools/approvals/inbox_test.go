package approvals

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestInbox: it is bounded, no agent's requests hide those of another one, and what has ended says how, for a time.
func TestInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := NewSet(nil)
		ask := func(agent scope.ID, n int, text string) Approval {
			said, _, err := all.Ask(Approval{Agent: agent, Tool: "x", Arguments: json.RawMessage(fmt.Sprintf(`{"n":%d,"text":%q}`, n, text))}, func() error { return nil })
			require.NoError(t, err)
			return said
		}
		for i := range 60 {
			ask("flood", i, strings.Repeat("x", maxInboxBytes/60*i))
		}
		for i := range 5 {
			ask(scope.ID(fmt.Sprint("b", i)), 0, "")
		}
		b := all.Inbox()
		assert.Len(t, b.Waits, MaxInbox)
		assert.Equal(t, 65-MaxInbox, b.More)
		shown := map[scope.ID]bool{}
		for _, p := range b.Waits {
			shown[p.Agent] = true
			assert.False(t, p.Cut)
		}
		assert.Len(t, shown, 6)
		time.Sleep(time.Second) // the list is by time
		huge := ask("huge", 0, strings.Repeat("x", maxInboxBytes))
		b = all.Inbox()
		last := b.Waits[len(b.Waits)-1]
		assert.True(t, last.Cut && last.ID == huge.ID && len(last.Arguments) < 2<<10)

		used := ask("user", 0, "")
		_, err := all.Decide(used.ID, true, Answer{By: "an operator"}, ok)
		require.NoError(t, err)
		require.Len(t, all.Inbox().Decided, 1)
		ask("user", 0, "")
		b = all.Inbox()
		assert.Empty(t, b.Decided)
		require.Len(t, b.Ended, 1)
		assert.Equal(t, "used by an operator", b.Ended[0].Outcome+" by "+b.Ended[0].Approval.By)
		time.Sleep(lifetime + time.Second)
		b = all.Inbox()
		assert.Empty(t, b.Waits)
		require.Len(t, b.Ended, maxEnded)
		assert.Equal(t, TimedOut, b.Ended[maxEnded-1].Outcome)
		time.Sleep(lifetime)
		assert.Empty(t, all.Inbox().Ended)
	})
}
