package egress

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope/network"
)

// TestSilentClient: a connection that a program opens and does not use times out. It is no violation, as what is
// neither TLS nor HTTP.
func TestSilentClient(t *testing.T) {
	t.Parallel()
	rule := network.HostRule{Host: "good.example", Intercept: true}
	l, _ := intercepting(t, []network.HostRule{rule}, func(o *Options, _ *Tenant) { o.Limits.Speak = 200 * time.Millisecond })
	ends := func(e audit.Event) bool { return e.Outcome == "failed" }

	silent := l.connect(t, "good.example:443")
	_, err := io.ReadAll(silent)
	require.NoError(t, err)
	e := l.logged(t, ends)
	assert.Equal(t, audit.Allow, e.Verdict)
	assert.Equal(t, "time-out: the client sent nothing", e.Detail)

	l, _ = intercepting(t, []network.HostRule{rule}, nil) // one that does not time out before it has sent something
	strange := l.connect(t, "good.example:443")
	_, err = strange.Write([]byte("\x00\x01\x02\x03"))
	require.NoError(t, err)
	e = l.logged(t, func(e audit.Event) bool { return e.Verdict == audit.Violation })
	assert.Contains(t, e.Detail, "neither TLS nor HTTP on port 443")
}
