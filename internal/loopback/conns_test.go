package loopback

import (
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var bounds = Bounds{All: 1024, Strangers: 128, Each: 128}

// nowhere is a listener of connections that lead nowhere.
type nowhere struct{ net.Listener }

func (nowhere) Accept() (net.Conn, error) { return &nobody{}, nil }

type nobody struct {
	net.Conn
	closed bool
}

func (n *nobody) Close() error { n.closed = true; return nil }

func accept(t *testing.T, table *Conns, n int) (conns []*boundedConn) {
	for range n {
		c, err := table.Accept()
		require.NoError(t, err)
		conns = append(conns, c.(*boundedConn))
	}
	return conns
}

// open returns how many of them are open.
func open(conns []*boundedConn) (n int) {
	for _, c := range conns {
		if !c.Conn.(*nobody).closed {
			n++
		}
	}
	return n
}

func TestConns(t *testing.T) {
	t.Run("a stranger closes the oldest stranger", func(t *testing.T) {
		table := NewConns(nowhere{}, bounds)
		ours := accept(t, table, 1)
		ours[0].begin("a")
		ours[0].end()
		first := accept(t, table, bounds.Strangers)
		assert.Equal(t, bounds.Strangers, open(first))
		accept(t, table, 3)
		assert.Zero(t, open(first[:3]))
		assert.Equal(t, bounds.Strangers-3, open(first))
		accept(t, table, 10*bounds.Strangers)
		assert.Zero(t, open(first))
		assert.Equal(t, 1, open(ours))
	})
	t.Run("an owner closes its own, without a request first", func(t *testing.T) {
		table := NewConns(nowhere{}, bounds)
		other := accept(t, table, 1)
		other[0].begin("b")
		other[0].end()
		var hers []*boundedConn
		for i := range bounds.Each {
			c := accept(t, table, 1)[0]
			hers = append(hers, c)
			c.begin("a")
			if i%2 == 1 {
				c.end()
			}
		}
		assert.Equal(t, bounds.Each, open(hers))
		accept(t, table, 1)[0].begin("a")
		assert.Equal(t, 1, open(hers[:1]), "a request is under way")
		assert.Zero(t, open(hers[1:2]))
		assert.Equal(t, bounds.Each-1, open(hers))
		assert.Equal(t, 1, open(other))
	})
	t.Run("a full table closes one of the owner with the most", func(t *testing.T) {
		table := NewConns(nowhere{}, bounds)
		var all []*boundedConn
		for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			for range bounds.Each - 1 {
				c := accept(t, table, 1)[0]
				c.begin(id)
				c.end()
				all = append(all, c)
			}
		}
		most := accept(t, table, 1)[0]
		most.begin("a")
		more := accept(t, table, 8)
		for _, c := range more {
			c.begin("z")
		}
		assert.Equal(t, 8, open(more))
		assert.Equal(t, bounds.All, table.total)
		assert.Zero(t, open(all[:1]), "the first of a")
		assert.Equal(t, len(all)-1, open(all))
		for _, c := range append(append(all, more...), most) {
			c.Close()
			c.Close()
		}
		assert.Zero(t, table.total)
		assert.Empty(t, table.of)
	})
}
