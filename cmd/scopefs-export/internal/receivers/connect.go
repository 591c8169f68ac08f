package receivers

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/internal/credential"
)

// NATS is a server with JetStream.
type NATS struct {
	Dial    Dial
	TLS     *tls.Config                                      // nil: none
	Address string                                           // for errors
	User    string                                           // "": the secret is a token
	Secret  func(context.Context) (credential.Secret, error) // nil: none
	Inbox   string                                           // the prefix of subjects for answers; "": the client's own
}

// dialTime limits how long a connection and its log-in take.
const dialTime = 20 * time.Second

// pingEvery is from one sign of life to the next: a connection without it for twice as long has ended.
const pingEvery = 10 * time.Second

// callTime is for a call of the server that has no limit of its own: many clients may have come at once.
const callTime = 30 * time.Second

// maxPending is how many messages wait for their acknowledgements.
const maxPending = 256

// dialer connects for one connection of the client.
type dialer struct {
	ctx  context.Context
	dial Dial
}

func (d dialer) Dial(string, string) (net.Conn, error) { return d.dial(d.ctx) }

// Connect returns a connection to the server. It does not connect again: its owner does.
func (s NATS) Connect(ctx context.Context) (*nats.Conn, jetstream.JetStream, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	options := []nats.Option{
		nats.SetCustomDialer(dialer{ctx, s.Dial}), nats.SkipHostLookup(), nats.Timeout(dialTime), nats.Name("scopefs"),
		nats.CustomInboxPrefix(cmp.Or(s.Inbox, nats.InboxPrefix[:len(nats.InboxPrefix)-1])),
		nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // calls return their errors; the default prints
	}
	if s.Secret != nil {
		secret, err := s.Secret(ctx)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("credential: %w", err)
		case s.User == "":
			options = append(options, nats.Token(secret.Reveal()))
		default:
			options = append(options, nats.UserInfo(s.User, secret.Reveal()))
		}
	}
	if s.TLS != nil {
		options = append(options, nats.Secure(s.TLS))
	}
	conn, err := nats.Connect("nats://"+s.Address, options...)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithDefaultTimeout(callTime))
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, js, nil
}
