package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/heads"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools/limit"
)

// The outcomes of events of [audit.KindDaemon] about heads of logs: the first key of a node was taken, and an offer or a signature
// was refused. Those of package heads have the verdict violation.
const (
	HeadPinned  = "fleet head key"
	HeadRefused = "fleet head refused"
)

const (
	maxWrong = 16 // that a node shows
	lateHead = 3  // intervals without the signatures that the operator wants, until an alarm
)

// signing is what a node signs for others, and has signed by them.
type signing struct {
	host   Host
	fleet  config.Fleet
	cancel context.CancelFunc
	work   sync.WaitGroup

	turn    *limit.Slots // its holder has the fields below
	witness *heads.Witness
	own     *heads.Own
	refused *refusals
	found   wire.Wrong // about the own log; Node "": nothing

	mu    sync.Mutex
	shown wire.Heads
	why   string // why the last witness that was asked does not sign; "": it does
	late  bool
}

func newSigning(f config.Fleet, host Host) (*signing, error) {
	p := host.Paths
	w, err := heads.OpenWitness(p.State, f.Name, f.Keys)
	if err != nil {
		return nil, err
	}
	own, err := heads.OpenOwn(p.State, p.Audit(), f.Name, f.Keys, f.Witnesses)
	if err != nil {
		w.Close()
		return nil, err
	}
	s := &signing{host: host, fleet: f, turn: limit.NewSlots(1), witness: w, own: own, refused: newRefusals(HeadRefused, definePause, host.Record)}
	s.show()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if f.Witnesses > 0 {
		s.work.Go(func() { s.watch(ctx) })
	}
	return s, nil
}

func (s *signing) close() {
	if s == nil {
		return
	}
	s.cancel()
	s.work.Wait()
	s.witness.Close()
	s.own.Close()
}

// heads returns what the node shows.
func (s *signing) heads() *wire.Heads {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.shown
	return &shown
}

// show sets what heads returns. The caller has the turn.
func (s *signing) show() {
	h := wire.Heads{Witness: s.witness.Public()}
	s.own.Show(&h)
	h.Logs, h.Wrong = s.witness.Logs(maxWrong)
	if s.found.Node != "" {
		h.Wrong = append(h.Wrong, s.found)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = h
}

// Anchors returns the heads that other nodes have signed as an anchor of the log. There is none without any, unless some must.
func (n *Node) Anchors() []api.Anchor {
	if n == nil || n.heads == nil {
		return nil
	}
	s := n.heads
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fleet.Witnesses == 0 && s.shown.Size == 0 {
		return nil
	}
	return []api.Anchor{{Name: heads.Name, Kept: s.shown.Time, Size: s.shown.Size, Late: s.late, Error: s.why}}
}

// signs says how the node has its heads signed.
func (n *Node) signs(context.Context, driver.None) (wire.Signing, error) {
	if n.heads == nil {
		return wire.Signing{}, nil
	}
	f := n.heads.fleet
	return wire.Signing{Key: n.heads.heads().Witness, Every: f.HeadEvery, Ask: f.Asks(), Keys: f.Keys}, nil
}

// take begins one call about heads. release ends it.
func (n *Node) take(ctx context.Context) (s *signing, release func(), err error) {
	if n.heads == nil {
		return nil, nil, errors.New("the node signs no heads")
	}
	leave, err := n.host.Enter()
	if err != nil {
		return nil, nil, err
	}
	free, err := n.heads.turn.Take(ctx)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return n.heads, func() { free(); leave() }, nil
}

// cosign signs the head of another node's log, or refuses it.
func (n *Node) cosign(ctx context.Context, asked wire.Asked) ([]byte, error) {
	s, release, err := n.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	r := s.witness.Cosign(asked.Node, asked.Offer, asked.Seen, time.Now())
	defer s.show()
	if r.Pinned != "" {
		s.record(ctx, audit.Event{Outcome: HeadPinned, Detail: fmt.Sprintf("the log of the node %.64q has the key %s", asked.Node, r.Pinned)})
	}
	switch {
	case r.Found != nil:
		s.record(ctx, audit.Event{Outcome: r.Kind, Verdict: audit.Violation, Detail: fmt.Sprintf("the node %s: %s", r.Found.Node, r.Found.What)})
	case r.Refused != "":
		if err := s.refused.add(ctx, fmt.Sprintf("a head of the node %.64q: %s", asked.Node, r.Refused)); err != nil {
			return nil, err
		}
	}
	return json.Marshal(r.Answer)
}

// cosigned takes what a witness says about the node's own log.
func (n *Node) cosigned(ctx context.Context, told wire.Told) (none driver.None, err error) {
	s, release, err := n.take(ctx)
	if err != nil {
		return none, err
	}
	defer release()
	g := s.own.Take(told.Witness, told.Answer)
	defer s.show()
	if g.Pinned != "" {
		s.record(ctx, audit.Event{Outcome: HeadPinned, Detail: fmt.Sprintf("the witness of the node %.64q has the key %s", told.Witness, g.Pinned)})
	}
	if g.Found != "" && g.Found != s.found.What {
		s.found = wire.Wrong{Node: s.fleet.Name, What: g.Found, Time: time.Now().UTC()}
		s.record(ctx, audit.Event{Outcome: heads.RolledBack, Verdict: audit.Violation, Detail: g.Found})
	}
	s.tell(told.Witness, g)
	if g.Refused != "" {
		return none, s.refused.add(ctx, fmt.Sprintf("a signature of the node %.64q: %s", told.Witness, printable.Text(g.Refused)))
	}
	return none, nil
}

// tell has the operator see why there is no signature.
func (s *signing) tell(witness string, g heads.Given) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = ""
	for _, why := range []string{g.Why, g.Refused, g.Found} {
		if why != "" {
			s.why = printable.Text(fmt.Sprintf("%.64s: %.300s", witness, why))
		}
	}
}

func (s *signing) record(ctx context.Context, e audit.Event) {
	e.Event = audit.KindDaemon
	_ = s.host.Record(ctx, e) // the log says itself that it cannot be written
}

// watch records once that too few other nodes sign, until ctx ends.
func (s *signing) watch(ctx context.Context) {
	ticker := time.NewTicker(s.fleet.HeadEvery)
	defer ticker.Stop()
	for behind, last := 0, int64(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		release, err := s.turn.Take(ctx)
		if err != nil {
			return
		}
		lines, size, err := s.own.Behind()
		release()
		behind++
		if err != nil || lines <= 0 || size > last {
			behind = 0
		}
		last = size
		s.mu.Lock()
		was := s.late
		s.late = behind >= lateHead
		late, why := s.late, s.why
		s.mu.Unlock()
		if late && !was {
			_ = s.host.Record(ctx, audit.Event{Event: audit.KindAudit, Outcome: audit.OutcomeLate,
				Detail: fmt.Sprintf("%s: fewer than %d other nodes have signed the head of the log: %s", heads.Name, s.fleet.Witnesses, why)})
		}
	}
}
