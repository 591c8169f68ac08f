// Package bridge connects an MCP client on standard input and output with a
// daemon, and again with the next daemon when that one has gone.
//
// The client keeps its session. The bridge repeats the client's initialize, and
// its subscriptions, to the next daemon. A request that the daemon had is
// answered with an error that says that its effect is unknown; it is never sent
// again. A request that comes while there is no daemon waits for [HoldTime], and
// is then answered with an error that says that it was not sent. The client gets
// a log message (notifications/message) for the loss and for the return, and
// notifications/tools/list_changed. After [GiveUp] without a daemon the bridge
// ends.
package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// How long the bridge is patient.
const (
	HoldTime = 10 * time.Second // for a daemon, with one request
	GiveUp   = time.Minute      // for a daemon, at all
)

const (
	firstPause = 50 * time.Millisecond // between two attempts; it doubles
	lastPause  = 250 * time.Millisecond
	tick       = 400 * time.Millisecond // between two looks at the daemon
	maxMessage = 16 << 20               // of the client, as the daemon has it
)

// Conn is a connection with a daemon. Close ends a Read that waits.
type Conn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Bridge is one client's. Set all fields, then call Run once.
type Bridge struct {
	In       io.Reader // the client's messages, one a line
	Out, Log io.Writer // for the client's program, and for people

	Dial  func(context.Context) (Conn, error)
	Alive func(context.Context) error // why the daemon does not answer, or nil; nil also while that is not certain

	holdTime, giveUp time.Duration // for tests

	out sync.Mutex // one line at a time

	mu      sync.Mutex
	s       session
	conn    Conn   // nil: none
	ready   bool   // the client's messages go to conn; else they are held
	why     string // conn was closed by us
	over    bool   // the client says no more
	garbage bool   // the client sent what is no message
	failed  error  // of In or Out
}

// Run relays messages until the client has gone. It returns an error when the
// first connection fails or ends before the daemon has answered, when the client
// does not speak the protocol, and when no daemon came back.
func (b *Bridge) Run(ctx context.Context) error {
	b.s.open, b.s.questions = map[string]request{}, map[string]jsonID{}
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
	go b.readClient(leave) // which may wait for the client for ever
	b.use(conn)
	in, first, lost := newReader(conn), true, time.Now()
	for pause := firstPause; ; {
		began := time.Now()
		answered, err := b.relay(conn, in, !first)
		why, ended := b.lose(conn, err, err != nil && !answered)
		if ended || first && !answered {
			return b.end(cmp.Or(err, errEnded))
		}
		first = false
		if answered { // else it is no better than none
			lost = time.Now()
			b.announce(why)
		}
		if answered && time.Since(began) > lastPause {
			pause = firstPause
		}
		if conn, in, err = b.reconnect(gone, &pause, lost.Add(b.giveUp)); err != nil {
			return b.end(err)
		}
	}
}

// whyLost is what is known of a connection that has ended: the daemon has, or the
// operator took the agent down.
const whyLost = "the connection with the daemon is lost"

var errEnded = errors.New("the daemon has ended the connection; its log says why")

// end answers what waits, and returns the error of Run.
func (b *Bridge) end(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.s.expire(time.Now().Add(time.Hour), whyLost) {
		_ = b.write(line)
	}
	switch {
	case b.failed != nil:
		return b.failed
	case b.over:
		return nil
	}
	return err
}

// use makes a connection the one that is watched and lost.
func (b *Bridge) use(conn Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.why = conn, ""
}

// relay passes messages on until the connection ends. answered reports whether
// the daemon has sent one; until then, a daemon that is new is not announced.
func (b *Bridge) relay(conn Conn, in *reader, again bool) (answered bool, err error) {
	var flushing sync.WaitGroup
	flushing.Go(func() { b.flush(conn) })
	defer flushing.Wait()
	defer conn.Close()
	if again && b.restored() {
		answered = true
		b.welcome()
	}
	for {
		line, err := in.line(0)
		if err != nil {
			return answered, nil // whatever it is, the connection is over
		}
		m, ok := parseAnswer(line)
		if text, refused := bytes.CutPrefix(line, []byte("scopefs: ")); refused && !ok {
			return answered, errors.New(strings.TrimSpace(string(text)))
		}
		b.mu.Lock()
		line = b.s.receive(m, line)
		b.mu.Unlock()
		if line != nil {
			if err := b.write(line); err != nil {
				b.fail(err)
				return answered, err
			}
		}
		if !answered && again {
			b.welcome()
		}
		answered = true
	}
}

// restored reports whether the daemon has answered the client's initialize, so
// that it is known to work.
func (b *Bridge) restored() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.s.initialize != nil
}

// flush sends what was held. Then messages go to the connection at once.
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
			if b.over {
				_ = conn.CloseWrite()
			}
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		for _, h := range all {
			b.deliver(conn, h.message, h.line)
		}
	}
}

// deliver sends one message to a connection, nil for the one that is ready, or
// holds it. When the daemon did not take a message as a whole it did not act on
// it, and the message is held for the next one.
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
		delete(b.s.open, m.key())
		b.s.hold(m, line, time.Now())
	}
}

// readClient reads the client's messages until it says no more.
func (b *Bridge) readClient(leave func()) {
	in := newReader(b.In)
	for {
		line, err := in.line(maxMessage)
		if err != nil {
			b.mu.Lock()
			b.over = true
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
			b.fromClient(line)
		}
	}
}

func (b *Bridge) fromClient(line []byte) {
	m, ok := parse(line)
	if !ok {
		b.mu.Lock()
		b.garbage = true
		b.mu.Unlock()
	}
	b.deliver(nil, m, line)
}

// write writes a line to the client.
func (b *Bridge) write(line []byte) error {
	b.out.Lock()
	defer b.out.Unlock()
	_, err := b.Out.Write(line)
	return err
}

func (b *Bridge) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = err
}
