package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
)

// A server's notifications. Beyond the rate its output is not read.
const (
	noticeRate  = 1000        // a second
	noticeBurst = 5000        // at once
	noticeUnit  = 64 << 10    // bytes that count as a further one
	noticeLost  = time.Second // until the SDK is taken to have dropped a list_changed
)

// notices handles the notifications of a server before they reach the SDK, which would queue them without a bound. Its methods
// are safe for concurrent use: each response over HTTP has a reader.
type notices struct {
	life    context.Context // of the connection: nothing waits after it
	end     context.CancelFunc
	share   *limit.Share
	pace    *limit.Pace
	changed atomic.Int64 // when the SDK got a list_changed that it has not handled, in ns; 0: it has handled all
	reports sync.Map     // progress token → func(string) of the call in flight
}

func newNotices(share *limit.Share) *notices {
	n := &notices{share: share, pace: limit.NewPace(noticeRate, noticeBurst, nil)}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

// read waits until the time to parse what a server has sent is earned, and counts its values. Nobody parses it after an error: it has too
// many, or the connection has ended.
func (n *notices) read(text []byte) error {
	if n.share.Wait(n.life, tools.ParseTime(len(text))) != nil {
		return os.ErrClosed
	}
	var t tools.Tally
	err := t.Add(text)
	n.share.Spend(t.Time() - tools.ParseTime(len(text)))
	return err
}

// take handles a notification of so many bytes. It returns what the SDK gets: a list_changed, if it has none that waits. The
// SDK's cache of lists needs it. The SDK (1.8.0) discards what follows the response in the stream of a call, so one that it has
// not handled within noticeLost does not count.
func (n *notices) take(h rpc.Head, size int) []byte {
	_ = n.pace.Wait(n.life, nil, 1+size/noticeUnit)
	switch h.Method {
	case "notifications/tools/list_changed":
		now, at := time.Now().UnixNano(), n.changed.Load()
		if now-at > int64(noticeLost) && n.changed.CompareAndSwap(at, now) {
			return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q}`+"\n", h.Method)
		}
	case "notifications/progress":
		n.report(h.Params)
	}
	return nil
}

// report passes a server's report of progress on. A report for no call in flight is ignored.
func (n *notices) report(params []byte) {
	p := struct {
		Token    string  `json:"progressToken"`
		Progress float64 `json:"progress"`
		Total    float64 `json:"total"`
		Message  string  `json:"message"`
	}{}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	to, ok := n.reports.Load(p.Token)
	if !ok {
		return
	}
	text := fmt.Sprint(p.Progress)
	if p.Total > 0 {
		text += fmt.Sprint(" of ", p.Total)
	}
	if p.Message != "" {
		text += ", " + tools.Clip(tools.Clean(p.Message), maxTitle)
	}
	to.(func(string))(text)
}
