package daemon

import (
	"container/list"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
)

// The bounds of HTTP.
const (
	// bodyTime is for a request to be there as a whole.
	bodyTime = 30 * time.Second
	// headerTime is for the header of a request. Local clients send it in one piece.
	headerTime = 3 * time.Second

	// Every process of the host may connect, and a connection takes a descriptor from
	// what else the daemon does.
	maxConns     = 1024                    // in all
	maxStrangers = 128                     // of those that sent no valid token yet
	maxOfToken   = 2 * session.MaxRequests // with the token of one agent
)

// bounded serves no token so much that nothing is left for others.
func (h *httpFace) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, ok := h.whose(r)
		var a *agent.Agent
		if ok {
			a = h.d.agent(id)
		}
		if a == nil {
			next.ServeHTTP(w, r) // which refuses
			return
		}
		control := http.NewResponseController(w)
		end, ok := a.BeginRequest()
		if !ok {
			w.Header().Set("Connection", "close")
			_ = control.SetReadDeadline(time.Now())
			http.Error(w, "there are too many requests under way", http.StatusTooManyRequests)
			return
		}
		defer end()
		if conn, ok := r.Context().Value(connKey{}).(*httpConn); ok {
			conn.begin(id)
			defer conn.end()
		}
		if r.Body != http.NoBody {
			_ = control.SetReadDeadline(time.Now().Add(h.patience))
			body := &timely{ReadCloser: r.Body, control: control}
			r.Body = body
			defer body.over()
		}
		next.ServeHTTP(w, r)
	})
}

// timely is a body with a deadline, which goes with its end: from there on the
// server reads to see whether the client is still there, as long as it answers.
type timely struct {
	io.ReadCloser
	control *http.ResponseController
	ended   bool
}

func (t *timely) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if err == io.EOF {
		t.ended = true
		_ = t.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// over discards the rest of an unread body when the request is answered.
func (t *timely) over() {
	if !t.ended {
		_ = t.control.SetReadDeadline(time.Now())
	}
}

// connTable is a listener that bounds connections. A new connection is a
// stranger's until a request on it has a valid token. Strangers compete with
// strangers alone, and the connections of a token with each other: one too many
// closes the one that was used least recently. Connections without a request
// under way go first. When the table is full, the token with the most loses one.
// It is not golang.org/x/net/netutil: LimitListener counts all connections as one
// and stops accepting, so that one client without a token would lock out all others.
type connTable struct {
	net.Listener

	mu    sync.Mutex
	of    map[scope.ID]*list.List // of *httpConn, the least recently used first; "" are the strangers'
	total int
}

func newConnTable(l net.Listener) *connTable {
	return &connTable{Listener: l, of: map[scope.ID]*list.List{}}
}

func (t *connTable) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &httpConn{Conn: conn, table: t}
	t.mu.Lock()
	t.put(c, "")
	evicted := t.over("", maxStrangers)
	t.mu.Unlock()
	evicted.close()
	return c, nil
}

// httpConn is one connection.
type httpConn struct {
	net.Conn
	table *connTable

	// Guarded by table.mu.
	owner scope.ID
	at    *list.Element // nil: closed
	busy  bool          // a request is under way
}

type connKey struct{} // of a request's context

// begin marks a request that has the token of an agent.
func (c *httpConn) begin(id scope.ID) {
	t := c.table
	t.mu.Lock()
	var evicted evictions
	if c.at != nil {
		t.drop(c)
		t.put(c, id)
		c.busy = true
		evicted = t.over(id, maxOfToken)
		if t.total > maxConns {
			most := id
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
func (c *httpConn) end() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.busy = false
}

func (c *httpConn) Close() error {
	c.table.mu.Lock()
	c.table.drop(c)
	c.table.mu.Unlock()
	return c.Conn.Close()
}

// put adds a connection. The caller holds t.mu.
func (t *connTable) put(c *httpConn, owner scope.ID) {
	if t.of[owner] == nil {
		t.of[owner] = list.New()
	}
	c.owner, c.at = owner, t.of[owner].PushBack(c)
	t.total++
}

// drop removes a connection. The caller holds t.mu.
func (t *connTable) drop(c *httpConn) {
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
type evictions []*httpConn

func (e evictions) close() {
	for _, c := range e {
		c.Conn.Close()
	}
}

// over removes the connections of an owner beyond a limit, never the newest. The
// caller holds t.mu.
func (t *connTable) over(owner scope.ID, limit int) (evicted evictions) {
	for all := t.of[owner]; all.Len() > max(limit, 1); {
		oldest := all.Front()
		for e := oldest; e != all.Back(); e = e.Next() {
			if !e.Value.(*httpConn).busy {
				oldest = e
				break
			}
		}
		c := oldest.Value.(*httpConn)
		t.drop(c)
		evicted = append(evicted, c)
	}
	return evicted
}
