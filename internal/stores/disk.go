package stores

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// A disk bounds what one store holds for agents with limits. What it holds is what it was measured to hold, and what may have
// been added since: no less than the truth. A nil *disk bounds nothing.
type disk struct {
	store   string
	of      *Stores
	measure func(context.Context, scope.ID) (quota.Use, error) // what the store holds for an agent
	slow    bool                                               // a change is not worth a measurement

	mu   sync.Mutex
	held map[scope.ID]*held
}

// held is what a store holds for one agent.
type held struct {
	turn chan struct{} // of the goroutine that measures

	mu    sync.Mutex
	use   quota.Use
	added quota.Use // since the last measurement began
	known bool      // it was measured
	loose bool      // it may be less
	ended time.Time // of the last measurement
	took  time.Duration
}

// The bounds of a measurement.
const (
	measureTime = 10 * time.Minute
	waitTime    = 10 * time.Second // for a call
	pauseTime   = time.Second      // between two for want of room
	pauseTimes  = 4                // or so many times as long as the last one took
	looseTime   = 3 * time.Second  // or likewise: before a loose number is measured beside calls
	agedTime    = time.Hour        // before any number is: entries expire
)

// bound bounds what a store holds.
func (s *Stores) bound(d *disk) *disk {
	if s.pages == nil {
		return nil
	}
	d.of, d.held = s, map[scope.ID]*held{}
	s.disks = append(s.disks, d)
	return d
}

func (d *disk) heldBy(agent scope.ID) *held {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.held[agent]
	if h == nil {
		h = &held{turn: make(chan struct{}, 1)}
		d.held[agent] = h
	}
	return h
}

// change changes what the store holds for an agent, which grows by so much at most, if there is room for it.
func (d *disk) change(ctx context.Context, agent scope.ID, grows quota.Use, do func() error) error {
	if d == nil {
		return do()
	}
	if bounded, err := d.look(ctx, agent); err != nil {
		return err
	} else if !bounded {
		return do()
	}
	give := d.of.pages.Take(agent, grows)
	if give == nil {
		d.of.lookAgain(ctx, agent)
		if give = d.of.pages.Take(agent, grows); give == nil {
			return tools.Errorf(tools.TooLarge, "the agent's disk is full: its limit counts files and what stores hold together").
				Suggest("delete what is not needed: files, keys, rows or objects; a new value needs room beside the old one")
		}
	}
	return d.settle(ctx, agent, grows, give, do())
}

// changeWithin is change for a change that can be bounded: by half of the room that is left. room is nil without a limit.
func (d *disk) changeWithin(ctx context.Context, agent scope.ID, do func(room *int64) error) error {
	if d == nil {
		return do(nil)
	}
	if bounded, err := d.look(ctx, agent); err != nil {
		return err
	} else if !bounded {
		return do(nil)
	}
	room, give := d.of.pages.TakeHalf(agent)
	if room == nil { // files alone are bounded, or the limit has gone
		return d.settle(ctx, agent, quota.Use{}, give, do(nil))
	}
	return d.settle(ctx, agent, quota.Use{Bytes: *room}, give, do(room))
}

// settle counts a change that has ended.
func (d *disk) settle(ctx context.Context, agent scope.ID, grows quota.Use, give func(), err error) error {
	h := d.heldBy(agent)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Code != tools.Unavailable && e.Code != tools.Internal {
		grows = quota.Use{} // it was not made, but it may have removed what had expired
	}
	h.add(grows)
	d.publish(agent, h)
	give()
	if !d.slow {
		_ = d.remeasure(context.WithoutCancel(ctx), agent, func() bool { return h.loose }) // else later
	}
	return err
}

// add counts what may have been added.
func (h *held) add(grows quota.Use) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.use, h.added, h.loose = h.use.Plus(grows), h.added.Plus(grows), true
}

// publish has the agent's limit count what is held.
func (d *disk) publish(agent scope.ID, h *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	use := h.use
	use.Counting = !h.known
	d.of.pages.Hold(agent, d.store, use)
}

// look measures what was never measured, and reports whether the agent has a limit.
func (d *disk) look(ctx context.Context, agent scope.ID) (bounded bool, err error) {
	h := d.heldBy(agent)
	if !d.of.pages.Bounds(agent) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.known = false // there may be a limit later
		return false, nil
	}
	err = d.remeasure(ctx, agent, func() bool { return !h.known })
	if _, ok := errors.AsType[*tools.Error](err); !ok && err != nil && ctx.Err() == nil {
		err = tools.Errorf(tools.Unavailable, "what the store holds for the agent is being counted").Suggest("try again later").Because(err)
	}
	return true, err
}

// lookAgain measures for want of room what all stores hold for an agent, but not again and again.
func (s *Stores) lookAgain(ctx context.Context, agent scope.ID) {
	for _, d := range s.disks {
		h := d.heldBy(agent)
		h.mu.Lock()
		wait := min(h.due(pauseTime), waitTime)
		loose := h.loose
		h.mu.Unlock()
		if loose && wait > 0 { // there may be room
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		_ = d.remeasure(ctx, agent, func() bool { return h.due(pauseTime) <= 0 })
	}
}

// due returns how long to wait before the next measurement. The caller holds mu.
func (h *held) due(pause time.Duration) time.Duration {
	return max(pause, pauseTimes*h.took) - time.Since(h.ended)
}

// Measure measures beside calls what stores hold for agents with limits, until ctx ends.
func (s *Stores) Measure(ctx context.Context) {
	var all sync.WaitGroup
	for _, d := range s.disks {
		all.Go(func() { d.keep(ctx) })
	}
	all.Wait()
}

func (d *disk) keep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for _, agent := range d.of.pages.Limited() {
			h := d.heldBy(agent)
			_ = d.remeasure(ctx, agent, func() bool { // its calls say that a store does not work
				return (!h.known || h.loose) && h.due(looseTime) <= 0 || h.due(agedTime) <= 0
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// remeasure measures what the store holds for an agent if want returns true, which is called with held.mu held. It waits for
// waitTime at most; the measurement goes on.
func (d *disk) remeasure(ctx context.Context, agent scope.ID, want func() bool) error {
	h := d.heldBy(agent)
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	h.mu.Lock()
	wanted := want()
	if wanted {
		h.added, h.loose = quota.Use{}, false
	}
	h.mu.Unlock()
	if !wanted {
		<-h.turn
		return nil
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-h.turn }()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), measureTime)
		defer cancel()
		began := time.Now()
		now, err := d.measure(ctx, agent)
		h.mu.Lock()
		h.ended, h.took = time.Now(), time.Since(began)
		if err == nil {
			h.use, h.known = now.Plus(h.added), true
		} else {
			h.loose = true
		}
		h.mu.Unlock()
		d.publish(agent, h)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
