package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/receivers"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	placement "github.com/scopefs/scopefs/internal/placement/wire"
)

// The bounds of what a command reads.
const (
	maxRead   = 512 << 20 // bytes of one bucket
	pageBytes = 4 << 20   // of a page: a frame has up to 16 MiB
	pageSize  = 1000      // events of a page
	readTime  = time.Minute
	askEvery  = 100 * time.Millisecond // for the outcome of an order
)

// An operator is what a command reads and sends. Its methods are called one after the other.
type operator struct {
	server receivers.NATS

	mu    sync.Mutex
	conn  *nats.Conn
	js    jetstream.JetStream
	nodes []wire.SeenNode // of the last first page
	waits []wire.SeenWait // likewise
	tail  *tail           // nil: there is none

	definitions []wire.SeenDefinition // likewise
}

// Handlers returns the methods for a command of an operator.
func Handlers(server receivers.NATS) driver.Handlers {
	o, to := &operator{server: server}, driver.Handlers{}
	wire.Prepare.Handle(to, serving(o, o.prepare))
	wire.Nodes.Handle(to, serving(o, o.listNodes))
	wire.Waits.Handle(to, serving(o, o.listWaits))
	wire.Events.Handle(to, serving(o, o.events))
	wire.Send.Handle(to, serving(o, o.send))
	wire.Defined.Handle(to, serving(o, o.listDefinitions))
	wire.Put.Handle(to, serving(o, o.put))
	return to
}

// serving returns f with a connection, and with words for what the server lacks.
func serving[In, Out any](o *operator, f func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.conn == nil || !o.conn.IsConnected() {
			if o.conn, o.js, err = o.server.Connect(ctx); err != nil {
				return out, fmt.Errorf("%s: %w", o.server.Address, err)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, readTime)
		defer cancel()
		out, err = f(ctx, in)
		switch {
		case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound),
			errors.Is(err, jetstream.ErrNoStreamResponse):
			err = fmt.Errorf("%s: the server has no streams of a fleet: make them with scopefs fleet init: %w", o.server.Address, err)
		case err != nil:
			err = fmt.Errorf("%s: %w", o.server.Address, err)
		}
		return out, err
	}
}

// prepare makes the streams and buckets, or changes them to what is wanted.
func (o *operator) prepare(ctx context.Context, s wire.Server) (none driver.None, err error) {
	for _, one := range []jetstream.StreamConfig{
		{
			Name: eventStream, Subjects: []string{eventSubject + ">"}, Replicas: s.Replicas, MaxAge: s.Keep, MaxBytes: s.MaxBytes,
			Duplicates: min(10*time.Minute, s.Keep), Compression: jetstream.S2Compression,
		},
		{
			Name: orderStream, Subjects: []string{orderSubject + "*", doneSubject + "*.*"}, Replicas: s.Replicas, MaxAge: 2 * order.Valid,
			MaxMsgsPerSubject: 1024, MaxMsgSize: 2 * order.Max, MaxBytes: 256 << 20, Duplicates: time.Minute,
		},
	} {
		if _, err = o.js.CreateOrUpdateStream(ctx, one); err == nil {
			err = o.lift(ctx, one.Name)
		}
		if err != nil {
			return none, fmt.Errorf("stream %s: %w", one.Name, err)
		}
	}
	for _, one := range []jetstream.KeyValueConfig{
		{Bucket: nodeBucket, Replicas: s.Replicas, Compression: true},
		{Bucket: waitBucket, Replicas: s.Replicas, TTL: 2 * order.Valid, Compression: true},
		{Bucket: placement.Bucket, Replicas: s.Replicas},
		{Bucket: definitionBucket, Replicas: s.Replicas, MaxValueSize: order.MaxDefinition, Compression: true},
	} {
		if _, err = o.js.CreateOrUpdateKeyValue(ctx, one); err == nil {
			err = o.lift(ctx, "KV_"+one.Bucket)
		}
		if err != nil {
			return none, fmt.Errorf("bucket %s: %w", one.Bucket, err)
		}
	}
	return none, nil
}

// maxConsumers is more than the nodes of a fleet have of one stream. Each has up to three at a time.
const maxConsumers = 1 << 20

// lift sets the limit of a stream's consumers, which is 1,000 in some servers if nothing sets it.
func (o *operator) lift(ctx context.Context, name string) error {
	s, err := o.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	config := s.CachedInfo().Config
	config.MaxConsumers = maxConsumers
	_, err = o.js.UpdateStream(ctx, config)
	if refused, ok := errors.AsType[*jetstream.APIError](err); ok && refused.ErrorCode == invalidConfig {
		return nil // an older server, which cannot change the limit, and has none unless somebody has set one
	}
	return err
}

// invalidConfig is the server's error code of a configuration that a stream cannot have (JSStreamInvalidConfigF).
const invalidConfig = 10052

// read calls each for every key of a bucket.
func (o *operator) read(ctx context.Context, bucket string, each func(jetstream.KeyValueEntry)) error {
	kv, err := o.js.KeyValue(ctx, bucket)
	if err != nil {
		return err
	}
	all, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = all.Stop() }() // the connection may have ended
	size := 0
	for {
		select {
		case e, open := <-all.Updates():
			switch {
			case !open:
				return errors.New("the connection ended")
			case e == nil: // the end of what there was
				return nil
			}
			if size += len(e.Value()); size > maxRead {
				return fmt.Errorf("the bucket %s has more than %d bytes", bucket, maxRead)
			}
			each(e)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (o *operator) listNodes(ctx context.Context, after wire.After) (page wire.NodePage, err error) {
	if after.Key == "" {
		states, heard := map[string]wire.Node{}, map[string]time.Time{}
		err := o.read(ctx, nodeBucket, func(e jetstream.KeyValueEntry) {
			if name, ok := strings.CutPrefix(e.Key(), beatPrefix); ok {
				heard[name] = e.Created()
			}
			if name, ok := strings.CutPrefix(e.Key(), statePrefix); ok {
				var n wire.Node
				if json.Unmarshal(e.Value(), &n) != nil {
					n = wire.Node{Version: "unreadable"}
				}
				n.Name = name // whatever it says
				states[name] = n
			}
		})
		if err != nil {
			return page, err
		}
		o.nodes = nil
		for name, n := range states {
			o.nodes = append(o.nodes, wire.SeenNode{Node: n, Heard: heard[name]})
		}
		slices.SortFunc(o.nodes, func(a, b wire.SeenNode) int { return strings.Compare(a.Name, b.Name) })
	}
	page.Nodes, page.More = pageOf(o.nodes, after.Key, func(n wire.SeenNode) string { return n.Name })
	return page, nil
}

func (o *operator) listWaits(ctx context.Context, after wire.After) (page wire.WaitPage, err error) {
	key := func(w wire.SeenWait) string { return w.Node + "." + w.ID }
	if after.Key == "" {
		o.waits = nil
		err := o.read(ctx, waitBucket, func(e jetstream.KeyValueEntry) {
			var w wire.SeenWait
			if json.Unmarshal(e.Value(), &w) == nil && key(w) == e.Key() {
				o.waits = append(o.waits, w)
			}
		})
		if err != nil {
			return page, err
		}
		slices.SortFunc(o.waits, func(a, b wire.SeenWait) int { return strings.Compare(key(a), key(b)) })
	}
	page.Waits, page.More = pageOf(o.waits, after.Key, key)
	return page, nil
}

// pageOf returns what follows a key, and the key of the next page.
func pageOf[T any](all []T, after string, key func(T) string) (page []T, more string) {
	size := 0
	for i, one := range all {
		if after != "" && key(one) <= after {
			continue
		}
		text, _ := json.Marshal(one)
		if size += len(text); size > pageBytes && len(page) > 0 {
			return page, key(all[i-1])
		}
		page = append(page, one)
	}
	return page, ""
}

// A tail is the consumer of a page of events, kept for the next page.
type tail struct {
	consumer jetstream.Consumer
	next     wire.Query // that asks for it, without Wait
	count    uint64     // of the events that the consumer has delivered
}

// tailUnused is how long the server keeps the consumer of a tail that is not used.
const tailUnused = time.Minute

func (o *operator) events(ctx context.Context, q wire.Query) (page wire.EventPage, err error) {
	wait := q.Wait
	q.Wait = 0
	if t := o.tail; t != nil && t.next == q {
		if page, err = o.page(t, wait); err == nil {
			return page, nil // else its consumer may be gone
		}
	}
	subject := func(text string) string {
		if text == "" {
			return "*"
		}
		return text
	}
	config := jetstream.ConsumerConfig{
		FilterSubject: eventSubject + subject(q.Node) + "." + subject(q.Agent), AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, InactiveThreshold: tailUnused,
	}
	switch {
	case q.After > 0:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, q.After+1
	case !q.Since.IsZero():
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &q.Since
	}
	consumer, err := o.js.CreateConsumer(ctx, eventStream, config)
	if err != nil {
		return page, err
	}
	return o.page(&tail{consumer: consumer, next: q}, wait)
}

// page returns the events that the server has, after waiting for a first one.
func (o *operator) page(t *tail, wait time.Duration) (page wire.EventPage, err error) {
	page.After, o.tail = t.next.After, nil
	size, got, whole := 0, 0, true
	take := func(batch jetstream.MessageBatch, err error) error {
		if err != nil {
			return err
		}
		for m := range batch.Messages() {
			got++
			at, err := m.Metadata()
			if whole = whole && err == nil && size <= pageBytes && at.Sequence.Consumer == t.count+1; !whole {
				continue // the rest, or what was lost, comes with the next page
			}
			t.count++
			size += len(m.Data())
			page.After = at.Sequence.Stream
			parts := strings.Split(m.Subject(), ".")
			if len(parts) == 4 {
				id := m.Headers().Get(jetstream.MsgIDHeader)
				page.Events = append(page.Events, wire.SeenEvent{Node: parts[2], Log: id[:max(strings.LastIndexByte(id, '/'), 0)], Line: m.Data()})
			}
		}
		return batch.Error()
	}
	if wait > 0 {
		err = take(t.consumer.Fetch(1, jetstream.FetchMaxWait(wait)))
	}
	if err == nil && (wait == 0 || got > 0) {
		err = take(t.consumer.FetchNoWait(pageSize))
	}
	if err == nil && whole {
		t.next.After, o.tail = page.After, t
	}
	page.End = whole && got < pageSize
	return page, err
}

// send publishes an order, and waits for what the node says about it.
func (o *operator) send(ctx context.Context, sent wire.Order) (out wire.Outcome, err error) {
	ctx, cancel := context.WithTimeout(ctx, wire.SendTime)
	defer cancel()
	stream, err := o.js.Stream(ctx, orderStream)
	if err == nil {
		_, err = o.js.Publish(ctx, orderSubject+sent.Node, sent.Signed, jetstream.WithMsgID(sent.Nonce))
	}
	if err != nil {
		return out, err
	}
	for {
		m, err := stream.GetLastMsgForSubject(ctx, doneSubject+sent.Node+"."+sent.Nonce)
		switch {
		case err == nil:
			return out, json.Unmarshal(m.Data, &out)
		case !errors.Is(err, jetstream.ErrMsgNotFound) && ctx.Err() == nil:
			return out, err
		}
		if wait(ctx, askEvery) != nil {
			return wire.Outcome{}, nil
		}
	}
}

func (o *operator) listDefinitions(ctx context.Context, after wire.After) (page wire.DefinedPage, err error) {
	if after.Key == "" {
		o.definitions = nil
		err := o.read(ctx, definitionBucket, func(e jetstream.KeyValueEntry) {
			o.definitions = append(o.definitions, wire.SeenDefinition{Name: e.Key(), Serial: e.Revision(), Signed: e.Value()})
		})
		if err != nil {
			return page, err
		}
		slices.SortFunc(o.definitions, func(a, b wire.SeenDefinition) int { return strings.Compare(a.Name, b.Name) })
	}
	page.Definitions, page.More = pageOf(o.definitions, after.Key, func(d wire.SeenDefinition) string { return d.Name })
	return page, nil
}

// put publishes a definition in place of the one that the operator has seen.
func (o *operator) put(ctx context.Context, d wire.SeenDefinition) (none driver.None, err error) {
	kv, err := o.js.KeyValue(ctx, definitionBucket)
	if err != nil {
		return none, err
	}
	if d.Serial == 0 {
		_, err = kv.Create(ctx, d.Name, d.Signed)
	} else {
		_, err = kv.Update(ctx, d.Name, d.Signed, d.Serial)
	}
	if errors.Is(err, jetstream.ErrKeyExists) {
		err = fmt.Errorf("another version of %s came meanwhile: look at it, and put yours again: %w", d.Name, err)
	}
	return none, err
}
