package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stage is a client, a bridge, and daemons that the test plays.
type stage struct {
	t     *testing.T
	in    *io.PipeWriter
	out   *bufio.Reader
	log   *bytes.Buffer
	dials chan net.Conn // the daemon's ends of the connections
	down  atomic.Bool   // Dial fails
	sick  atomic.Bool   // Alive fails
	ended chan error
	last  *daemon
}

// unixConn is a Conn over a Unix socket.
type unixConn struct{ *net.UnixConn }

func newStage(t *testing.T, change func(*Bridge)) *stage {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &stage{t: t, in: inW, out: bufio.NewReader(outR), log: &bytes.Buffer{}, dials: make(chan net.Conn, 100), ended: make(chan error, 1)}
	l, err := net.Listen("unix", t.TempDir()+"/s")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	b := &Bridge{In: inR, Out: outW, Log: s.log, holdTime: time.Minute, giveUp: time.Minute,
		Dial: func(ctx context.Context) (Conn, error) {
			if s.down.Load() {
				return nil, errors.New("nobody is there")
			}
			conn, err := net.Dial("unix", l.Addr().String())
			require.NoError(t, err)
			theirs, err := l.Accept()
			require.NoError(t, err)
			s.dials <- theirs
			return unixConn{conn.(*net.UnixConn)}, nil
		},
		Alive: func(context.Context) error {
			if s.sick.Load() {
				return errors.New("the daemon is stopped")
			}
			return nil
		},
	}
	if change != nil {
		change(b)
	}
	go func() { s.ended <- b.Run(context.Background()); outW.Close() }()
	return s
}

// daemon is the daemon's end of a connection.
type daemon struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func (s *stage) daemon() *daemon {
	s.t.Helper()
	select {
	case c := <-s.dials:
		s.t.Cleanup(func() { c.Close() })
		s.last = &daemon{c, s.t, bufio.NewReader(c)}
		return s.last
	case <-time.After(20 * time.Second):
		s.t.Fatal("nobody connects")
		return nil
	}
}

func (d *daemon) gets(want string) {
	d.t.Helper()
	_ = d.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := d.in.ReadString('\n')
	require.NoError(d.t, err)
	assert.JSONEq(d.t, want, line)
}

func (d *daemon) says(text string) {
	d.t.Helper()
	_, err := io.WriteString(d, text+"\n")
	require.NoError(d.t, err)
}

func (s *stage) says(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.in, text+"\n")
	require.NoError(s.t, err)
}

// line reads a line sent to the client.
func (s *stage) line() string {
	s.t.Helper()
	got := make(chan string, 1)
	go func() { line, _ := s.out.ReadString('\n'); got <- line }()
	select {
	case line := <-got:
		return line
	case <-time.After(20 * time.Second):
		s.t.Fatal("the client gets nothing")
		return ""
	}
}

func (s *stage) gets(want string) {
	s.t.Helper()
	assert.JSONEq(s.t, want, s.line())
}

// failed reads an error response and returns its request's ID and effect.
func (s *stage) failed() (id, effect string) {
	s.t.Helper()
	var m struct {
		ID    json.RawMessage
		Error struct {
			Code    int
			Message string
			Data    struct{ Code, Effect string }
		}
	}
	line := s.line()
	require.NoError(s.t, json.Unmarshal([]byte(line), &m), line)
	assert.Equal(s.t, codeGone, m.Error.Code, line)
	assert.NotEmpty(s.t, m.Error.Message)
	return string(m.ID), m.Error.Data.Effect
}

const (
	helloLine   = `{"id":"h","jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":"2025-06-18"}}`
	welcomeLine = `{"jsonrpc":"2.0","id":"h","result":{"protocolVersion":"2025-06-18","capabilities":{}}}`
	readyLine   = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	changedLine = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
)

func call(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"x"}}`, id)
}

func result(id string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, id) }

// greeted returns a stage with an initialized session.
func greeted(t *testing.T, change func(*Bridge)) (*stage, *daemon) {
	t.Helper()
	s := newStage(t, change)
	d := s.daemon()
	s.says(helloLine)
	d.gets(helloLine)
	d.says(welcomeLine)
	s.gets(welcomeLine)
	s.says(readyLine)
	d.gets(readyLine)
	return s, d
}

// restored returns the next daemon, in which the bridge has restored the session.
func (s *stage) restored() *daemon {
	s.t.Helper()
	d := s.daemon()
	d.gets(helloLine)
	d.says(welcomeLine)
	d.gets(readyLine)
	return d
}

// answered requires that a call reaches the daemon, and its answer the client.
func (s *stage) answered(d *daemon, id string) {
	s.t.Helper()
	s.says(call(id))
	d.gets(call(id))
	d.says(result(id))
	s.gets(result(id))
}

// message reads a log message and returns its level.
func (s *stage) message() string {
	s.t.Helper()
	var m struct {
		Method string
		Params struct{ Level, Logger, Data string }
	}
	line := s.line()
	require.NoError(s.t, json.Unmarshal([]byte(line), &m), line)
	assert.Equal(s.t, "notifications/message", m.Method, line)
	return m.Params.Level
}

func (s *stage) end() error {
	s.t.Helper()
	s.in.Close()
	if d := s.last; !s.sick.Load() { // close once the client has closed its end
		_ = d.SetReadDeadline(time.Time{})
		go func() { io.Copy(io.Discard, d.in); d.Close() }()
	}
	select {
	case err := <-s.ended:
		return err
	case <-time.After(20 * time.Second):
		s.t.Fatal("the bridge does not end")
		return nil
	}
}
