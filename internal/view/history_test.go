package view

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/spooled"
)

// historianFunc is a historian.
type historianFunc func(ctx context.Context, request json.RawMessage) (json.RawMessage, error)

func (f historianFunc) Serve(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
	return f(ctx, request)
}

// agentOf is an Agent of which only Actor is called.
type agentOf struct {
	Agent
	actor func(pid int) history.Actor
}

func (a agentOf) Actor(pid int) history.Actor { return a.actor(pid) }

// link returns both ends of a view's connection, each of which listens.
func link(t *testing.T, h historian, of Agent) (*daemonLink, *channel) {
	ours, theirs := net.Pipe()
	beat, theirBeat, err := SocketPair("heart")
	require.NoError(t, err)
	conn := &connection{wire: NewWire(theirs, MaxToView), heart: heart.NewHeart(theirBeat), calls: peer.NewRequests[ToView](0), lost: make(chan struct{})}
	l := newDaemonLink(conn, 0)
	l.history = h
	c := &channel{View: &View{of: of}, alive: t.Context(), wire: NewWire(ours, MaxFromView), requests: peer.NewRequests[FromView](maxRequests)}
	left := make(chan struct{}, 2)
	go func() { l.listen(conn, nil); theirs.Close(); left <- struct{}{} }()
	go func() {
		for {
			var msg FromView
			if c.wire.Receive(&msg) != nil {
				break
			}
			switch {
			case msg.Answer != 0:
				c.requests.Deliver(msg.Answer, msg)
			case msg.Who != 0:
				actor := of.Actor(int(msg.Who))
				c.answer(ToView{ID: msg.ID, Actor: &actor})
			}
		}
		c.requests.Close(errors.New("the view has ended"))
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
	return l, c
}

func TestHistoryRequest(t *testing.T) {
	release := make(chan struct{})
	_, c := link(t, historianFunc(func(ctx context.Context, request json.RawMessage) (json.RawMessage, error) {
		switch string(request) {
		case `"fail"`:
			return nil, errors.New("undo: nothing to undo: list first")
		case `"large"`: // < has six bytes in a message
			return json.RawMessage(`"` + strings.Repeat("<", MaxHistoryAnswer/5) + `"`), nil
		case `"largest"`:
			return json.RawMessage(`"` + strings.Repeat("a", MaxHistoryAnswer-2) + `"`), nil
		case `"broken"`:
			return json.RawMessage("{"), nil
		case `"long"`:
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return request, nil
	}), nil)
	request := func(ctx context.Context, text string) (string, error) {
		reply, err := requestHistory(ctx, c.wire, c.requests, json.RawMessage(text))
		return string(reply), err
	}
	reply, err := request(t.Context(), `{"list":{"path":"a<b"}}`)
	require.NoError(t, err)
	assert.JSONEq(t, `{"list":{"path":"a<b"}}`, reply)
	for text, want := range map[string]string{
		`"fail"`:   "undo: nothing to undo: list first",
		`"large"`:  "204800 at most are sent",
		`"broken"`: "answer: ",
		`"` + strings.Repeat("a", MaxHistoryRequest) + `"`: "65536 at most",
	} {
		_, err := request(t.Context(), text)
		assert.ErrorContains(t, err, want)
	}
	reply, err = request(t.Context(), `"largest"`)
	require.NoError(t, err)
	assert.Len(t, reply, MaxHistoryAnswer)

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
	assert.Zero(t, c.requests.Waiting())
}

// TestHistoryEnded: a request ends with the view.
func TestHistoryEnded(t *testing.T) {
	asked := make(chan struct{})
	l, c := link(t, historianFunc(func(ctx context.Context, _ json.RawMessage) (json.RawMessage, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	}), nil)
	ended := make(chan error)
	go func() {
		_, err := requestHistory(t.Context(), c.wire, c.requests, json.RawMessage(`{}`))
		ended <- err
	}()
	<-asked
	_ = l.conn.wire.Send(strings.Repeat("x", MaxFromView)) // the daemon reads no more of it
	assert.ErrorContains(t, <-ended, "the view has ended")
}

// TestNoHistory: a view without a history says so.
func TestNoHistory(t *testing.T) {
	_, c := link(t, nil, nil)
	_, err := requestHistory(t.Context(), c.wire, c.requests, json.RawMessage(`{}`))
	assert.ErrorContains(t, err, errNoHistory.Error())
}

// TestMessages: an answer of the largest size fits in a message, with what else a message has.
func TestMessages(t *testing.T) {
	text, err := json.Marshal(FromView{Answer: 1 << 63, History: json.RawMessage(`"` + strings.Repeat("a", MaxHistoryAnswer-2) + `"`)})
	require.NoError(t, err)
	assert.Less(t, len(text), MaxFromView)
	text, err = json.Marshal(FromView{Answer: 1 << 63, Failed: string(spooled.Cut(string(bytes.Repeat([]byte{1}, 1<<20))))})
	require.NoError(t, err)
	assert.Less(t, len(text), MaxFromView)
}

// TestServeOfflineResumes: the daemon waits readyTimeout for a process that starts, and not for what it finishes.
func TestServeOfflineResumes(t *testing.T) {
	ours, theirs := net.Pipe()
	beat, theirBeat, err := SocketPair("heart")
	require.NoError(t, err)
	defer beat.Close()
	conn := &connection{wire: NewWire(theirs, MaxToView), heart: heart.NewHeart(theirBeat), calls: peer.NewRequests[ToView](0), lost: make(chan struct{})}
	l := newDaemonLink(conn, 0)
	ready, served := make(chan struct{}), make(chan error, 1)
	go func() { served <- l.serveOffline(conn, []string{"measure"}, func() { <-ready }) }()
	var msg FromView
	require.NoError(t, NewWire(ours, MaxFromView).Receive(&msg))
	assert.NotEmpty(t, msg.Ready)
	close(ready)
	ours.Close()
	require.NoError(t, <-served)
}
