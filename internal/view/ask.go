package view

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
)

const (
	askTime  = 45 * time.Second // for the operator to decide about an operation that waits
	maxAsked = 4                // operations of a view that wait: the others fail, and their questions wait
)

// Question is an operation on a view that the rules leave to the operator. The view says so: it may be the agent's.
type Question struct {
	Path  string // "" with Whole
	Write bool
	Whole bool // it is about the view as a whole
	PID   int
}

// Answer is what the operator has decided.
type Answer struct {
	Grant   *scope.Grant              // nil: nothing is granted
	Outlast func(ctx context.Context) // returns when the grant has ended
	Outside bool                      // the process is in no sandbox: nobody is asked
}

// asks are the operations of a view that wait. Nothing waits under mu.
type asks struct {
	mu  sync.Mutex
	all map[uint64]context.CancelFunc
}

// asked notes a question, and returns the time that it may take.
func (c *channel) asked(msg wire.FromView) (ctx context.Context, done func()) {
	ctx, cancel := context.WithTimeout(c.alive, askTime)
	c.asks.mu.Lock()
	defer c.asks.mu.Unlock()
	if !msg.Ask.Wait || len(c.asks.all) >= maxAsked {
		cancel() // the question is filed
		return ctx, func() {}
	}
	if c.asks.all == nil {
		c.asks.all = map[uint64]context.CancelFunc{}
	}
	c.asks.all[msg.ID] = cancel
	return ctx, func() {
		c.cancel(msg.ID)
		c.asks.mu.Lock()
		defer c.asks.mu.Unlock()
		delete(c.asks.all, msg.ID)
	}
}

// cancel ends the wait for a question.
func (c *channel) cancel(id uint64) {
	c.asks.mu.Lock()
	defer c.asks.mu.Unlock()
	if cancel := c.asks.all[id]; cancel != nil {
		cancel()
	}
}

// ask has the operator decide about a question, and answers the view.
func (c *channel) ask(ctx context.Context, msg wire.FromView) {
	q := msg.Ask
	said, err := c.of.Ask(ctx, Question{Path: string(q.Path), Write: q.Write, Whole: q.Whole, PID: int(q.PID)})
	reply := wire.ToView{ID: msg.ID, Outside: said.Outside}
	if err != nil {
		reply.Error = err.Error()
	} else if said.Grant != nil {
		c.grant(*said.Grant, said.Outlast)
		reply.Granted = true
	}
	c.answer(reply)
}

// grant adds a grant to the view's rules, until outlast returns.
func (v *View) grant(g scope.Grant, outlast func(context.Context)) {
	v.mu.Lock()
	known, w := slices.Contains(v.rules.Granted, g), v.wire
	if !known {
		v.rules.Granted = append(slices.Clone(v.rules.Granted), g)
	}
	v.mu.Unlock()
	if w != nil { // also a known one: rules that were sent at the same time may lack it
		_ = w.Send(wire.ToView{Grant: &g})
	}
	if known {
		return
	}
	go func() {
		outlast(v.life)
		if v.life.Err() == nil {
			v.revoke(g)
		}
	}()
}

// revoke removes a grant from the view's rules.
func (v *View) revoke(g scope.Grant) {
	v.ruling.Lock()
	defer v.ruling.Unlock()
	v.mu.Lock()
	v.rules.Granted = slices.DeleteFunc(slices.Clone(v.rules.Granted), func(o scope.Grant) bool { return o == g })
	v.mu.Unlock()
	if err := v.sendRules(); err != nil {
		v.host.Logger.Warn("a grant has ended", "agent", v.def.Name, "err", err)
	}
}
