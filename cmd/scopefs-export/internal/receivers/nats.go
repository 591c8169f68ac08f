package receivers

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// JetStream publishes the lines of the log to subjects that a stream stores: Subject, a dot, and the name of the event's agent or
// NoAgent. The id of a message is that of the log and the number of the event, by which the server drops one that it has already
// (Nats-Msg-Id).
type JetStream struct {
	NATS
	Subject string
	Stream  string // that must store the subject
	Log     string // the id of the log

	conn *nats.Conn // nil: none
	js   jetstream.JetStream
}

// NoAgent ends the subject of an event that is of no agent. No agent has the name.
const NoAgent = "_"

func (j *JetStream) connect(ctx context.Context) (err error) {
	if j.conn != nil && j.conn.IsConnected() {
		return nil
	}
	_ = j.Close()
	j.conn, j.js, err = j.Connect(ctx)
	return err
}

// subject returns the subject of an event. A name that is none of an agent's cannot be in a subject.
func (j *JetStream) subject(e audit.Event) string {
	id, err := scope.ParseID(e.Agent)
	if err != nil {
		id = NoAgent
	}
	return j.Subject + "." + string(id)
}

// Send publishes events, and waits until the stream has acknowledged each.
func (j *JetStream) Send(ctx context.Context, events []audit.Event) (err error) {
	if err := j.connect(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = j.Close()
		}
	}()
	sent := make([]jetstream.PubAckFuture, 0, len(events))
	for _, e := range events {
		m := &nats.Msg{Subject: j.subject(e), Data: e.Raw, Header: nats.Header{}}
		m.Header.Set(jetstream.MsgIDHeader, j.Log+"/"+strconv.FormatUint(e.Seq, 10))
		future, err := j.js.PublishMsgAsync(m, jetstream.WithExpectStream(j.Stream))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		sent = append(sent, future)
	}
	for _, future := range sent {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrNoStreamResponse) {
				err = fmt.Errorf("no stream stores the subject %q: make one: %w", j.Subject, err)
			}
			return err
		case <-ctx.Done():
			return fmt.Errorf("the stream does not acknowledge: %w", ctx.Err())
		}
	}
	return nil
}

// Close ends the connection.
func (j *JetStream) Close() error {
	if j.conn != nil {
		j.conn.Close()
	}
	j.conn = nil
	return nil
}
