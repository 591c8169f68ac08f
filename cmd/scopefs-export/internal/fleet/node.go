// Package fleet speaks to the NATS server of a fleet: for a node, it publishes what the daemon shows and brings it orders of
// operators; for a command of an operator it reads what nodes have published. It decides nothing. What comes from the server is
// anybody's: the daemon checks orders, and the command checks hashes and escapes texts.
package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/receivers"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/wire"
)

// The streams and buckets of a server.
const (
	eventStream  = "scopefs_events"
	orderStream  = "scopefs_orders"
	nodeBucket   = "scopefs_nodes"    // keys statePrefix+NODE and beatPrefix+NODE
	nodeStream   = "KV_" + nodeBucket // as a KeyValue has it
	nodePrefix   = "$KV." + nodeBucket + "."
	waitBucket   = "scopefs_approvals" // keys NODE.ID
	statePrefix  = "state."
	beatPrefix   = "beat."
	eventSubject = "scopefs.events."  // NODE.AGENT
	orderSubject = "scopefs.orders."  // NODE
	doneSubject  = "scopefs.results." // NODE.NONCE

	definitionBucket = "scopefs_definitions"           // keys NAME
	definitionStream = "KV_" + definitionBucket        // as a KeyValue has it
	definitionPrefix = "$KV." + definitionBucket + "." // likewise: NAME
)

// The times of a node.
const (
	beatEvery  = 3 * time.Second
	stateEvery = 500 * time.Millisecond // from one publication of the state to the next
	callTime   = 30 * time.Second       // for one call of the server, which may have many nodes back at once
	fetchTime  = time.Minute            // that the server waits for a message
	fetchBeat  = 20 * time.Second       // from one sign of life to the next meanwhile
	spread     = 3 * time.Second        // within which the nodes of a server that was restarted come back
	takeTime   = time.Minute            // for the daemon to decide
	firstPause = 250 * time.Millisecond // after a connection that failed
	lastPause  = 30 * time.Second
	longLife   = time.Minute // of a connection, after which the pause is short again
)

// maxOrders is how many orders the server hands out before the first is acknowledged.
const maxOrders = 16

// Node is what Serve serves.
type Node struct {
	Name        string
	Log         string // the id of its log
	Dir         string // the directory of the log
	Definitions bool   // it takes those of operators
}

// A node serves the fleet by one connection.
type node struct {
	Node
	daemon *driver.Conn
	js     jetstream.JetStream
}

// Serve serves a node until ctx ends. It holds the newest state alone, so that a server that is slow or away costs no memory.
// The stream of the node's events reports what is wrong with the server.
func Serve(ctx context.Context, server receivers.NATS, one Node, daemon *driver.Conn) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		began := time.Now()
		if conn, js, err := server.Connect(ctx); err == nil {
			n := &node{one, daemon, js}
			n.serve(ctx)
			conn.Close()
		}
		after := pause/2 + rand.N(pause/2)
		if time.Since(began) > longLife {
			pause, after = firstPause, rand.N(spread) // all nodes have lost the server
		}
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return
		}
	}
}

// serve returns when one part has failed.
func (n *node) serve(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended, parts := make(chan struct{}), []func(context.Context) error{n.publish, n.beat, n.orders, n.leases}
	if n.Definitions {
		parts = append(parts, n.definitions)
	}
	for _, part := range parts {
		go func() {
			_ = part(ctx)
			cancel()
			ended <- struct{}{}
		}()
	}
	for range parts {
		<-ended
	}
}

// beat says that the node is there.
func (n *node) beat(ctx context.Context) error {
	for {
		if err := n.show(ctx, beatPrefix+n.Name, nil); err != nil {
			return err
		}
		if err := wait(ctx, beatEvery); err != nil {
			return err
		}
	}
}

// show puts a value in the bucket of nodes. It needs nothing of the server but the acknowledgement.
func (n *node) show(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := n.js.Publish(ctx, nodePrefix+key, value, jetstream.WithExpectStream(nodeStream))
	return err
}

func put(ctx context.Context, kv jetstream.KeyValue, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err := kv.Put(ctx, key, value)
	return err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// publish publishes the newest state at each change.
func (n *node) publish(ctx context.Context) error {
	waits, err := n.js.KeyValue(ctx, waitBucket)
	if err != nil {
		return err
	}
	there, err := n.published(ctx, waits)
	if err != nil {
		return err
	}
	last, seen := "", wire.Seen{}
	for {
		state, err := wire.Look.Call(ctx, n.daemon, seen)
		if err != nil {
			return err
		}
		if state.Version == seen.Version {
			continue // Look has waited
		}
		if err := n.put(ctx, waits, there, state); err != nil {
			return err
		}
		state.Node.Log = n.Log
		text, err := json.Marshal(state.Node)
		if err != nil {
			return err
		}
		if string(text) != last {
			if err := n.show(ctx, statePrefix+n.Name, text); err != nil {
				return err
			}
		}
		last, seen.Version = string(text), state.Version
		if err := wait(ctx, stateEvery); err != nil {
			return err
		}
	}
}

// published returns the ids of the requests that the server has of the node, with hashes that no request has.
func (n *node) published(ctx context.Context, kv jetstream.KeyValue) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	keys, err := kv.ListKeysFiltered(ctx, n.Name+".*")
	if err != nil {
		return nil, err
	}
	there := map[string]string{}
	for key := range keys.Keys() {
		if id, ok := strings.CutPrefix(key, n.Name+"."); ok {
			there[id] = ""
		}
	}
	return there, ctx.Err()
}

// put has the server have the requests of a state and no others. there is what it has, by id.
func (n *node) put(ctx context.Context, kv jetstream.KeyValue, there map[string]string, state wire.State) error {
	now := map[string]bool{}
	for _, w := range state.Waits {
		if now[w.ID] = true; there[w.ID] == w.Hash {
			continue
		}
		text, err := json.Marshal(wire.SeenWait{Node: n.Name, Waiting: w})
		if err == nil {
			err = put(ctx, kv, n.Name+"."+w.ID, text)
		}
		if err != nil {
			return err
		}
		there[w.ID] = w.Hash
	}
	for id := range there {
		if now[id] {
			continue
		}
		once, cancel := context.WithTimeout(ctx, callTime)
		err := kv.Delete(once, n.Name+"."+id)
		cancel()
		if err != nil {
			return err
		}
		delete(there, id)
	}
	return nil
}

// orders brings the daemon each order, at least once and one after the other, and publishes what came of it.
func (n *node) orders(ctx context.Context) error {
	consumer, err := n.js.CreateOrUpdateConsumer(ctx, orderStream, jetstream.ConsumerConfig{
		Durable: "node_" + n.Name, FilterSubject: orderSubject + n.Name, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * takeTime,
		MaxAckPending: maxOrders, InactiveThreshold: 24 * time.Hour,
	})
	if err != nil {
		return err
	}
	for {
		err := fetch(ctx, consumer, maxOrders, func(messages <-chan jetstream.Msg) error {
			for m := range messages {
				if err := n.take(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errLate) { // what was lost on the way comes again
			return err
		}
	}
}

// errLate says that the server, which is there, is late with a request: it is busy.
var errLate = errors.New("the server does not answer in time")

// fetch calls take with the messages of a consumer that there are and come.
func fetch(ctx context.Context, consumer jetstream.Consumer, most int, take func(<-chan jetstream.Msg) error) error {
	once, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	batch, err := consumer.Fetch(most, jetstream.FetchContext(once), jetstream.FetchHeartbeat(fetchBeat))
	if err != nil {
		return err
	}
	if err := take(batch.Messages()); err != nil {
		return err
	}
	err = batch.Error()
	if ctx.Err() == nil && (errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, context.DeadlineExceeded)) {
		return errLate
	}
	return errors.Join(err, ctx.Err())
}

func (n *node) take(ctx context.Context, m jetstream.Msg) error {
	signed := m.Data()
	once, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	out, err := wire.Decide.Call(once, n.daemon, signed[:min(len(signed), order.Max+1)]) // which says that it is too large
	if err != nil {
		return fmt.Errorf("decide: %w", err)
	}
	if out.Nonce != "" {
		text, err := json.Marshal(out)
		if err != nil {
			return err
		}
		if _, err := n.js.Publish(once, doneSubject+n.Name+"."+out.Nonce, text); err != nil {
			return err // it comes again, and is refused: its number is used
		}
	}
	return m.Ack()
}

// lookPause is the time between two looks for a bucket that there is not.
const lookPause = time.Minute

// definitions brings the daemon what the server has of definitions, and each that follows. With each consumer it brings all anew.
func (n *node) definitions(ctx context.Context) error {
	for {
		consumer, err := n.definitionsConsumer(ctx)
		for err == nil {
			err = fetch(ctx, consumer, wire.MaxDefined, func(messages <-chan jetstream.Msg) error { return n.define(ctx, messages) })
		}
		pause := rand.N(spread)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound): // fleet init was by an earlier version
			pause = lookPause
		case !errors.Is(err, errLate): // a message may be lost
			return err
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// define brings the daemon the definitions of messages.
func (n *node) define(ctx context.Context, messages <-chan jetstream.Msg) error {
	for more := true; more; {
		var all [][]byte
		if all, more = gather(messages); len(all) == 0 {
			continue
		}
		once, cancel := context.WithTimeout(ctx, takeTime)
		_, err := wire.Define.Call(once, n.daemon, all)
		cancel()
		if err != nil {
			return fmt.Errorf("define: %w", err)
		}
	}
	return nil
}

// linger is how long a definition waits for others: they may name each other.
const linger = 200 * time.Millisecond

// gather returns the definitions of messages that come together. more reports whether further messages may come.
func gather(messages <-chan jetstream.Msg) (all [][]byte, more bool) {
	var enough <-chan time.Time // from the first message on
	for {
		select {
		case m, open := <-messages:
			if !open {
				return all, false
			}
			if signed := m.Data(); len(signed) > 0 { // else a key that the server has removed, which is no removal
				all = append(all, signed[:min(len(signed), order.MaxDefinition+1)]) // which says that it is too large
			}
			if enough == nil {
				enough = time.After(linger)
			}
			if len(all) == wire.MaxDefined {
				return all, true
			}
		case <-enough:
			return all, true
		}
	}
}

func (n *node) definitionsConsumer(ctx context.Context) (jetstream.Consumer, error) {
	return n.js.CreateConsumer(ctx, definitionStream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, FilterSubject: definitionPrefix + "*",
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1,
	})
}
