package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// A Store publishes and reads messages on a server. Methods may be called by several
// goroutines. Each returns within [Patience] and its wait.
//
// Errors are a *[tools.Error]. After [tools.Unavailable], a message may have been
// published.
type Store interface {
	// Publish adds a message to a place, and returns its number in the stream.
	Publish(ctx context.Context, m Message) (sequence uint64, err error)

	// Read returns the messages of a place after the position. It waits for a message if
	// there is none.
	Read(ctx context.Context, r Reading) (Found, error)
}

// A Place is a stream, or a part of one.
type Place struct {
	Stream   string
	Subjects string // of the stream
	Filter   string // the subjects of the place
	Own      bool   // the stream is of one agent, who chooses the filters
}

// Forgotten is what a store removes of an agent.
type Forgotten struct {
	Streams   []string
	Positions []Position
}

// A Position is that of an agent in a stream that stays.
type Position struct{ Stream, Reader string }

// Of returns what a store has of an agent: the streams of its subjects and its inbox, and its positions in channels.
func (g Grants) Of(agent scope.ID) (f Forgotten) {
	f.Streams = []string{StreamOf(agent), shared("_inbox", string(agent)).Stream}
	for name := range g.Channels {
		p := shared("_channel", name)
		f.Positions = append(f.Positions, Position{p.Stream, consumerName(agent, p.Filter)})
	}
	return f
}

// A Message is one to be published.
type Message struct {
	Place
	From scope.ID
	Text string
}

// A Reading selects the messages that a call of subscribe reads.
type Reading struct {
	Place
	Reader       string // the consumer that holds the position
	Acknowledges bool
	After        uint64 // if it acknowledges: the position
	Limit        int
	Wait         time.Duration
}

// Found is a page of messages.
type Found struct {
	Messages        []Received
	End             uint64 // the position after the page
	More, Discarded bool
}

// Received is a message of a page.
type Received struct {
	Subject, From, Text string
	Time                time.Time
	Sequence            uint64
}

// Limits bound each agent's part, each channel and each inbox. A place over a
// limit discards its oldest messages.
type Limits struct {
	Messages int           // default 10,000
	Bytes    int64         // of messages with their subjects; default 16 MiB
	Age      time.Duration // default 7 days
}

// OrDefault returns the limits with the defaults for what is 0.
func (l Limits) OrDefault() Limits {
	return Limits{cmp.Or(l.Messages, 10_000), cmp.Or(l.Bytes, 16<<20), cmp.Or(l.Age, 7*24*time.Hour)}
}

// A Server is an outside NATS server.
type Server struct {
	URL      *url.URL           // nats://HOST[:PORT], or tls://HOST[:PORT]
	User     string             // "": the password is a token
	Password *credential.Source // read for each connection; nil: none
}

// Check reports what is wrong with a server, as "key: what: remedy".
func (s Server) Check() error {
	switch {
	case s.URL == nil || s.URL.Hostname() == "" || s.URL.Scheme != "nats" && s.URL.Scheme != "tls" ||
		s.URL.Path != "" || s.URL.RawQuery != "" || s.URL.Fragment != "":
		return errors.New("url: is no address: write tls://HOST:PORT or nats://HOST:PORT")
	case s.URL.User != nil:
		return errors.New("url: has a user: write user and password")
	case s.Password == nil && s.User != "":
		return errors.New("user: has no password: write where it is")
	case s.Password != nil && s.URL.Scheme == "nats" && !credential.Loopback(s.URL.Hostname()):
		return errors.New("url: is not tls, and the password would be readable on the way: write tls://HOST:PORT")
	case s.Password != nil:
		if err := s.Password.Check(); err != nil {
			return fmt.Errorf("password: %w", err)
		}
	}
	return nil
}

// foreign is the error of a server that returned a message of another subject.
func foreign(subject string) error {
	return tools.Errorf(tools.Unavailable, "the message server failed").
		Suggest("try again later, or ask your operator to look at the message server").
		Because(fmt.Errorf("the server returned a message of a foreign subject: %.100q", subject))
}
