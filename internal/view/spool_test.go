package view

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope/agents"
)

// spoolHost is what of a daemon a spool needs, in a directory whose name is a pattern.
func spoolHost(t *testing.T) *Host {
	dir := filepath.Join(t.TempDir(), `[a]*?{b,c}\`)
	s := &Host{Host: account.Host{Paths: config.Paths{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}, Logger: slog.New(slog.DiscardHandler)}}
	require.NoError(t, os.MkdirAll(filepath.Join(s.Paths.Run, "spool"), 0o700))
	var err error
	s.Log, err = audit.Open(s.Paths.Audit(), audit.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Log.Close()) })
	return s
}

// spender is an agent with so many bytes left for the log.
type spender struct {
	Agent
	host *Host
	left float64
}

func (s *spender) Spend(events []audit.Event) (left float64) {
	s.left -= float64(256 * len(events))
	return s.left
}

func (s *spender) RecordFile(_ context.Context, _ <-chan struct{}, e audit.Event, before func() error) error {
	if err := before(); err != nil {
		return err
	}
	_, err := s.host.Log.Append(context.Background(), e)
	return err
}

var decided = time.Now()

// frame is event number n, as a view writes it.
func frame(t *testing.T, n int, op string) []byte {
	head := binary.LittleEndian.AppendUint64(nil, uint64(decided.Add(time.Duration(n)).UnixNano()))
	head = binary.LittleEndian.AppendUint64(head, 7)
	var b bytes.Buffer
	require.NoError(t, peer.NewWriter(&b, 1<<10, 0).Write(head, []byte(op), []byte("r"), []byte("k"), fmt.Append(nil, n)))
	return b.Bytes()
}

// writeSpool appends events to a file.
func writeSpool(t *testing.T, name string, text ...[]byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	_, err = f.Write(bytes.Join(text, nil))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// logged returns the paths in the log.
func logged(t *testing.T, s *Host) (paths []string) {
	t.Helper()
	for e, err := range audit.Read(t.Context(), s.Paths.Audit(), audit.Filter{}, false) {
		require.NoError(t, err)
		require.Equal(t, "a", e.Agent)
		require.Equal(t, audit.KindFile, e.Event)
		require.Equal(t, audit.Allow, e.Verdict)
		require.False(t, e.Decided.IsZero())
		paths = append(paths, e.Path)
	}
	return paths
}

// ownSpool is the spool of a view of agent a.
func ownSpool(t *testing.T, s *Host) (*spool, string) {
	f, err := os.CreateTemp(filepath.Join(s.Paths.Run, "spool"), "a.*")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return &spool{host: s, agent: "a", file: f, of: &spender{host: s, left: 1 << 30}}, f.Name()
}

// TestSpoolDrain: each event reaches the log once, in order, whatever is appended when.
func TestSpoolDrain(t *testing.T) {
	s := spoolHost(t)
	own, name := ownSpool(t, s)
	require.NoError(t, own.drain())
	writeSpool(t, name, frame(t, 1, "open"), frame(t, 2, "open"))
	require.NoError(t, own.drain())
	require.NoError(t, own.drain())
	assert.Equal(t, []string{"1", "2"}, logged(t, s))

	third := frame(t, 3, "open")
	for i := range third { // a write that is not complete
		writeSpool(t, name, third[i:i+1])
		require.NoError(t, own.drain())
	}
	assert.Equal(t, []string{"1", "2", "3"}, logged(t, s))

	require.NoError(t, own.take(true))
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Zero(t, info.Size())
	writeSpool(t, name, frame(t, 4, "open"))
	require.NoError(t, own.take(true))
	assert.Equal(t, []string{"1", "2", "3", "4"}, logged(t, s))
}

// TestSpoolDoubt: after an append whose result is not known, what is in the log is not
// appended again.
func TestSpoolDoubt(t *testing.T) {
	s := spoolHost(t)
	own, name := ownSpool(t, s)
	writeSpool(t, name, frame(t, 1, "open"), frame(t, 2, "open"))
	require.NoError(t, own.drain())
	writeSpool(t, name, frame(t, 3, "open"))
	own.read, own.doubt = 0, true
	require.NoError(t, own.drain())
	assert.False(t, own.doubt)
	assert.Equal(t, []string{"1", "2", "3"}, logged(t, s))
	own.read, own.doubt = 0, true
	require.NoError(t, own.drain())
	assert.Equal(t, []string{"1", "2", "3"}, logged(t, s))
}

// TestSpoolForged: a view that writes what no view writes is not believed, and what it wrote
// before is recorded.
func TestSpoolForged(t *testing.T) {
	for name, forged := range map[string][]byte{
		"text":      bytes.Repeat([]byte("text"), 100),
		"operation": frame(t, 2, "exec"),
		"too large": make([]byte, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			s := spoolHost(t)
			own, name := ownSpool(t, s)
			writeSpool(t, name, frame(t, 1, "open"), forged)
			assert.ErrorIs(t, own.drain(), errSpool)
			assert.Equal(t, []string{"1"}, logged(t, s))
			own.end(true)
			assert.NoFileExists(t, name)
			assert.Equal(t, []string{"1"}, logged(t, s))
		})
	}
	s := spoolHost(t)
	own, name := ownSpool(t, s)
	for i := range 3 * maxSpoolFile / 1000 {
		writeSpool(t, name, bytes.Repeat(frame(t, i, "open"), 20))
	}
	assert.ErrorIs(t, own.drain(), errSpool)
	assert.LessOrEqual(t, len(logged(t, s)), maxSpoolFile/len(frame(t, 1, "open")))
	require.NoError(t, os.Truncate(name, 0))
	assert.ErrorIs(t, own.drain(), errSpool)
}

// TestSpoolRoom: a view whose agent has nearly used its budget waits for each event.
func TestSpoolRoom(t *testing.T) {
	s := spoolHost(t)
	assert.False(t, (*spool)(nil).room())
	own, name := ownSpool(t, s)
	own.of = &spender{left: 4 * spoolRoom}
	require.True(t, own.room())
	for n := 0; own.room(); n++ {
		require.Less(t, n, 4*spoolRoom/256/100)
		writeSpool(t, name, bytes.Repeat(frame(t, n, "open"), 100))
		require.NoError(t, own.take(true))
	}
	assert.Positive(t, own.of.Spend(nil), "there is no debt")
}

// TestSpoolEnd: what is left of a view is appended, and the file removed, unless the process
// may still write.
func TestSpoolEnd(t *testing.T) {
	s := spoolHost(t)
	own, name := ownSpool(t, s)
	writeSpool(t, name, frame(t, 1, "open"))
	own.end(true)
	assert.Equal(t, []string{"1"}, logged(t, s))
	assert.NoFileExists(t, name)

	own, name = ownSpool(t, s)
	own.end(false)
	assert.FileExists(t, name)
}

// TestSpoolRecovered: the spools of dead views are appended once and removed, when their
// process is gone. Those of views that are served are not touched.
func TestSpoolRecovered(t *testing.T) {
	s := spoolHost(t)
	file := func(name string) string { return filepath.Join(s.Paths.Run, "spool", name) }
	writeSpool(t, file("a.1"), frame(t, 1, "open"), frame(t, 2, "open")[:20])
	writeSpool(t, file("a.2"), frame(t, 3, "open"))
	writeSpool(t, file("a.3"), frame(t, 4, "open"))
	used, usedName := ownSpool(t, s)
	writeSpool(t, usedName, frame(t, 5, "open"))
	s.spools.used = map[string]bool{usedName: true}
	alive, err := os.Open(file("a.2"))
	require.NoError(t, err)
	defer alive.Close()
	require.NoError(t, unix.Flock(int(alive.Fd()), unix.LOCK_SH))
	// The daemon was killed after it had appended these.
	killed, err := os.Open(file("a.3"))
	require.NoError(t, err)
	defer killed.Close()
	require.NoError(t, (&spool{host: s, agent: "a", file: killed}).drain())

	ctx, stop := context.WithCancel(t.Context())
	wait := s.RecoverSpools(ctx)
	defer wait()
	defer stop()
	assert.Equal(t, []string{"4", "1"}, logged(t, s))
	assert.NoFileExists(t, file("a.1"))
	assert.NoFileExists(t, file("a.3"))
	assert.FileExists(t, file("a.2"))
	writeSpool(t, file("a.2"), frame(t, 6, "open"))
	require.NoError(t, alive.Close())
	require.Eventually(t, func() bool { _, err := os.Stat(file("a.2")); return err != nil }, 20*time.Second, time.Millisecond)
	assert.Equal(t, []string{"4", "1", "3", "6"}, logged(t, s))

	assert.FileExists(t, usedName)
	used.end(false) // its process is not gone, and then it is
	require.Eventually(t, func() bool { _, err := os.Stat(usedName); return err != nil }, 20*time.Second, time.Millisecond)
	assert.Equal(t, []string{"4", "1", "3", "6", "5"}, logged(t, s))
}

// TestSpoolMessages: an event that a view sends is recorded after those in its spool, or not
// at all. With the answer the daemon permits the spool.
func TestSpoolMessages(t *testing.T) {
	s := spoolHost(t)
	own, name := ownSpool(t, s)
	v := &View{host: s, of: own.of, def: &agents.Definition{Name: "a"}, hurry: make(chan struct{})}
	v.spool.Store(own)
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		(&channel{View: v, alive: t.Context(), end: func(error) { ours.Close() }, wire: wire.New(ours, wire.MaxFromView), spool: own}).listen()
	}()
	defer func() { theirs.Close(); <-ended }()
	w := wire.New(theirs, wire.MaxToView)
	send := func(msg wire.FromView) (reply wire.ToView) {
		msg.ID = 1
		require.NoError(t, w.Send(msg))
		require.NoError(t, w.Receive(&reply))
		return reply
	}
	event := wire.FromView{Event: &audit.Event{Op: "open", Verdict: audit.Allow, Decided: decided}, Path: []byte("sent")}

	writeSpool(t, name, frame(t, 1, "open"))
	assert.Equal(t, wire.ToView{ID: 1, Spool: true}, send(event))
	writeSpool(t, name, frame(t, 2, "open"))
	assert.Equal(t, wire.ToView{ID: 1, Spool: true}, send(wire.FromView{Drain: true, Reset: true}))
	var got []string
	for e, err := range audit.Read(t.Context(), s.Paths.Audit(), audit.Filter{}, false) {
		require.NoError(t, err)
		got = append(got, e.Path)
		assert.Equal(t, e.Path == "sent", e.Decided.IsZero(), "a view that sends an event does not date it")
	}
	assert.Equal(t, []string{"1", "sent", "2"}, got)
	assert.Zero(t, own.read)

	own.of = &spender{host: s, left: spoolRoom / 2}
	assert.Equal(t, wire.ToView{ID: 1}, send(wire.FromView{Drain: true}))
	require.NoError(t, own.file.Close()) // the spool cannot be read
	for _, msg := range []wire.FromView{event, {Drain: true}} {
		reply := send(msg)
		assert.NotEmpty(t, reply.Error)
		assert.False(t, reply.Spool)
	}
	for e := range audit.Read(t.Context(), s.Paths.Audit(), audit.Filter{}, false) {
		assert.LessOrEqual(t, e.Seq, uint64(3))
	}
}
