package loopback

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// Bounds limit the connections of a listener.
type Bounds struct {
	All       int
	Strangers int // without an owner yet
	Each      int // of one owner
}

// Conns is a listener that bounds connections. A new connection is a stranger's until a request on it proves an owner: see
// [Begin]. Strangers compete with strangers alone, and the connections of an owner with each other: one too many closes the
// one that was used least recently. Connections without a request under way go first. When the table is full, the owner
// with the most loses one.
//
// It is not golang.org/x/net/netutil: LimitListener counts all connections as one
// and stops accepting, so that one client without a token would lock out all others.
type Conns struct {
	net.Listener
	most Bounds

	mu    sync.Mutex
	of    map[string]*list.List // of *boundedConn, the least recently used first; "" are the strangers'
	total int
}

// NewConns returns a listener that bounds the connections of another one. The server's ConnContext must be [ConnContext].
func NewConns(l net.Listener, most Bounds) *Conns {
	return &Conns{Listener: l, most: most, of: map[string]*list.List{}}
}

// ConnContext makes a connection known to [Begin]: see [net/http.Server].
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// Begin gives the connection of a request, by its context, to an owner who is not "", until another request on it has
// another owner. The request is under way until end.
func Begin(ctx context.Context, owner string) (end func()) {
	c, ok := ctx.Value(connKey{}).(*boundedConn)
	if !ok {
		return func() {}
	}
	c.begin(owner)
	return c.end
}

// Accept returns the next connection.
func (t *Conns) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &boundedConn{Conn: conn, table: t}
	t.mu.Lock()
	t.put(c, "")
	evicted := t.over("", t.most.Strangers)
	t.mu.Unlock()
	evicted.close()
	return c, nil
}

// boundedConn is a connection of Conns.
type boundedConn struct {
	net.Conn
	table *Conns

	asked   sync.Once // see User
	uid     uint32
	unknown error

	// Guarded by table.mu.
	owner string
	at    *list.Element // nil: closed
	busy  bool          // a request is under way
}

type connKey struct{} // of a request's context

// begin marks a request of an owner.
func (c *boundedConn) begin(owner string) {
	t := c.table
	t.mu.Lock()
	var evicted evictions
	if c.at != nil {
		t.drop(c)
		t.put(c, owner)
		c.busy = true
		evicted = t.over(owner, t.most.Each)
		if t.total > t.most.All {
			most := owner
			for of, all := range t.of {
				if of != "" && all.Len() > t.of[most].Len() {
					most = of
				}
			}
			evicted = append(evicted, t.over(most, t.of[most].Len()-1)...)
		}
	}
	t.mu.Unlock()
	evicted.close()
}

// end marks the end of a request.
func (c *boundedConn) end() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.busy = false
}

func (c *boundedConn) Close() error {
	c.table.mu.Lock()
	c.table.drop(c)
	c.table.mu.Unlock()
	return c.Conn.Close()
}

// put adds a connection. The caller holds t.mu.
func (t *Conns) put(c *boundedConn, owner string) {
	if t.of[owner] == nil {
		t.of[owner] = list.New()
	}
	c.owner, c.at = owner, t.of[owner].PushBack(c)
	t.total++
}

// drop removes a connection. The caller holds t.mu.
func (t *Conns) drop(c *boundedConn) {
	if c.at == nil {
		return
	}
	t.of[c.owner].Remove(c.at)
	if t.of[c.owner].Len() == 0 {
		delete(t.of, c.owner)
	}
	c.at = nil
	t.total--
}

// evictions are connections to close when t.mu is free.
type evictions []*boundedConn

func (e evictions) close() {
	for _, c := range e {
		c.Conn.Close()
	}
}

// over removes the connections of an owner beyond a limit, never the newest. The
// caller holds t.mu.
func (t *Conns) over(owner string, limit int) (evicted evictions) {
	for all := t.of[owner]; all.Len() > max(limit, 1); {
		oldest := all.Front()
		for e := oldest; e != all.Back(); e = e.Next() {
			if !e.Value.(*boundedConn).busy {
				oldest = e
				break
			}
		}
		c := oldest.Value.(*boundedConn)
		t.drop(c)
		evicted = append(evicted, c)
	}
	return evicted
}
