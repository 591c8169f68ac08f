package upstream

import (
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools/limit"
)

// TestNoticesAreNotQueued: of any number of notifications the SDK gets one, until it has handled it. Reports of progress
// reach their call.
func TestNoticesAreNotQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes: see noticeLost
		c := &conn{notices: newNotices(nil), changed: func() {}}
		var said []string
		c.notices.reports.Store("t", func(text string) { said = append(said, text) })
		passed := 0
		pass := func(line string) {
			k, out := admit([]byte(line), c.notices)
			assert.Equal(t, rpc.Notification, k)
			if len(out) > 0 {
				passed++
			}
		}
		for range 1000 {
			pass(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"x":"` + strings.Repeat("y", 1000) + `"}}`)
			pass(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"other","progress":1}}`)
			pass(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
		}
		assert.Equal(t, 1, passed)
		c.listChanged(t.Context(), nil)
		pass(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		assert.Equal(t, 2, passed)
		pass(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1,"total":2,"message":"half"}}`)
		assert.Equal(t, []string{"1 of 2, half"}, said)
	})
}

// TestListChangedThatTheSDKDrops: the SDK discards what follows the response to a call in its stream of events. A list_changed
// there does not keep later ones from the SDK.
func TestListChangedThatTheSDKDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNotices(nil)
		changed := []byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		_, dropped := admit(changed, n)
		assert.NotEmpty(t, dropped)
		time.Sleep(2 * noticeLost)
		_, out := admit(changed, n)
		assert.NotEmpty(t, out)
	})
}

// TestEndedServerWaitsForNothing: what an ended server has sent waits no longer for the agent's share of a processor, and takes nothing of it.
func TestEndedServerWaitsForNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		share := limit.NewShare(time.Millisecond, time.Millisecond)
		ours, theirs, err := os.Pipe()
		require.NoError(t, err)
		defer theirs.Close()
		_, err = theirs.WriteString(strings.Repeat("y", 60_000) + "\n") // 0.9 ms of the share
		require.NoError(t, err)
		share.Spend(time.Second) // which a minute does not earn
		w := newStdio(nil, ours, io.Discard, newNotices(share))
		read := make(chan error)
		go func() {
			_, err := w.Read(make([]byte, 10))
			read <- err
		}()
		time.Sleep(time.Minute)
		before := share.Spend(0)
		require.NoError(t, w.Close())
		assert.ErrorIs(t, <-read, os.ErrClosed)
		assert.Greater(t, share.Spend(0), before)
		ended := newNotices(share)
		ended.end()
		assert.ErrorIs(t, ended.read([]byte("x")), os.ErrClosed)
	})
}
