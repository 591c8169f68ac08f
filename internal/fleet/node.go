// Package fleet is a node's part of a fleet, in its daemon: what the node shows of itself, and the decisions and definitions that it
// takes from operators. The process that speaks to the server calls it. Nothing here waits for that process or for the server.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/library"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/placement"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/limit"
)

// Host is what a node has of its daemon.
type Host struct {
	Paths     config.Paths
	Version   string
	Agents    func() []api.Agent
	Approvals *approvals.Set
	Enter     func() (leave func(), err error)

	// Decided returns the function that records a decision by a name before it holds.
	Decided func(ctx context.Context, as string) func(approvals.Approval) error
	Record  func(context.Context, audit.Event) error
	Reload  func(context.Context) []api.Reloaded // the definitions
	Logger  *slog.Logger
}

// Node is the node of one daemon.
type Node struct {
	host  Host
	name  string
	trust []note.Verifier

	turn    *limit.Slots // one order after the other. Its holder has the fields below
	nonces  *nonces
	refused *refusals

	definitions *definitions // nil: the node takes none

	mu   sync.Mutex
	last seen // what state has seen last
}

// seen is what a state is made of, and the state.
type seen struct {
	agents []api.Agent
	waits  []approvals.Waiting
	more   int // waits that are not there
	held   []wire.Held
	state  wire.State
}

// Join returns the node of a fleet.
func Join(f config.Fleet, host Host) (*Node, error) {
	n := &Node{host: host, name: f.Name, turn: limit.NewSlots(1), refused: newRefusals(Refused, refusePause, host.Record)}
	for _, text := range f.Trust {
		key, err := order.ParseKey(text)
		if err != nil {
			return nil, err
		}
		n.trust = append(n.trust, key)
	}
	var err error
	if n.nonces, err = openNonces(host.Paths.State); err != nil {
		return nil, err
	}
	if dir := f.Signed(host.Paths.State); dir != "" {
		library, err := library.Open(dir, f.Name, n.trust)
		if err != nil {
			n.nonces.close()
			return nil, err
		}
		n.definitions = newDefinitions(library, host)
		n.definitions.start()
	}
	return n, nil
}

// Close frees the node's files.
func (n *Node) Close() {
	n.definitions.close()
	n.nonces.close()
}

// Handlers returns the methods for the process that speaks to the server.
func (n *Node) Handlers() driver.Handlers {
	to := driver.Handlers{}
	wire.Look.Handle(to, n.look)
	wire.Decide.Handle(to, n.decide)
	wire.Define.Handle(to, n.define)
	return to
}

// The bounds of what a node shows, in bytes of JSON: NATS carries messages of 1 MiB.
const (
	maxAgents  = 512 << 10
	maxRequest = 512 << 10
)

// pollTime is the time between two looks at what no approval tells of: views and sessions.
const pollTime = time.Second

// look answers when the state differs from the one that was seen.
func (n *Node) look(ctx context.Context, seen wire.Seen) (wire.State, error) {
	changes, stop := n.host.Approvals.Watch()
	defer stop()
	for range len(changes) { // those that there are
		<-changes
	}
	limit := time.NewTimer(wire.LookTime)
	defer limit.Stop()
	ticker := time.NewTicker(pollTime)
	defer ticker.Stop()
	for {
		state := n.state()
		if state.Version != seen.Version {
			return state, nil
		}
		select {
		case _, open := <-changes:
			if !open { // there were too many at once
				changes = nil
			}
		case <-ticker.C:
		case <-limit.C:
			return wire.State{Version: state.Version}, nil
		case <-ctx.Done():
			return state, ctx.Err()
		}
	}
}

// state returns the state. While nothing changes, it is the last one.
func (n *Node) state() wire.State {
	inbox := n.host.Approvals.Inbox()
	now := seen{agents: n.host.Agents(), waits: inbox.Waits, more: inbox.More, held: n.definitions.held()}
	for i, a := range now.agents {
		if a.Lease != nil && a.Lease.Left > 0 { // it is renewed every few seconds, which is no change
			now.agents[i].Lease = &api.Lease{Node: a.Lease.Node, Left: placement.Held.Seconds()}
		}
	}
	n.mu.Lock()
	now.state = n.last.state
	same := now.state.Version != "" && reflect.DeepEqual(now, n.last)
	n.mu.Unlock()
	if same {
		return now.state
	}
	now.state = n.stateOf(now)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = now
	return now.state
}

func (n *Node) stateOf(now seen) wire.State {
	s := wire.State{Node: wire.Node{
		Name: n.name, Version: n.host.Version, Agents: []api.Agent{}, Waits: len(now.waits) + now.more, Definitions: now.held,
	}}
	size := 0
	for _, a := range now.agents {
		if size += sizeOf(a); size > maxAgents {
			s.Node.More++
			continue
		}
		s.Node.Agents = append(s.Node.Agents, a)
	}
	for _, w := range now.waits {
		w.Preview = "" // content of a context stays on the node
		if !w.Cut && sizeOf(w) > maxRequest {
			w = approvals.Waiting{Approval: w.Brief(), Cut: true}
		}
		s.Waits = append(s.Waits, w)
	}
	text, _ := json.Marshal(s) // cannot fail: it is sent as JSON
	sum := sha256.Sum256(text)
	s.Version = hex.EncodeToString(sum[:16])
	return s
}

func sizeOf(v any) int {
	text, _ := json.Marshal(v)
	return len(text)
}

// The bounds of refusals.
const (
	maxRefused  = 16                    // that are recorded at once
	refusedTime = 10 * time.Second      // until one more is recorded
	refusePause = 10 * time.Millisecond // see refusals.pause
)

// Refused is the outcome of an event of [audit.KindDaemon]: an order was refused. Its detail says whose, and why.
const Refused = "fleet decision refused"

// decide decides by an order, or refuses it. Both are recorded.
func (n *Node) decide(ctx context.Context, signed []byte) (wire.Outcome, error) {
	leave, err := n.host.Enter()
	if err != nil {
		return wire.Outcome{}, err
	}
	defer leave()
	release, err := n.turn.Take(ctx)
	if err != nil {
		return wire.Outcome{}, err
	}
	defer release()
	d, by, err := order.OpenDecision(signed, n.trust)
	out := wire.Outcome{By: by}
	if err == nil {
		out.Nonce, out.Request = d.Nonce, d.Request
		err = d.Fits(n.name, time.Now())
	}
	if err == nil {
		err = n.nonces.use(d.Nonce, d.Expires)
	}
	var decided approvals.Approval
	if err == nil {
		as := "the fleet's key " + by
		decided, err = n.host.Approvals.Decide(d.Request, d.Approve,
			approvals.Answer{Reason: d.Reason, Shown: d.Hash, By: as}, n.host.Decided(ctx, as))
	}
	if err != nil {
		out.Text = printable.Text(err.Error())
		return out, n.refuse(ctx, d, by, out.Text)
	}
	out.Done, out.Text = true, decided.State
	return out, nil
}

// refuse records that an order is refused. The caller has the turn.
func (n *Node) refuse(ctx context.Context, d order.Decision, by, why string) error {
	detail := "a decision"
	if by != "" {
		detail += fmt.Sprintf(" of the key %s about %.40q", by, d.Request)
	}
	return n.refused.add(ctx, detail+": "+why)
}
