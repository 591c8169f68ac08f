package console

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type nowhere struct{ io.Writer }

func (nowhere) Close() error { return nil }

// TestLate: a reply that came when nobody waited for it any more answers no other request: its link may let somebody in.
func TestLate(t *testing.T) {
	c := &Process{in: nowhere{io.Discard}, lines: make(chan Reply, 2), ended: make(chan struct{})}
	c.lines <- Reply{N: 1, Link: "https://host/root/pair/token"}
	c.n = 1
	c.lines <- Reply{N: 2, Link: "https://host/root/inbox"}
	r, err := c.Do(Request{Ask: AskInbox})
	require.NoError(t, err)
	assert.Equal(t, "https://host/root/inbox", r.Link)
}
