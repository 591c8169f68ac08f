package egress

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
	"github.com/scopefs/scopefs/tools/limit"
)

func TestRequestLimit(t *testing.T) {
	t.Parallel()
	rule, _ := host(t, "good.example", false, hello)
	counts := &limit.Rates{}
	change := func(_ *Options, c *Tenant) {
		c.Counts = counts // of two sandboxes of one agent
		c.Limit = func() (requests, bytes []scope.Rate) {
			return []scope.Rate{{Pattern: "requests", N: 3, Per: time.Hour}}, nil
		}
	}
	one, two := start(t, network.Spec{Allow: []network.HostRule{rule}}, change), start(t, network.Spec{Allow: []network.HostRule{rule}}, change)
	for range 2 {
		status, _ := get(t, one.client(t, nil), "http://good.example/")
		assert.Equal(t, 200, status)
	}
	one.connect(t, "good.example:80").Close()
	status, body := get(t, two.client(t, nil), "http://good.example/")
	assert.Equal(t, 429, status)
	assert.Regexp(t, `"rule":"network.limit: requests: 3/hour","hint":"wait (20m0s|19m\d+s)"`, body) // less what this test took
	assert.Equal(t, 2, socks(two.dial(t), "good.example", 80))
	e := two.log()[0]
	assert.Equal(t, audit.Deny, e.Verdict)
	assert.Equal(t, string(scope.KindRate), e.RuleKind)
}

// TestByteLimit: a body, and a tunnel, end where the bytes do.
func TestByteLimit(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	endless := func(w http.ResponseWriter, r *http.Request) {
		for buf := make([]byte, 32<<10); r.Context().Err() == nil; {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	}
	plain, _ := host(t, "plain.example", false, endless)
	secure, _ := host(t, "secure.example", true, endless)
	for url, wants := range map[string]string{"http://plain.example/": "request", "https://secure.example/": "connect"} {
		l := start(t, network.Spec{Allow: []network.HostRule{plain, secure}}, func(_ *Options, c *Tenant) {
			c.Limit = func() (requests, bytes []scope.Rate) {
				return nil, []scope.Rate{{Pattern: "bytes", N: most, Per: 24 * time.Hour}}
			}
		})
		client := l.client(t, &tls.Config{RootCAs: authorityPool()})
		res, err := client.Get(url)
		require.NoError(t, err)
		n, err := io.Copy(io.Discard, res.Body)
		res.Body.Close()
		assert.Error(t, err)
		assert.Less(t, n, int64(most+tunnel.MaxMove))
		assert.Positive(t, n)
		e := l.logged(t, func(e audit.Event) bool { return e.Outcome == "failed" })
		assert.Equal(t, wants, e.Op)
		assert.Equal(t, string(scope.KindRate), e.RuleKind)
		assert.Contains(t, l.raw(t, "GET http://plain.example/ HTTP/1.1\r\nHost: plain.example\r\nConnection: close\r\n\r\n"), "429 ")
	}
}
