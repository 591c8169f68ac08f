package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// watch closes the connection if the daemon does not respond while the client
// waits. It also fails held requests after holdTime without a connection.
func (b *Bridge) watch(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		b.mu.Lock()
		conn, waits := b.conn, b.conn != nil && (!b.ready || b.inputClosed || b.s.waiting())
		var late [][]byte
		if !b.ready {
			late = b.s.expire(time.Now().Add(-b.holdTime), whyLost)
		}
		b.mu.Unlock()
		_ = b.write(late...)
		if !waits {
			continue
		}
		if err := b.Alive(ctx); err != nil && ctx.Err() == nil {
			b.mu.Lock()
			if b.conn == conn {
				b.why = err.Error()
				conn.Close()
			}
			b.mu.Unlock()
		}
	}
}

// lose closes a connection and fails the requests in flight. ended reports
// whether the bridge must exit. refused means that the daemon refused the
// connection and did not act on any request.
func (b *Bridge) lose(conn Conn, err error, refused bool) (why string, ended bool) {
	conn.Close()
	b.mu.Lock()
	why = whyLost
	if b.why != "" {
		why = b.why
	} else if err != nil {
		why = err.Error()
	}
	b.conn, b.ready = nil, false
	lines, failed := b.s.lose(why, refused)
	ended = b.inputClosed || b.failed != nil
	b.mu.Unlock()
	_ = b.write(lines...)
	if failed > 0 {
		why = fmt.Sprintf("%s; requests in flight whose effect is unknown: %d", why, failed)
	}
	return why, ended
}

// announceReturn reports to the client that a daemon is back, and that its tools may
// have changed.
func (b *Bridge) announceReturn() {
	b.mu.Lock()
	same := b.same
	b.mu.Unlock()
	where := "in a new sandbox: its /tmp is empty and no background process runs"
	if same {
		where = "in the same sandbox"
	}
	b.log("notice", "connected to the daemon again, "+where)
	b.mu.Lock()
	var lines [][]byte
	if b.s.initialized != nil {
		lines = append(lines, notification(methodListChanged, nil))
	}
	for _, r := range b.s.listens() {
		if contentOf(r.line).Params.Notifications.ToolsListChanged { // SEP-2575
			lines = append(lines, notification(methodListChanged, object{"_meta": object{"io.modelcontextprotocol/subscriptionId": r.id}}))
		}
	}
	b.mu.Unlock()
	_ = b.write(lines...)
}

// log writes a log line for people. If the client's session has log messages of
// this severity, log also sends one to the client.
func (b *Bridge) log(severity, text string) {
	fmt.Fprintf(b.Log, "scopefs: %s\n", text)
	b.mu.Lock()
	send := b.s.initialized != nil && level(severity) >= level(contentOf(b.s.setLevel).Params.Level)
	b.mu.Unlock()
	if send {
		_ = b.write(notification(methodMessage, object{"level": severity, "logger": "scopefs", "data": text}))
	}
}

// reconnect connects to a daemon and restores the client's session. It tries
// until the given time. The pause between attempts doubles up to lastPause,
// with jitter.
func (b *Bridge) reconnect(ctx context.Context, pause *time.Duration, until time.Time) (Conn, *reader, error) {
	last := errors.New(whyLost)
	for {
		if time.Now().After(until) {
			return nil, nil, fmt.Errorf("no daemon for %v: %w", b.giveUp, last)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(*pause/2 + rand.N(*pause/2)):
		}
		*pause = min(*pause*2, lastPause)
		limited, cancel := context.WithDeadline(ctx, until.Add(lastPause))
		conn, err := b.Dial(limited)
		if err == nil {
			var in *reader
			stop := context.AfterFunc(limited, func() { conn.Close() })
			if in, err = b.restore(conn); err == nil && stop() {
				cancel()
				return conn, in, nil
			}
			b.mu.Lock()
			b.conn = nil
			switch {
			case b.why != "":
				last = errors.New(b.why)
			case limited.Err() == nil: // not our own Close, which tells nothing
				last = err
			}
			b.mu.Unlock()
			conn.Close()
		} else {
			last = err
		}
		cancel()
	}
}

// restore repeats the state of the client's session to a new connection.
func (b *Bridge) restore(conn Conn) (*reader, error) {
	b.setConn(conn)
	in := newReader(conn)
	b.mu.Lock()
	initialize, initialized, setLevel, version := b.s.initialize, b.s.initialized, b.s.setLevel, b.s.version
	b.mu.Unlock()
	var text []byte
	if initialize != nil {
		if err := b.reinitialize(conn, in, initialize, version); err != nil {
			return nil, err
		}
		text = append(text, initialized...)
	}
	if setLevel != nil {
		const id = "scopefs-level"
		line := withID(setLevel, jsonID(`"`+id+`"`))
		b.mu.Lock()
		b.s.open[key(jsonID(`"`+id+`"`))] = request{method: methodSetLevel, ours: true}
		b.mu.Unlock()
		text = append(text, line...)
	}
	b.mu.Lock()
	text = append(text, b.s.repeat()...)
	b.mu.Unlock()
	_, err := conn.Write(text)
	if initialize != nil && err == nil {
		b.resume(conn)
	}
	return in, err
}

// reinitialize repeats the client's initialize. It discards the response, because the
// client has one.
func (b *Bridge) reinitialize(conn Conn, in *reader, initialize []byte, version string) error {
	_, failed := conn.Write(initialize) // ignore a write error if a response explains it
	request, _ := parse(initialize)
	for {
		line, err := in.line(math.MaxInt)
		if err != nil {
			return fmt.Errorf("the daemon closed the connection: %w", errors.Join(failed, err))
		}
		m, ok := parse(line)
		if text, refused := bytes.CutPrefix(line, []byte("scopefs: ")); refused && !ok {
			return errors.New(strings.TrimSpace(string(text)))
		}
		if b.private(m, line) || !m.response() || m.key() != request.key() {
			continue
		}
		if now := contentOf(line).Result.ProtocolVersion; now != version {
			return fmt.Errorf("the daemon now speaks version %q of the protocol and the session version %q: restart the client", now, version)
		}
		return nil
	}
}
