package egress

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/limit"
)

// shut opens streams on a connection of HTTP/2 whose window is 0, and reads nothing that has a
// body. It returns when the proxy ends the connection.
func shut(t *testing.T, l *lab, conf *tls.Config, streams int, method string, fields ...string) {
	c := l.tls(t, "good.example", conf)
	if c.Handshake() != nil {
		return
	}
	_, _ = c.Write([]byte(http2.ClientPreface))
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	head := block(append([]string{":method", method, ":scheme", "https", ":authority", "good.example", ":path", "/"}, fields...)...)
	for id := uint32(1); id < uint32(2*streams); id += 2 {
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: true, EndHeaders: true}) != nil {
			return
		}
	}
	for {
		if _, err := f.ReadFrame(); err != nil {
			return
		}
	}
}

// running counts the goroutines that have a function on their stack.
func running(function string) int {
	buf := make([]byte, 64<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), function)
}

// TestAttackShutWindow: answers that a client's window holds up are bounded, whatever the
// number of its connections, and end. The test counts goroutines of the whole process: no
// other test runs beside it.
func TestAttackShutWindow(t *testing.T) {
	need.Long(t, "it takes seconds")
	rule, _ := host(t, "good.example", true, hello)
	rule.Methods = []string{"GET"}
	const requests, clients = 8, 12
	for name, method := range map[string]string{"without a slot": "GET", "denied": "PUT"} {
		t.Run(name, func(t *testing.T) {
			l, roots := intercepting(t, []network.HostRule{rule}, func(o *Options, _ *Tenant) {
				o.Limits.Requests, o.Limits.Speak = requests, 3*time.Second
			})
			conf := roots.Clone()
			conf.NextProtos = []string{"h2"}
			var wait sync.WaitGroup
			over := make(chan struct{})
			var most int
			var watch sync.WaitGroup
			watch.Go(func() {
				for {
					most = max(most, running("egress.(*Proxy).refuse("))
					select {
					case <-over:
						return
					case <-time.After(10 * time.Millisecond):
					}
				}
			})
			for range clients {
				wait.Go(func() { shut(t, l, conf, maxStreams, method, "x", strings.Repeat("x", 4<<10)) })
			}
			ended := make(chan struct{})
			go func() { wait.Wait(); close(ended) }()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				require.Fail(t, "the connections stay open: answers wait for their windows for ever")
			}
			close(over)
			watch.Wait()
			assert.LessOrEqual(t, most, requests+maxRefusing, "answers at a time")
			require.Eventually(t, func() bool { return running("http2serverConn).runHandler(") == 0 }, 20*time.Second, 10*time.Millisecond)
			sum := 0
			for _, e := range l.log() {
				if denial(e) {
					assert.Contains(t, e.Target, "good.example", "%+v", e)
					sum += 1 + int(e.Unrecorded)
				}
			}
			assert.Positive(t, sum)
		})
	}
}

// TestAttackWaitingAnswer: a refusal that a client does not take ends its connection, in
// HTTP/1 and HTTP/2. It counts goroutines as TestAttackShutWindow does.
func TestAttackWaitingAnswer(t *testing.T) {
	need.Long(t, "it takes seconds")
	rule, _ := host(t, "good.example", true, hello)
	rule.Methods = []string{"GET"}
	l, roots := intercepting(t, []network.HostRule{rule}, func(o *Options, _ *Tenant) { o.Limits.Speak = 2 * time.Second })
	conf := roots.Clone()
	conf.NextProtos = []string{"h2"}
	shut(t, l, conf, 1, "PUT")

	c := l.connect(t, "good.example:80")
	_ = c.SetReadBuffer(4 << 10)
	text := strings.Repeat("PUT / HTTP/1.1\r\nHost: good.example\r\nContent-Length: 0\r\n\r\n", 1000)
	var err error
	for err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Write([]byte(text))
	}
	// The kernel may tell the client much later: both of its queues are full.
	require.Eventually(t, func() bool { return running("net/http.(*conn).serve(") == 0 }, 20*time.Second, 10*time.Millisecond, "the connection stays open")
}

// TestRefusalsOfAFlood: each request that a bound refuses is in a line with its host, the rule
// and a number. What the rules deny is denied by them, whatever the load.
func TestRefusalsOfAFlood(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	var at atomic.Int32
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { at.Add(1); <-stop })
	rule.Methods = []string{"GET"}
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(o *Options, _ *Tenant) { o.Limits.Requests = 2 })
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() {
			l.raw(t, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\nConnection: close\r\n\r\n")
		})
	}
	require.Eventually(t, func() bool { return at.Load() == 2 }, 20*time.Second, time.Millisecond)
	const each = 20
	for text, want := range map[string]string{
		"GET http://good.example/ HTTP/1.1\r\nHost: good.example":   "429 ",
		"PUT http://good.example/ HTTP/1.1\r\nHost: good.example":   "403 ",
		"GET http://other.example/ HTTP/1.1\r\nHost: other.example": "403 ",
	} {
		for range each {
			assert.Contains(t, l.raw(t, text+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"), want, text)
		}
	}
	close(stop)
	wait.Wait()
	l.recordFolds(t.Context())
	counts := map[string]int{}
	for _, e := range l.log() {
		if denial(e) {
			counts[e.Target+" by "+e.Rule] += 1 + int(e.Unrecorded)
		}
	}
	assert.Equal(t, map[string]int{
		"good.example:80 by requests": each, "good.example:80 by network.allow: good.example GET": each, "other.example:80 by network.allow": each,
	}, counts)
	assert.LessOrEqual(t, count(l.log(), denial), 6, "lines")
	assert.Equal(t, 2, count(l.log(), func(e audit.Event) bool { return e.Outcome == audit.OutcomeBegin }))
}

// TestPathsOfAFlood: the number of requests that a bound left out of the log names the directories of their paths, and
// no path that only one of them had.
func TestPathsOfAFlood(t *testing.T) {
	t.Parallel()
	var f folds
	add := func(method, path string) {
		a := &access{in: &incoming{}, op: "request", scheme: "https", host: "h.example", port: 443, method: method, path: path}
		f.add(a, denied(a.target(), scope.Decision{Rule: "r", Kind: scope.KindRequest}))
	}
	for i := range 20 {
		add("PUT", fmt.Sprintf("/admin/%d", i))
		add("GET", fmt.Sprintf("/users/%d/key", i))
	}
	f.add(&access{in: &incoming{}, op: "request", scheme: "https", host: "h.example", port: 443, path: "/a/b"}, tooMany("requests"))
	for i := range 3000 {
		add("GET", fmt.Sprintf("/p%d/x", i))
	}
	add("GET", "/")
	want := map[string]int64{
		"requests to https://h.example/admin/* are not allowed": 20, "requests to https://h.example/users/* are not allowed": 20,
		"requests to other paths of https://h.example are not allowed": 3001 - (maxBelow - 2),
	}
	want["too many requests at a time: requests to https://h.example/a/*"] = 1
	for i := range maxBelow - 2 {
		want[fmt.Sprintf("requests to https://h.example/p%d/* are not allowed", i)] = 1
	}
	got := map[string]int64{}
	for _, kept := range f.counts {
		got[kept.refusal.Message] += 1 + kept.more
		assert.Equal(t, "h.example:443", authorityOf(kept.access.host, kept.access.port, ""))
	}
	assert.Equal(t, want, got)
}

// TestConnectionsAreCharged: connections that send no request in HTTP, and handshakes, are of the agent's share, too.
func TestConnectionsAreCharged(t *testing.T) {
	t.Parallel()
	share := limit.NewShare(time.Microsecond, time.Second) // it takes years to earn what it has spent
	charged := func(do func()) time.Duration {
		before := share.Spend(0)
		do()
		return before - share.Spend(0)
	}
	rule, _ := host(t, "good.example", true, hello)
	rule.Methods = []string{"GET"}
	l, roots := intercepting(t, []network.HostRule{rule}, func(o *Options, _ *Tenant) { o.Bounds = NewBounds(o.Limits, share) })
	const clients = 10
	assert.InDelta(t, clients*connectTime, charged(func() {
		for range clients {
			socks(l.dial(t), "foreign.example", 80)
		}
	}), float64(connectTime)/2, "SOCKS")
	assert.InDelta(t, clients*connectTime, charged(func() {
		for range clients {
			c := l.dial(t)
			fmt.Fprint(c, "CONNECT foreign.example:443 HTTP/1.1\r\nHost: foreign.example:443\r\n\r\n")
			_, err := c.Read(make([]byte, 1))
			assert.NoError(t, err)
		}
	}), float64(connectTime)/2, "CONNECT")
	assert.InDelta(t, connectTime+shakeTime, charged(func() { assert.NoError(t, l.tls(t, "good.example", roots).Handshake()) }),
		float64(connectTime)/2, "TLS")
}
