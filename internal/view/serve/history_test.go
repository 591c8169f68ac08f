package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/spooled"
	"github.com/scopefs/scopefs/internal/view/wire"
)

// historianFunc is a historian.
type historianFunc func(ctx context.Context, request json.RawMessage) (json.RawMessage, error)

func (f historianFunc) Serve(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	return f(ctx, request)
}

// daemon is the other end: what it has sent requests waits for the answer.
type daemon struct {
	wire     *wire.Conn
	requests *peer.Requests[wire.FromView]
}

// request sends a request about the history and waits for the answer.
func (d *daemon) request(ctx context.Context, text string) (string, error) {
	call, err := d.requests.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer call.End()
	if err := d.wire.Send(wire.ToView{ID: call.ID, History: json.RawMessage(text)}); err != nil {
		return "", err
	}
	reply, err := call.Wait(ctx, func() {}, 0)
	if errors.Is(err, peer.ErrStuck) {
		return "", context.Cause(ctx)
	}
	if err == nil && reply.Failed != "" {
		err = errors.New(reply.Failed)
	}
	return string(reply.History), err
}

// hearts returns a socket pair for a heartbeat.
func hearts(t *testing.T) (ours, theirs *os.File) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(pair[0]), "heart"), os.NewFile(uintptr(pair[1]), "heart")
}

// link returns both ends of a view's connection, each of which listens.
func link(t *testing.T, h historian) (*daemonLink, *daemon) {
	ours, theirs := net.Pipe()
	beat, theirBeat := hearts(t)
	conn := &connection{wire: wire.New(theirs, wire.MaxToView), heart: heart.NewHeart(theirBeat), calls: peer.NewRequests[wire.ToView](0), lost: make(chan struct{})}
	l := newDaemonLink(conn, 0)
	l.history = h
	d := &daemon{wire.New(ours, wire.MaxFromView), peer.NewRequests[wire.FromView](wire.MaxRequests)}
	left := make(chan struct{}, 2)
	go func() { l.listen(conn, nil); theirs.Close(); left <- struct{}{} }()
	go func() {
		for {
			var msg wire.FromView
			if d.wire.Receive(&msg) != nil {
				break
			}
			d.requests.Deliver(msg.Answer, msg)
		}
		d.requests.Close(errors.New("the view has ended"))
		ours.Close()
		left <- struct{}{}
	}()
	t.Cleanup(func() {
		for _, f := range []interface{ Close() error }{ours, theirs, beat, theirBeat} {
			f.Close()
		}
		<-left
		<-left
	})
	return l, d
}

func TestHistoryRequest(t *testing.T) {
	release := make(chan struct{})
	_, d := link(t, historianFunc(func(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
		switch string(request) {
		case `"fail"`:
			return nil, errors.New("undo: nothing to undo: list first")
		case `"large"`: // < has six bytes in a message
			return json.RawMessage(`"` + strings.Repeat("<", wire.MaxHistoryAnswer/5) + `"`), nil
		case `"largest"`:
			return json.RawMessage(`"` + strings.Repeat("a", wire.MaxHistoryAnswer-2) + `"`), nil
		case `"broken"`:
			return json.RawMessage("{"), nil
		case `"long"`:
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return request, nil
	}))
	request := d.request
	reply, err := request(t.Context(), `{"list":{"path":"a<b"}}`)
	require.NoError(t, err)
	assert.JSONEq(t, `{"list":{"path":"a<b"}}`, reply)
	for text, want := range map[string]string{
		`"fail"`:   "undo: nothing to undo: list first",
		`"large"`:  "204800 at most are sent",
		`"broken"`: "answer: ",
	} {
		_, err := request(t.Context(), text)
		assert.ErrorContains(t, err, want)
	}
	reply, err = request(t.Context(), `"largest"`)
	require.NoError(t, err)
	assert.Len(t, reply, wire.MaxHistoryAnswer)

	// A request that takes long holds up no other, and its client may go.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { _, err := request(ctx, `"long"`); gone <- err }()
	reply, err = request(t.Context(), `"short"`)
	require.NoError(t, err)
	assert.Equal(t, `"short"`, reply)
	cancel()
	assert.ErrorIs(t, <-gone, context.Canceled)
	close(release)
	reply, err = request(t.Context(), `"after"`)
	require.NoError(t, err)
	assert.Equal(t, `"after"`, reply)
	assert.Zero(t, d.requests.Waiting())
}

// TestHistoryEnded: a request ends with the view.
func TestHistoryEnded(t *testing.T) {
	asked := make(chan struct{})
	l, d := link(t, historianFunc(func(ctx context.Context, _ json.RawMessage) (json.RawMessage, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}))
	ended := make(chan error)
	go func() {
		_, err := d.request(t.Context(), `{}`)
		ended <- err
	}()
	<-asked
	conn, err := l.Connected(time.Time{})
	require.NoError(t, err)
	_ = conn.wire.Send(strings.Repeat("x", wire.MaxFromView)) // the daemon reads no more of it
	assert.ErrorContains(t, <-ended, "the view has ended")
}

// TestNoHistory: a view without a history says so.
func TestNoHistory(t *testing.T) {
	_, d := link(t, nil)
	_, err := d.request(t.Context(), `{}`)
	assert.ErrorContains(t, err, wire.ErrNoHistory.Error())
}

// TestMessages: an answer of the largest size fits in a message, with what else a message has.
func TestMessages(t *testing.T) {
	text, err := json.Marshal(wire.FromView{Answer: 1 << 63, History: json.RawMessage(`"` + strings.Repeat("a", wire.MaxHistoryAnswer-2) + `"`)})
	require.NoError(t, err)
	assert.Less(t, len(text), wire.MaxFromView)
	text, err = json.Marshal(wire.FromView{Answer: 1 << 63, Failed: string(spooled.Cut(string(bytes.Repeat([]byte{1}, 1<<20))))})
	require.NoError(t, err)
	assert.Less(t, len(text), wire.MaxFromView)
}

// TestServeOfflineResumes: the daemon waits readyTimeout for a process that starts, and not for what it finishes.
func TestServeOfflineResumes(t *testing.T) {
	ours, theirs := net.Pipe()
	beat, theirBeat := hearts(t)
	defer beat.Close()
	conn := &connection{wire: wire.New(theirs, wire.MaxToView), heart: heart.NewHeart(theirBeat), calls: peer.NewRequests[wire.ToView](0), lost: make(chan struct{})}
	l := newDaemonLink(conn, 0)
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() { served <- l.serveOffline(conn, []string{"measure"}, func() { <-ready }) }()
	var msg wire.FromView
	require.NoError(t, wire.New(ours, wire.MaxFromView).Receive(&msg))
	assert.NotEmpty(t, msg.Ready)
	close(ready)
	ours.Close()
	require.NoError(t, <-served)
}
