// Package messages has the drivers of the messages: an embedded NATS server ([OpenEmbedded]),
// or an outside one ([OpenServer]). Package tools/messages has the tools, and says what a store does.
package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/messages"
)

// The bounds of a server.
const (
	pageText = 256 << 10        // bytes of the messages of a page, after which it ends
	network  = 2 * time.Second  // of a dial and a write
	delivery = 4 * time.Second  // of messages that exist
	batch    = 16               // messages that are asked for at once
	readers  = 32               // filters of an agent's part with a position
	day      = 24 * time.Hour   // that a position outlives the messages
	maxFrame = 1 << 20          // bytes that a server sends at once
	ping     = 10 * time.Second // between checks that a server answers
)

// A Store publishes and reads messages on a server. It connects at the first
// call, and again at the next call after the connection was lost. Methods may be
// called by several goroutines. Each returns within 5 seconds and its wait.
//
// Errors are a *[tools.Error]. After [tools.Unavailable], a message may have been
// published.
type Store struct {
	server  backend
	limits  door.Limits
	bound   time.Duration // of a call, beside its wait
	reading sync.Map      // the readers of calls that run now
	turn    chan struct{} // held by the goroutine that uses the fields below
	link    *link
	closed  bool
}

// A backend is where a Store connects to. Its methods other than failed and
// explain are called one at a time.
type backend interface {
	connect(ctx context.Context) (*link, error)

	// asleep reports whether connect would start a server, and why it could not.
	asleep() (bool, error)

	// failed reports whether the connection is of no use after err.
	failed(err error) bool

	// explain returns a hint for the agent or "", and err as the operator may see it.
	explain(err error) (hint string, cause error)

	close() error
}

func newStore(s backend, limits door.Limits) *Store {
	return &Store{server: s, limits: limits.OrDefault(), bound: door.Patience, turn: make(chan struct{}, 1)}
}

// Publish adds a message to a place, and returns its number in the stream.
func (s *Store) Publish(ctx context.Context, m door.Message) (sequence uint64, err error) {
	err = s.with(ctx, 0, func(ctx context.Context, l *link) error {
		if err := l.make(ctx, m.Place, s.limits); err != nil {
			return err
		}
		msg := &nats.Msg{Subject: m.Filter, Header: nats.Header{fromHeader: {string(m.From)}}, Data: []byte(m.Text)}
		ack, err := l.stream.PublishMsg(ctx, msg, jetstream.WithExpectStream(m.Stream))
		if err != nil {
			l.made.Delete(m.Stream)
			return err
		}
		sequence = ack.Sequence
		return nil
	})
	return sequence, err
}

// fromHeader names the header with the agent that published a message.
const fromHeader = "Scopefs-From"

// Read returns the messages of a place after the position. It waits for a
// message if there is none.
func (s *Store) Read(ctx context.Context, r door.Reading) (out door.Found, err error) {
	if _, other := s.reading.LoadOrStore(r.Reader, true); other {
		return out, tools.Errorf(tools.Conflict, "another call reads the same messages now").
			Suggest("wait for that call, or cancel it")
	}
	defer s.reading.Delete(r.Reader)
	err = s.with(ctx, r.Wait, func(ctx context.Context, l *link) (err error) {
		out, err = l.read(ctx, r, s.limits)
		return err
	})
	return out, err
}

// Size returns the bytes of a stream's messages; 0 if there is no stream.
func (s *Store) Size(ctx context.Context, stream string) (bytes int64, err error) {
	err = s.with(ctx, 0, func(ctx context.Context, l *link) error {
		found, err := l.stream.Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err == nil {
			bytes = int64(min(found.CachedInfo().State.Bytes, 1<<60))
		}
		return err
	})
	return bytes, err
}

// Forget removes streams and positions, those that exist.
func (s *Store) Forget(ctx context.Context, f door.Forgotten) error {
	return s.with(ctx, 0, func(ctx context.Context, l *link) error {
		for _, stream := range f.Streams {
			l.made.Delete(stream)
			if err := l.stream.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
		}
		for _, r := range f.Positions {
			err := l.stream.DeleteConsumer(ctx, r.Stream, r.Reader)
			if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return err
			}
		}
		return nil
	})
}

// Ping connects to the server and checks that it has JetStream. An embedded server
// that no call has started yet is not started. The error is for the operator.
func (s *Store) Ping(ctx context.Context) error {
	if asleep, err := s.asleep(ctx); asleep || err != nil {
		return err
	}
	err := s.with(ctx, 0, func(ctx context.Context, l *link) error {
		_, err := l.stream.AccountInfo(ctx)
		return err
	})
	return tools.Cause(err)
}

// asleep reports whether a call would start the server, and why it could not.
func (s *Store) asleep(ctx context.Context) (bool, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	return s.server.asleep()
}

// Close closes the connection, and the server if it is embedded. Calls that run
// end with an error. It returns after 5 seconds, even if the server does not end.
func (s *Store) Close() error {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-time.After(door.Patience):
		return errors.New("messages: the server does not end")
	}
	s.closed = true
	if s.link != nil {
		s.link.conn.Close()
	}
	return s.server.close()
}

// with calls f with a connection. The context of f ends when the connection is
// lost.
func (s *Store) with(ctx context.Context, wait time.Duration, f func(context.Context, *link) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.bound+wait)
	defer cancel()
	l, err := s.connected(ctx)
	if err == nil {
		ctx, lost := context.WithCancelCause(ctx)
		defer lost(nil)
		defer context.AfterFunc(l.lost, func() { lost(context.Cause(l.lost)) })()
		if err = f(ctx, l); err != nil && ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
	}
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e
	}
	if s.server.failed(err) && l != nil {
		l.conn.Close()
	}
	e := unavailable(err)
	hint, cause := s.server.explain(err)
	e.Hint = cmp.Or(hint, e.Hint)
	return e.Because(cause)
}

// connected returns the connection, and connects if there is none.
func (s *Store) connected(ctx context.Context) (*link, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.closed {
		return nil, errors.New("the store is closed")
	}
	if s.link != nil && !s.link.conn.IsClosed() { // lost ends a little later
		return s.link, nil
	}
	l, err := s.server.connect(ctx)
	if err != nil {
		return nil, err
	}
	s.link = l
	return l, nil
}

// unavailable is the error of a server that failed. The agent does not see its
// cause; the log has it.
func unavailable(err error) *tools.Error {
	e := tools.Errorf(tools.Unavailable, "the message server failed")
	e.Hint = "try again; the operator's log has the cause"
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrPermissionViolation):
		e.Hint = "the message server refuses the user: the operator must check its name, password and rights"
	case errors.Is(err, errVersion):
		e.Hint = "the message server is too old: the operator must update it"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		e.Hint = "the message server has no JetStream: the operator must enable it"
	case api != nil && (api.ErrorCode == storeFailed || api.ErrorCode == noStorage || api.ErrorCode == noResources):
		e.Hint = hintDisk
	case api != nil && api.ErrorCode == tooManyConsumers:
		e.Code, e.Message = tools.TooLarge, fmt.Sprintf("you read more than %d subjects one by one", readers)
		e.Hint = "call subscribe without subject to read all of them"
	}
	return e
}

const hintDisk = "the message server's disk is full, or failed: the operator must check it"

// Error codes of JetStream that its client has no name for: server/errors.json of
// nats-server.
const (
	noResources      jetstream.ErrorCode = 10023
	tooManyConsumers jetstream.ErrorCode = 10026
	noStorage        jetstream.ErrorCode = 10047
	storeFailed      jetstream.ErrorCode = 10077
)

// text returns data as text. Other clients of an outside server may publish bytes.
func text(data []byte) string {
	s := string(data)
	if !utf8.ValidString(s) || len(s) > door.MaxText {
		return fmt.Sprintf("(%d bytes that are no text, or too many)", len(s))
	}
	return s
}
