package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/scope"
	door "github.com/scopefs/scopefs/tools/messages"
)

// A link is a connection to a server. It does not connect again.
type link struct {
	conn   *nats.Conn
	stream jetstream.JetStream
	lost   context.Context // ends with the connection
	made   sync.Map        // names of streams that exist with the current limits
}

// newLink connects by a dialer. address is for errors. The connection outlives
// ctx.
func newLink(ctx context.Context, address string, dial dialer, options ...nats.Option) (*link, error) {
	lost, lose := context.WithCancelCause(context.Background())
	dial.ctx = ctx
	options = append([]nats.Option{
		nats.SetCustomDialer(dial), nats.SkipHostLookup(), nats.Timeout(network), nats.Name("scopefs"),
		// A subscription for each request, with a channel of 8: that of all requests would keep 64 MiB of what a server sends unasked,
		// without the subjects.
		nats.UseOldRequestStyle(),
		nats.NoReconnect(), nats.IgnoreDiscoveredServers(), nats.PingInterval(ping), nats.MaxPingsOutstanding(1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // calls return their errors; the default prints
		nats.ClosedHandler(func(c *nats.Conn) {
			lose(fmt.Errorf("the connection was lost: %w", cmp.Or(c.LastError(), nats.ErrConnectionClosed)))
		}),
	}, options...)
	conn, err := nats.Connect("nats://"+address, options...)
	if err != nil {
		lose(err)
		return nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(door.Patience))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &link{conn: conn, stream: js, lost: lost}, nil
}

// make makes the stream of a place, or gives it the limits.
func (l *link) make(ctx context.Context, p door.Place, limits door.Limits) error {
	if _, ok := l.made.Load(p.Stream); ok {
		return nil
	}
	config := jetstream.StreamConfig{
		Name: p.Stream, Subjects: []string{p.Subjects}, Storage: jetstream.FileStorage,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxMsgs: int64(limits.Messages), MaxBytes: limits.Bytes, MaxAge: limits.Age, MaxMsgSize: maxMessage,
	}
	if p.Own {
		config.MaxConsumers = readers
	}
	if _, err := l.stream.CreateOrUpdateStream(ctx, config); err != nil {
		return err
	}
	l.made.Store(p.Stream, true)
	return nil
}

// maxMessage bounds a message with its headers.
const maxMessage = door.MaxText + 4096

// read returns a page.
func (l *link) read(ctx context.Context, r door.Reading, limits door.Limits) (out door.Found, err error) {
	if err := l.make(ctx, r.Place, limits); err != nil {
		return out, err
	}
	stream, err := l.stream.Stream(ctx, r.Stream)
	if err != nil {
		l.made.Delete(r.Stream)
		return out, err
	}
	state := stream.CachedInfo().State
	if r.Acknowledges && r.After > state.LastSeq {
		return out, door.BadCursor()
	}
	consumer, position, pending, err := l.consumerAt(ctx, stream, r, limits)
	if err != nil {
		return out, err
	}
	last, err := lastOf(ctx, stream, r.Place)
	if err != nil {
		return out, err
	}
	page := found{End: position, Discarded: position > 0 && state.FirstSeq > position+1}
	if last > position {
		err = page.fill(ctx, consumer, r.Limit, int(min(pending, door.MaxPage)), last)
	} else if r.Wait > 0 {
		err = page.wait(ctx, consumer, r.Wait)
	}
	return door.Found(page), err
}

// lastOf returns the number of the last message of a place, 0 if it has none. The
// counts of a consumer lag behind; this does not.
func lastOf(ctx context.Context, stream jetstream.Stream, p door.Place) (uint64, error) {
	state := stream.CachedInfo().State
	switch {
	case state.Msgs == 0:
		return 0, nil
	case p.Filter == p.Subjects:
		return state.LastSeq, nil
	}
	m, err := stream.GetLastMsgForSubject(ctx, p.Filter)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.Sequence, nil
}

// consumerAt returns the consumer of a reader, set to its position, and about how
// many messages follow. The position stays until the next call sets it.
func (l *link) consumerAt(ctx context.Context, stream jetstream.Stream, r door.Reading,
	limits door.Limits) (consumer jetstream.Consumer, position, pending uint64, err error) {
	consumer, err = stream.Consumer(ctx, r.Reader)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: r.Reader, FilterSubject: r.Filter, DeliverPolicy: jetstream.DeliverAllPolicy,
			AckPolicy: jetstream.AckAllPolicy, AckWait: ackWait, MaxWaiting: 8,
			// A position is of no use once the messages before it are too old.
			InactiveThreshold: limits.Age + day,
		})
	}
	if err != nil {
		return nil, 0, 0, err
	}
	var now *jetstream.ConsumerResetResponse
	if r.Acknowledges {
		now, err = l.stream.ResetConsumerToSequence(ctx, r.Stream, r.Reader, r.After+1)
	} else {
		now, err = l.stream.ResetConsumer(ctx, r.Stream, r.Reader) // to the first message that is not acknowledged
	}
	if err != nil {
		return nil, 0, 0, err
	}
	return consumer, max(now.ResetSeq, 1) - 1, now.NumPending, nil
}

// ackWait is after how long a message would be delivered twice to one call.
const ackWait = time.Hour

// found is a page that is being filled.
type found door.Found

// fill adds messages up to the number last. About pending of them exist.
func (f *found) fill(ctx context.Context, consumer jetstream.Consumer, limit, pending int, last uint64) error {
	size := 0
	for f.End < last && len(f.Messages) < limit {
		want := min(limit-len(f.Messages), batch, max(pending, 1))
		got, err := fetch(ctx, consumer, want, delivery)
		if err != nil {
			return err
		}
		for _, m := range got {
			if size += len(m.Text) + len(m.Subject); size > pageText && len(f.Messages) > 0 {
				f.More = true
				return nil
			}
			if err := f.add(m); err != nil {
				return err
			}
		}
		if pending -= len(got); len(got) < want {
			break // the rest was discarded meanwhile
		}
	}
	if len(f.Messages) == 0 {
		return errors.New("the server did not deliver a message that it has")
	}
	f.More = f.End < last
	return nil
}

// wait waits for a message.
func (f *found) wait(ctx context.Context, consumer jetstream.Consumer, wait time.Duration) error {
	got, err := fetch(ctx, consumer, 1, wait)
	for _, m := range got {
		err = errors.Join(err, f.add(m))
	}
	return err
}

func (f *found) add(m door.Received) error {
	if m.Sequence <= f.End {
		return fmt.Errorf("the server returned message %d after message %d", m.Sequence, f.End)
	}
	f.Messages, f.End = append(f.Messages, m), m.Sequence
	return nil
}

// fetch returns n messages, or fewer if there are not so many within wait.
func fetch(ctx context.Context, consumer jetstream.Consumer, n int, wait time.Duration) (all []door.Received, err error) {
	bounded, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	fetched, err := consumer.Fetch(n, jetstream.FetchContext(bounded)) // with heartbeats, if it waits for long
	if err != nil {
		return nil, err
	}
	for m := range fetched.Messages() {
		about, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("the server returned a message without metadata: %w", err)
		}
		from, _ := scope.ParseID(m.Headers().Get(fromHeader)) // other clients of an outside server set none
		all = append(all, door.Received{
			Subject: m.Subject(), From: string(from), Text: text(m.Data()), Time: about.Timestamp, Sequence: about.Sequence.Stream,
		})
	}
	if err := fetched.Error(); err != nil && len(all) == 0 && (!errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil) {
		return nil, err
	}
	return all, ctx.Err()
}
