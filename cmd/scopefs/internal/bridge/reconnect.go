package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// watch closes a connection whose daemon does not answer, while the client waits
// for it, and answers requests that have waited too long for a connection.
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
		conn, waits := b.conn, b.conn != nil && (!b.ready || b.over || b.s.waiting())
		var late [][]byte
		if !b.ready {
			late = b.s.expire(time.Now().Add(-b.holdTime), whyLost)
		}
		b.mu.Unlock()
		for _, line := range late {
			_ = b.write(line)
		}
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

// lose ends a connection: each request that the daemon had is answered. ended
// reports whether the bridge ends with it. A daemon that refused the connection has
// done none of them.
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
	ended = b.over || b.failed != nil || b.garbage
	b.mu.Unlock()
	for _, line := range lines {
		_ = b.write(line)
	}
	if failed > 0 {
		why = fmt.Sprintf("%s; requests under way, of which the effect is unknown: %d", why, failed)
	}
	return why, ended
}

// announce says that the daemon has gone.
func (b *Bridge) announce(why string) {
	b.say("warning", why+"; connecting again")
}

// welcome says that a daemon is there again, and that it may have other tools.
func (b *Bridge) welcome() {
	b.say("notice", "connected with the daemon again, in a new sandbox: its /tmp is empty, and nothing runs in the background")
	b.mu.Lock()
	var lines [][]byte
	if b.s.initialized != nil {
		lines = append(lines, notification(methodListChanged, nil))
	}
	for _, r := range b.s.listens() {
		if wantsTools(r.line) { // SEP-2575
			lines = append(lines, notification(methodListChanged, object{"_meta": object{"io.modelcontextprotocol/subscriptionId": r.id}}))
		}
	}
	b.mu.Unlock()
	for _, line := range lines {
		_ = b.write(line)
	}
}

// say logs for people and, in a session that has log messages without a request
// for them, to the client.
func (b *Bridge) say(severity, text string) {
	fmt.Fprintf(b.Log, "scopefs: %s\n", text)
	b.mu.Lock()
	tell := b.s.initialized != nil && level(severity) >= levelOf(b.s.setLevel)
	b.mu.Unlock()
	if tell {
		_ = b.write(notification(methodMessage, object{"level": severity, "logger": "scopefs", "data": text}))
	}
}

// reconnect makes a connection with the client's session, until a time. The pause
// between attempts doubles, with jitter.
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
			if b.conn, last = nil, err; b.why != "" {
				last = errors.New(b.why)
			}
			b.mu.Unlock()
			conn.Close()
		} else {
			last = err
		}
		cancel()
	}
}

// restore gives a connection the state of the client's session.
func (b *Bridge) restore(conn Conn) (*reader, error) {
	b.use(conn)
	in := newReader(conn)
	b.mu.Lock()
	initialize, initialized, setLevel, version := b.s.initialize, b.s.initialized, b.s.setLevel, b.s.version
	listens := b.s.listens()
	b.mu.Unlock()
	var text []byte
	if initialize != nil {
		if err := greet(conn, in, initialize, version); err != nil {
			return nil, err
		}
		text = append(text, initialized...)
	}
	if setLevel != nil {
		const id = "scopefs-level"
		line, err := withID(setLevel, jsonID(`"`+id+`"`))
		if err != nil {
			return nil, err
		}
		b.mu.Lock()
		b.s.open[message{ID: jsonID(`"` + id + `"`)}.key()] = request{method: methodSetLevel, ours: true}
		b.mu.Unlock()
		text = append(text, line...)
	}
	for _, r := range listens {
		text = append(text, r.line...)
	}
	_, err := conn.Write(text)
	return in, err
}

// greet repeats the client's initialize. The client knows the answer already.
func greet(conn Conn, in *reader, initialize []byte, version string) error {
	_, failed := conn.Write(initialize) // a daemon that refuses has said why
	asked, _ := parse(initialize)
	for {
		line, err := in.line(0)
		if err != nil {
			return fmt.Errorf("the daemon ended the connection: %w", errors.Join(failed, err))
		}
		m, ok := parseAnswer(line)
		if text, refused := bytes.CutPrefix(line, []byte("scopefs: ")); refused && !ok {
			return errors.New(strings.TrimSpace(string(text)))
		}
		if !m.response() || m.key() != asked.key() {
			continue
		}
		if now := versionOf(line); now != version {
			return fmt.Errorf("the daemon speaks version %q of the protocol now, and the session has %q: start the client again", now, version)
		}
		return nil
	}
}
