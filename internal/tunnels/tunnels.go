package tunnels

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/tunnels/relay"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// Set is the daemon's side of the process. It starts the process for the first tunnel, and another one when that has died.
type Set struct {
	Holder *holder.Holder
	Logger *slog.Logger

	starting sync.Mutex // held while a process starts; whoever waits for it needs that process

	mu   sync.Mutex
	now  *process                 // nil: there is none
	over bool                     // none starts any more
	left map[string][]egress.Left // of an earlier daemon, by owner, that no proxy has yet
}

// process returns the process, and starts one if need be.
func (s *Set) process() (*process, error) {
	s.starting.Lock()
	defer s.starting.Unlock()
	if p := s.running(); p != nil {
		return p, nil
	}
	p, err := s.start()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		p.end()
		return nil, errOver
	}
	s.now = p
	p.serve()
	return p, nil
}

var errOver = errors.New("the daemon ends")

func (s *Set) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// stop returns the process, if one runs. None starts any more.
func (s *Set) stop() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.now
}

// Close ends the process with all tunnels.
func (s *Set) Close() {
	if p := s.stop(); p != nil {
		p.end()
	}
}

// Of returns what carries the tunnels of one sandbox, by a name. init returns a pidfd of its process 1, not blocking.
func (s *Set) Of(name string, init func() (*os.File, error)) *Owner {
	return &Owner{set: s, name: name, init: init}
}

// Owner carries the tunnels of one sandbox. It is an egress.Carrier.
type Owner struct {
	set  *Set
	name string
	init func() (*os.File, error)

	mu    sync.Mutex
	lease egress.Lease
}

// Limit implements egress.Carrier.
func (o *Owner) Limit(lease egress.Lease) {
	o.mu.Lock()
	o.lease = lease
	o.mu.Unlock()
	if p := o.set.running(); p != nil {
		p.limit(o)
	}
}

// free reports whether there is no limit.
func (o *Owner) free() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lease == nil
}

// answer returns the answer to relay.OpMore, and the error for relay.OpRefuse.
func (o *Owner) answer() (relay.Message, error) {
	o.mu.Lock()
	lease := o.lease
	o.mu.Unlock()
	if lease == nil {
		return relay.Message{Op: relay.OpLimit, Owner: o.name, Free: true}, nil
	}
	n, err := lease()
	if err != nil {
		return relay.Message{Op: relay.OpRefuse, Owner: o.name}, err
	}
	return relay.Message{Op: relay.OpGive, Owner: o.name, Bytes: n}, nil
}

// Carry implements egress.Carrier.
func (o *Owner) Carry(load egress.Load) (egress.Moving, error) {
	defer load.Up.Close()
	defer load.In.Close()
	p, err := o.set.process()
	if err != nil {
		return nil, err
	}
	return p.carry(o, load)
}

// moving is a tunnel of the process. It implements egress.Moving.
type moving struct {
	*process
	id    uint64
	of    *share
	began time.Time
	sent  int64 // when it began

	ended chan struct{}
	moved tunnel.Moved // when ended is closed
	err   error        // likewise

	once sync.Once
	left chan struct{} // closed by Leave
	quit sync.Once
}

// Wait implements egress.Moving.
func (m *moving) Wait() (tunnel.Moved, error) {
	select {
	case <-m.ended:
		return m.moved, m.err
	case <-m.left:
		return tunnel.Moved{}, egress.ErrLeft
	}
}

// End implements egress.Moving. It does not block. The heartbeat bounds the wait for a process that does not answer: a slow one
// carries the tunnels of other agents.
func (m *moving) End() {
	select {
	case <-m.left:
	case <-m.ended:
	default:
		m.once.Do(func() { go m.send(relay.Message{Op: relay.OpEnd, ID: m.id}) })
	}
}

// Leave implements egress.Moving.
func (m *moving) Leave() { m.quit.Do(func() { close(m.left) }) }

// Recorded implements egress.Moving.
func (m *moving) Recorded() { m.recorded(m.id) }
