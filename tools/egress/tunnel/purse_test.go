package tunnel

import (
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPurse: tunnels take no more than was given, wait for more, and end by a refusal, and by their own end.
func TestPurse(t *testing.T) {
	asked := 0
	p := NewPurse(func() { asked++ })
	p.Give(100)
	n, back, err := p.take(60, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 60, n)
	assert.Equal(t, 1, asked, "bytes are requested before they are used up")
	n, _, err = p.take(60, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 40, n, "the rest")
	assert.Equal(t, 1, asked, "there is no answer yet")
	back(10)
	n, _, err = p.take(60, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 10, n, "what has not moved")

	over := make(chan struct{})
	close(over)
	_, _, err = p.take(1, over)
	require.ErrorIs(t, err, net.ErrClosed)

	why := errors.New("why")
	p.more = func() { go p.Refuse(why) }
	p.Refuse(why) // the answer of the request before
	_, _, err = p.take(1, nil)
	require.ErrorIs(t, err, why)
	p.more = sync.OnceFunc(func() { go p.Give(5) })
	n, _, err = p.take(7, nil)
	require.NoError(t, err, "a refusal is of those who waited")
	assert.EqualValues(t, 5, n)

	p.Refuse(why) // the answer to the request that take has made, too
	p.Free(true)
	n, back, err = p.take(1<<40, nil)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<40, n)
	back(1 << 39)
	p.Free(false)
	p.more = func() { go p.Refuse(why) }
	_, _, err = p.take(1, nil)
	require.ErrorIs(t, err, why, "what was free is given to nobody")
}
