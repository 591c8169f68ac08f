package fleet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/wire"
)

// The bucket of heads, and its keys.
const (
	headBucket    = "scopefs_heads"
	askPrefix     = "ask."     // WITNESS.NODE: an Offer
	answerPrefix  = "sig."     // NODE.WITNESS: an Answer
	witnessPrefix = "witness." // NODE: the key of its witness
)

// The times and bounds of heads.
const (
	announceEvery = 5 * time.Minute
	goneAfter     = 3 * announceEvery // a witness that announces itself no more is not asked
	chooseFirst   = time.Hour         // anew, and then each time after twice as long: many nodes may come at once
	chooseEvery   = 24 * time.Hour    // at most
	missedOffers  = 3                 // without an answer of each, after which it chooses anew
	askPause      = 500 * time.Millisecond
	maxWitnesses  = 16 << 10
	maxSizes      = 256 // witnesses whose last heads are known
	offeredSizes  = 2   // of the last offers: a witness may sign them meanwhile
)

// heads has the heads of the log signed by other nodes, and brings the daemon what they want signed. What the server lacks or
// refuses there ends no other part of the node.
func (n *node) heads(ctx context.Context) error {
	set, err := wire.Signs.Call(ctx, n.daemon, driver.None{})
	if err != nil {
		return err
	}
	if set.Key == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	for {
		kv, err := n.js.KeyValue(ctx, headBucket)
		if err == nil {
			err = both(ctx, func(ctx context.Context) error { return n.cosign(ctx, kv) }, func(ctx context.Context) error {
				o := &offers{node: n, kv: kv, set: set, choice: n.asked, sizes: map[string]int64{}}
				return o.run(ctx)
			})
		}
		pause := leasePause
		if errors.Is(err, jetstream.ErrBucketNotFound) { // fleet init was by an earlier version
			pause = lookPause
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

// both runs two functions until one has failed.
func both(ctx context.Context, one, other func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		defer cancel()
		failed <- one(ctx)
	}()
	err := other(ctx)
	cancel()
	return errors.Join(err, <-failed)
}

// cosign brings the daemon the offers of other nodes, one after the other, and publishes its answers.
func (n *node) cosign(ctx context.Context, kv jetstream.KeyValue) error {
	asks, err := kv.Watch(ctx, askPrefix+n.Name+".*", jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = asks.Stop() }() // the connection may have ended
	last := map[string]time.Time{}
	for {
		select {
		case e, open := <-asks.Updates():
			if !open {
				return errors.New("the connection ended")
			}
			if e == nil { // the end of what there was
				continue
			}
			origin := strings.TrimPrefix(e.Key(), askPrefix+n.Name+".")
			if time.Since(last[origin]) < askPause { // a flood of one node does not delay what others ask
				continue
			}
			if err := n.answer(ctx, kv, origin, e.Value()); err != nil {
				return err
			}
			if len(last) >= maxWitnesses {
				clear(last)
			}
			last[origin] = time.Now()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer has the daemon answer an offer.
func (n *node) answer(ctx context.Context, kv jetstream.KeyValue, origin string, offer []byte) error {
	ctx, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	asked := wire.Asked{Node: origin, Offer: offer[:min(len(offer), wire.MaxOffer+1)]} // which says that it is too large
	own := answerPrefix + origin + "." + n.Name
	err := readKeys(ctx, kv, answerPrefix+origin+".*", func(e jetstream.KeyValueEntry) {
		switch text := e.Value(); {
		case len(text) > wire.MaxAnswer:
		case e.Key() == own:
			asked.Seen = slices.Insert(asked.Seen, 0, text)
		case len(asked.Seen) < wire.MaxAsked:
			asked.Seen = append(asked.Seen, text)
		}
	})
	if err != nil {
		return err
	}
	text, err := wire.Cosign.Call(ctx, n.daemon, asked)
	if err != nil {
		return fmt.Errorf("cosign: %w", err)
	}
	return put(ctx, kv, own, text)
}

// readKeys calls each for every value below a pattern that the server has now.
func readKeys(ctx context.Context, kv jetstream.KeyValue, pattern string, each func(jetstream.KeyValueEntry)) error {
	all, err := kv.Watch(ctx, pattern, jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = all.Stop() }()
	limit := time.NewTimer(callTime)
	defer limit.Stop()
	for range maxWitnesses {
		select {
		case e, open := <-all.Updates():
			if !open {
				return errors.New("the connection ended")
			}
			if e == nil {
				return nil
			}
			each(e)
		case <-limit.C:
			return errors.New("the server does not answer")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// offers has the heads of this node's log signed.
type offers struct {
	node *node
	kv   jetstream.KeyValue
	set  wire.Signing
	*choice

	sizes   map[string]int64 // of the last head that a witness has signed
	answers map[string][]byte
	offered []int64 // the sizes of the last offers
}

// choice is which nodes are asked. It outlives a connection: nodes that come back together do not all read who there is.
type choice struct {
	asked  []string
	when   time.Time     // they were chosen
	holds  time.Duration // after that
	missed int           // offers in a row that not all have signed until the next
}

func (o *offers) run(ctx context.Context) error {
	signed, err := o.kv.Watch(ctx, answerPrefix+o.node.Name+".*", jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = signed.Stop() }()
	announce := time.NewTimer(0)
	defer announce.Stop()
	next := time.NewTimer(rand.N(o.set.Every)) // spread: many nodes may have come at once
	defer next.Stop()
	o.answers = map[string][]byte{}
	for {
		select {
		case e, open := <-signed.Updates():
			if !open {
				return errors.New("the connection ended")
			}
			if e != nil {
				err = o.take(ctx, strings.TrimPrefix(e.Key(), answerPrefix+o.node.Name+"."), e.Value())
			}
		case <-announce.C:
			err = put(ctx, o.kv, witnessPrefix+o.node.Name, []byte(o.set.Key))
			announce.Reset(announceEvery)
		case <-next.C:
			err = o.offer(ctx)
			next.Reset(o.set.Every)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// take gives the daemon an answer.
func (o *offers) take(ctx context.Context, witness string, text []byte) error {
	var a wire.Answer
	if _, known := o.sizes[witness]; len(text) > wire.MaxAnswer || json.Unmarshal(text, &a) != nil || !known && len(o.sizes) >= maxSizes {
		return nil
	}
	o.sizes[witness], o.answers[witness] = headSize(a.Head), text
	return o.tell(ctx, witness)
}

func (o *offers) tell(ctx context.Context, witness string) error {
	ctx, cancel := context.WithTimeout(ctx, takeTime)
	defer cancel()
	_, err := wire.Cosigned.Call(ctx, o.node.daemon, wire.Told{Witness: witness, Answer: o.answers[witness]})
	return err
}

// headSize returns the lines of a head, as it says; 0: it is none.
func headSize(head string) (size int64) {
	if _, err := fmt.Sscanf(head, "%s\n%d\n", new(string), &size); err != nil {
		return 0
	}
	return size
}

// offer asks for signatures of the newest head, unless all that are asked have signed it.
func (o *offers) offer(ctx context.Context) error {
	_, size, err := audit.Head(o.node.Dir)
	if err != nil {
		return ignoreMissing(err)
	}
	if len(o.offered) > 0 && len(o.lacking(o.offered[len(o.offered)-1])) > 0 {
		o.missed++
	} else {
		o.missed = 0
	}
	since := time.Since(o.when)
	if len(o.asked) < o.set.Ask || since > o.holds || o.missed >= missedOffers && since > announceEvery {
		if since > o.holds {
			o.holds = min(max(chooseFirst, 2*o.holds), chooseEvery)
		}
		if err := o.choose(ctx); err != nil {
			return err
		}
	}
	for witness, has := range o.sizes {
		if has > size { // the daemon looks twice whether lines of the log are missing
			if err := o.tell(ctx, witness); err != nil {
				return err
			}
		}
	}
	if len(o.lacking(size)) == 0 {
		return nil
	}
	signed, growths, err := audit.Growths(ctx, o.node.Dir, o.from())
	if err != nil {
		return ignoreMissing(err)
	}
	size = headSize(string(signed))
	text, err := json.Marshal(wire.Offer{Key: o.node.LogKey, Head: string(signed), Growths: growths})
	if err != nil {
		return err
	}
	o.offered = append(o.offered, size)
	o.offered = o.offered[max(0, len(o.offered)-offeredSizes):]
	for _, witness := range o.lacking(size) {
		if err := put(ctx, o.kv, askPrefix+witness+"."+o.node.Name, text); err != nil {
			return err
		}
	}
	return nil
}

// ignoreMissing returns nil for what is not there: the log has no head yet, or has just removed a segment.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// lacking returns the asked witnesses that have not signed the head of a size.
func (o *offers) lacking(size int64) []string {
	return slices.DeleteFunc(slices.Clone(o.asked), func(witness string) bool { return o.sizes[witness] == size })
}

// from returns the sizes that a head is shown to grow from: what witnesses have, those that are asked first, and what they may
// have by then.
func (o *offers) from() []int64 {
	all := slices.Clone(o.offered)
	add := func(size int64) {
		if !slices.Contains(all, size) && len(all) < wire.MaxAsked+offeredSizes {
			all = append(all, size)
		}
	}
	for _, witness := range o.asked {
		add(o.sizes[witness])
	}
	for _, size := range slices.Sorted(maps.Values(o.sizes)) {
		add(size)
	}
	return all
}

// choose chooses the witnesses among the nodes that announce themselves.
func (o *offers) choose(ctx context.Context) error {
	created, newest := map[string]time.Time{}, time.Time{}
	err := readKeys(ctx, o.kv, witnessPrefix+"*", func(e jetstream.KeyValueEntry) {
		name := strings.TrimPrefix(e.Key(), witnessPrefix)
		if name != o.node.Name && (len(o.set.Keys) == 0 || slices.Contains(o.set.Keys, string(e.Value()))) {
			created[name] = e.Created()
		}
		if e.Created().After(newest) {
			newest = e.Created()
		}
	})
	if err != nil {
		return err
	}
	maps.DeleteFunc(created, func(_ string, at time.Time) bool { return newest.Sub(at) > goneAfter })
	o.asked, o.when, o.missed = witnesses(o.node.Name, slices.Collect(maps.Keys(created)), o.set.Ask), time.Now(), 0
	return nil
}

// witnesses returns those of several nodes that sign the heads of one: the first by a hash of both names. Each node is chosen
// about as often as another, and a node that comes or goes changes few choices.
func witnesses(node string, others []string, most int) []string {
	rank := map[string][sha256.Size]byte{}
	for _, other := range others {
		rank[other] = sha256.Sum256([]byte(node + "\n" + other))
	}
	slices.SortFunc(others, func(a, b string) int {
		x, y := rank[a], rank[b]
		return cmp.Or(slices.Compare(x[:], y[:]), strings.Compare(a, b))
	})
	return others[:min(len(others), most)]
}
