package receivers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
)

// JetStream publishes the lines of the log to a subject that a stream stores. The id of a message is that of the log and
// the number of the event, by which the server drops one that it has already (Nats-Msg-Id).
type JetStream struct {
	Dial    Dial
	TLS     *tls.Config                                      // nil: none
	Address string                                           // for errors
	User    string                                           // "": the secret is a token
	Secret  func(context.Context) (credential.Secret, error) // nil: none
	Subject string
	Stream  string // that must store the subject; "": any
	Log     string // the id of the log

	conn *nats.Conn // nil: none
	js   jetstream.JetStream
}

// dialTime limits how long a connection and its log-in take.
const dialTime = 10 * time.Second

// dialer connects for one connection of the client.
type dialer struct {
	ctx  context.Context
	dial Dial
}

func (d dialer) Dial(string, string) (net.Conn, error) { return d.dial(d.ctx) }

func (j *JetStream) connect(ctx context.Context) error {
	if j.conn != nil && j.conn.IsConnected() {
		return nil
	}
	_ = j.Close()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	options := []nats.Option{
		nats.SetCustomDialer(dialer{ctx, j.Dial}), nats.SkipHostLookup(), nats.Timeout(dialTime), nats.Name("scopefs"),
		nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.PingInterval(dialTime), nats.MaxPingsOutstanding(1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // calls return their errors; the default prints
	}
	if j.Secret != nil {
		secret, err := j.Secret(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("credential: %w", err)
		case j.User == "":
			options = append(options, nats.Token(secret.Reveal()))
		default:
			options = append(options, nats.UserInfo(j.User, secret.Reveal()))
		}
	}
	if j.TLS != nil {
		options = append(options, nats.Secure(j.TLS))
	}
	conn, err := nats.Connect("nats://"+j.Address, options...)
	if err != nil {
		return err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending))
	if err != nil {
		conn.Close()
		return err
	}
	j.conn, j.js = conn, js
	return nil
}

// maxPending is how many messages wait for their acknowledgements.
const maxPending = 256

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
	options := []jetstream.PublishOpt{}
	if j.Stream != "" {
		options = append(options, jetstream.WithExpectStream(j.Stream))
	}
	sent := make([]jetstream.PubAckFuture, 0, len(events))
	for _, e := range events {
		m := &nats.Msg{Subject: j.Subject, Data: e.Raw, Header: nats.Header{}}
		m.Header.Set(jetstream.MsgIDHeader, j.Log+"/"+strconv.FormatUint(e.Seq, 10))
		future, err := j.js.PublishMsgAsync(m, options...)
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
