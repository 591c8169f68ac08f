package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// TestAttackChangedCredential: a variable that means another host's credential after a
// change of the rules gives no host the value of the other, not even while a request is
// under way.
func TestAttackChangedCredential(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]string{}
	record := func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got[r.Host] = append(got[r.Host], r.Header.Get("Authorization"))
	}
	first, _ := host(t, "first.example", true, record)
	second, _ := host(t, "second.example", true, record)
	first.Secret, second.Secret = "KEY", "KEY"
	t.Setenv("SCOPEFS_TEST_FIRST", "value-of-first")
	t.Setenv("SCOPEFS_TEST_SECOND", "value-of-second")
	now, change := "SCOPEFS_TEST_FIRST", func() {}
	l, roots := intercepting(t, []network.HostRule{first}, func(_ *Options, c *Tenant) {
		c.Secrets = func() map[string]Secret {
			change()
			return map[string]Secret{"KEY": {Placeholder: placeholder, Source: now, Read: credential.Source{Env: now}.Read}}
		}
	})
	client := l.client(t, roots)
	status, _ := get(t, client, "https://first.example/")
	require.Equal(t, 200, status)
	change = func() {
		l.set(t, network.Spec{Allow: []network.HostRule{second}})
		now = "SCOPEFS_TEST_SECOND"
	}
	l.forget("KEY")
	status, _ = get(t, client, "https://first.example/")
	assert.Equal(t, 503, status)
	change = func() {}
	l.Recheck()
	status, _ = get(t, client, "https://second.example/")
	assert.Equal(t, 200, status)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, map[string][]string{"first.example": {"value-of-first"}, "second.example": {"value-of-second"}}, got)
}

// TestAttackWhileAdmitted: a host that is taken away after the decision and before the
// connection is not reached.
func TestAttackWhileAdmitted(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	rule, _ := host(t, "good.example", false, func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	rule.Ports = []uint16{80, 25}
	var l *lab
	l = start(t, network.Spec{Allow: []network.HostRule{rule}}, func(_ *Options, c *Tenant) {
		record := c.Record
		c.Record = func(ctx context.Context, e audit.Event) error {
			if e.Outcome == audit.OutcomeBegin {
				l.set(t, network.Spec{})
				l.Recheck()
			}
			return record(ctx, e)
		}
	})
	assert.NotContains(t, l.raw(t, "GET http://good.example/ HTTP/1.1\r\nHost: good.example\r\n\r\n"), "200")
	l.set(t, network.Spec{Allow: []network.HostRule{rule}})
	c := l.dial(t)
	fmt.Fprint(c, "CONNECT good.example:25 HTTP/1.1\r\nHost: good.example:25\r\n\r\n")
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	text, err := io.ReadAll(c)
	assert.False(t, err != nil && strings.Contains(err.Error(), "timeout"), "%s %v", text, err)
	assert.Zero(t, reached.Load())
}

// TestHeadLimit: heads count against the limit of bytes, or they would carry any number.
func TestHeadLimit(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(_ *Options, c *Tenant) {
		c.Limit = func() (requests, bytes []scope.Rate) {
			return nil, []scope.Rate{{Pattern: "bytes", N: 256 << 10, Per: time.Hour}}
		}
	})
	client := l.client(t, nil)
	passed := 0
	for ; passed < 40; passed++ {
		r, _ := http.NewRequest("GET", "http://good.example/", nil)
		r.Header.Set("X", strings.Repeat("x", 32<<10))
		res, err := client.Do(r)
		require.NoError(t, err)
		res.Body.Close()
		if res.StatusCode == http.StatusTooManyRequests {
			break
		}
	}
	assert.LessOrEqual(t, passed, 8)
}

// TestByteLimitTogether: tunnels that are open at a time overrun the limit by the bytes
// that each moves before they are counted.
func TestByteLimitTogether(t *testing.T) {
	t.Parallel()
	const most, tunnels = 8 << 20, 8
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		buf := make([]byte, 32<<10)
		for n := 0; n < 4*most && r.Context().Err() == nil; n += len(buf) {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	})
	l := start(t, network.Spec{Allow: []network.HostRule{rule}}, func(_ *Options, c *Tenant) {
		c.Limit = func() (requests, bytes []scope.Rate) {
			return nil, []scope.Rate{{Pattern: "bytes", N: most, Per: 24 * time.Hour}}
		}
	})
	var wait sync.WaitGroup
	var sum atomic.Int64
	for range tunnels {
		wait.Go(func() {
			res, err := l.client(t, &tls.Config{RootCAs: authorityPool()}).Get("https://good.example/")
			if err == nil {
				n, _ := io.Copy(io.Discard, res.Body)
				sum.Add(n)
				res.Body.Close()
			}
		})
	}
	wait.Wait()
	assert.Less(t, sum.Load(), int64(most+tunnels*tunnel.MaxMove))
	assert.Positive(t, sum.Load())
}

// TestAttackContinuationFlood: fields without an end are not kept (CVE-2023-45288).
func TestAttackContinuationFlood(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", true, hello)
	rule.Intercept = true
	l, roots := intercepting(t, []network.HostRule{rule}, nil)
	c, f, ended := dial2(t, l, roots)
	require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(":method", "GET", ":scheme", "https", ":authority", "good.example", ":path", "/")}))
	more := bytes.Repeat(block("x", strings.Repeat("y", 1000)), 10)
	for n := 0; ; n++ {
		require.Less(t, n, 10_000, "the proxy reads on")
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		if err := f.WriteContinuation(1, false, more); err != nil {
			break
		}
	}
	<-ended
}

// TestApprovalEnds: what the operator has approved ends with the approval, and a request
// on a connection that stays open needs an approval of its own.
func TestApprovalEnds(t *testing.T) {
	t.Parallel()
	open, finish := make(chan bool, 1), make(chan bool)
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/stream" {
			open <- true
			select {
			case <-finish:
				fmt.Fprint(w, "whole")
			case <-r.Context().Done():
			}
		}
	})
	raw := rule
	raw.Host, raw.Ports = "raw.example", []uint16{25}
	rule.Intercept = true
	over := make(chan bool)
	asked, granted := atomic.Int32{}, atomic.Bool{}
	granted.Store(true)
	l, roots := intercepting(t, nil, func(_ *Options, c *Tenant) {
		c.Approve = func(_ context.Context, q Question) (Answer, error) {
			asked.Add(1)
			return Answer{ID: "x7", Granted: granted.Load()}, nil
		}
		c.Outlast = func(ctx context.Context, q Question) {
			select {
			case <-over:
			case <-ctx.Done():
			}
		}
	})
	l.set(t, network.Spec{Ask: []network.HostRule{rule, raw}})
	client := l.client(t, roots)
	tunnel := l.connect(t, "raw.example:25")
	res, err := client.Get("https://good.example/stream")
	require.NoError(t, err)
	defer res.Body.Close()
	<-open
	assert.EqualValues(t, 3, asked.Load(), "two connections and a request")

	granted.Store(false)
	over <- true
	over <- true
	assert.True(t, ended(tunnel))
	_, err = io.ReadAll(res.Body)
	assert.Error(t, err)
	status, body := get(t, client, "https://good.example/")
	assert.Equal(t, 403, status)
	assert.Contains(t, body, "approval_id")
	assert.EqualValues(t, 4, asked.Load(), "on the connection that is open")

	// A host that the rules meanwhile allow needs no approval.
	granted.Store(true)
	res, err = client.Get("https://good.example/stream")
	require.NoError(t, err)
	defer res.Body.Close()
	<-open
	l.set(t, network.Spec{Allow: []network.HostRule{rule}})
	l.Recheck()
	over <- true
	finish <- true
	text, err := io.ReadAll(res.Body)
	assert.NoError(t, err)
	assert.Equal(t, "whole", string(text))
}
