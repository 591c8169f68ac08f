// Package bridge connects an MCP client on standard input and output to a
// daemon, and reconnects it after the daemon restarts.
//
// The client keeps its session. The bridge repeats the client's initialize
// request and its subscriptions to the next daemon. There it resumes the calls
// that the old daemon has left to the next one ([rpc.MethodKept]). For any other
// request that the old daemon received, the client gets an error that says that
// the effect is unknown. The bridge never sends such a request again. A request that arrives
// while there is no daemon waits up to [HoldTime]. Then the client gets an
// error that says that the request was not sent. The client gets a log message
// (notifications/message) for the loss and for the reconnection, and
// notifications/tools/list_changed. After [GiveUp] without a daemon the bridge
// exits.
package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/rpc"
)

// Limits of the wait for a daemon.
const (
	HoldTime = 10 * time.Second // for one request
	GiveUp   = time.Minute      // until the bridge exits
)

const (
	firstPause = 50 * time.Millisecond // the first pause between two attempts to connect; it doubles
	lastPause  = 250 * time.Millisecond
	tick       = 400 * time.Millisecond // interval of the checks of the daemon
	maxMessage = 16 << 20               // limit of a client's message in bytes; the daemon has the same limit
)

// Conn is a connection to a daemon. Close unblocks a Read in progress.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Bridge is the bridge of one client. Set the exported fields, then call Run
// once.
type Bridge struct {
	In       io.Reader // the client's messages, one a line
	Out, Log io.Writer // the messages to the client, and log lines for people

	Dial  func(context.Context) (Conn, error)
	Alive func(context.Context) error // returns why the daemon does not respond; nil if it does or if that is uncertain

	// Private is the method of the daemon's notifications about its sandbox, which the client does not get. Sandbox gets their
	// lines, and reports whether the sandbox is that of the connection before.
	Private string
	Sandbox func(line []byte) (same bool)

	holdTime, giveUp time.Duration // HoldTime and GiveUp unless a test sets them

	out sync.Mutex // held while lines are written

	mu          sync.Mutex
	s           session
	conn        Conn   // nil without a connection
	same        bool   // its sandbox is that of the connection before
	told        bool   // the daemon has said so, or not
	ready       bool   // the client's messages go to conn; otherwise they are held
	why         string // why the bridge closed conn
	inputClosed bool   // the client closed its end
	failed      error  // an error of In or Out
}

// Run relays messages until the client closes its end. It returns an error if
// the first connection fails or ends before the daemon has responded, if the
// client does not speak the protocol, and if no daemon is back within GiveUp.
func (b *Bridge) Run(ctx context.Context) error {
	b.s.open, b.s.serverRequests = map[string]request{}, map[string]jsonID{}
	if b.holdTime == 0 {
		b.holdTime, b.giveUp = HoldTime, GiveUp
	}
	conn, err := b.Dial(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	others.Go(func() { b.watch(ctx) })
	gone, leave := context.WithCancel(ctx)
	defer leave()
	go b.readClient(leave) // not waited for: it may block on the client forever
	b.setConn(conn)
	in, first, lost := newReader(conn), true, time.Now()
	for pause := firstPause; ; {
		began := time.Now()
		answered, err := b.relay(conn, in, !first)
		why, ended := b.lose(conn, err, err != nil && !answered)
		if ended || first && !answered {
			return b.end(cmp.Or(err, errEnded))
		}
		first = false
		if answered { // a daemon that did not respond does not count as a connection
			lost = time.Now()
			b.log("warning", why+"; reconnecting")
		}
		if answered && time.Since(began) > lastPause {
			pause = firstPause
		}
		if conn, in, err = b.reconnect(gone, &pause, lost.Add(b.giveUp)); err != nil {
			return b.end(err)
		}
	}
}

// whyLost is the reason for a connection that ended: the daemon exited, or the
// operator took the agent down.
const whyLost = "the connection to the daemon is lost"

var errEnded = errors.New("the daemon closed the connection; its log says why")

// end fails the requests that are still held, and returns the error of Run.
func (b *Bridge) end(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.write(append(b.s.expire(time.Now().Add(time.Hour), whyLost), b.s.abandon(whyLost)...)...)
	switch {
	case b.failed != nil:
		return b.failed
	case b.inputClosed:
		return nil
	}
	return err
}

// setConn sets the current connection, which watch checks.
func (b *Bridge) setConn(conn Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.why, b.same, b.told = conn, "", false, false
	b.s.leave()
}

// relay passes the daemon's messages to the client until the connection ends.
// answered reports whether the daemon has sent a message. relay announces a new
// daemon only after its first message.
func (b *Bridge) relay(conn Conn, in *reader, again bool) (answered bool, err error) {
	var flushing sync.WaitGroup
	flushing.Go(func() { b.flush(conn) })
	defer flushing.Wait()
	defer conn.Close()
	b.mu.Lock()
	restored := b.s.initialize != nil // the daemon has responded to that
	b.mu.Unlock()
	if again && restored {
		answered = true
		b.announceReturn()
	}
	for {
		line, err := in.line(math.MaxInt)
		if err != nil {
			return answered, nil // a read error only ends the connection
		}
		m, ok := parse(line)
		if text, refused := bytes.CutPrefix(line, []byte("scopefs: ")); refused && !ok {
			return answered, errors.New(strings.TrimSpace(string(text)))
		}
		if b.private(m, line) {
			if !restored { // without an initialize, nothing comes before it
				b.resume(conn)
			}
			continue
		}
		b.mu.Lock()
		line = b.s.receive(m, line)
		b.mu.Unlock()
		if line != nil {
			if err := b.write(line); err != nil {
				b.mu.Lock()
				b.failed = err
				b.mu.Unlock()
				return answered, err
			}
		}
		if !answered && again {
			b.announceReturn()
		}
		answered = true
	}
}

// private reports whether a line is not for the client.
func (b *Bridge) private(m message, line []byte) bool {
	if m.Method == rpc.MethodKept {
		if id, call, err := rpc.ParseKept(line); err == nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.s.kept(id, call)
		}
		return true
	}
	if b.Private == "" || m.Method != b.Private {
		return false
	}
	same := b.Sandbox(line)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.same, b.told = same, true
	return true
}

// resume resumes calls with a new daemon, once it has said whether the sandbox is the same.
func (b *Bridge) resume(conn Conn) {
	b.mu.Lock()
	var requests, errors [][]byte
	if b.conn == conn && b.told {
		requests, errors = b.s.resume(b.same)
	}
	b.mu.Unlock()
	for _, line := range requests {
		if _, err := conn.Write(line); err != nil {
			break // the connection is lost, and with the next one they are resumed
		}
	}
	_ = b.write(errors...)
}

// flush sends the held messages. Later messages then go directly to the
// connection.
func (b *Bridge) flush(conn Conn) {
	for {
		b.mu.Lock()
		if b.conn != conn {
			b.mu.Unlock()
			return
		}
		all := b.s.take()
		if len(all) == 0 {
			b.ready = true
			if b.inputClosed {
				_ = conn.CloseWrite()
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for _, q := range all {
			b.deliver(conn, q.message, q.line)
		}
	}
}

// deliver sends one message to conn, or holds it. A nil conn means the current
// connection if it is ready. If the write fails, the daemon did not get a whole
// message and did not act on it, so deliver holds the message for the next
// connection.
func (b *Bridge) deliver(conn Conn, m message, line []byte) {
	b.mu.Lock()
	if conn == nil && b.ready {
		conn = b.conn
	}
	if conn == nil || b.conn != conn {
		answer := b.s.hold(m, line, time.Now())
		b.mu.Unlock()
		if answer != nil {
			_ = b.write(answer)
		}
		return
	}
	text := b.s.send(m, line)
	b.mu.Unlock()
	if text == nil {
		return
	}
	_, err := conn.Write(text)
	if err == nil {
		return
	}
	conn.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, open := b.s.open[m.key()]; b.conn == conn && open && m.Method != methodListen {
		b.s.close(m.key())
		b.s.hold(m, line, time.Now())
	}
}

// readClient reads the client's messages until the client closes its end.
func (b *Bridge) readClient(leave func()) {
	in := newReader(b.In)
	for {
		line, err := in.line(maxMessage)
		if err != nil {
			b.mu.Lock()
			b.inputClosed = true
			if !errors.Is(err, io.EOF) {
				b.failed = fmt.Errorf("standard input: %w", err)
			}
			if b.ready {
				_ = b.conn.CloseWrite()
			}
			b.mu.Unlock()
			leave()
			return
		}
		if len(bytes.TrimSpace(line)) > 0 {
			m, _ := parse(line)
			b.deliver(nil, m, line) // the daemon answers a line that is no message
		}
	}
}

// write writes lines to the client.
func (b *Bridge) write(lines ...[]byte) error {
	b.out.Lock()
	defer b.out.Unlock()
	for _, line := range lines {
		if _, err := b.Out.Write(line); err != nil {
			return err
		}
	}
	return nil
}
