package upstream

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/rpc"
)

// TestNoticesAreNotQueued: of any number of notifications the SDK gets one, until it has handled it. Reports of progress
// reach their call.
func TestNoticesAreNotQueued(t *testing.T) {
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
