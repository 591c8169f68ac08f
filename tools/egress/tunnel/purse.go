package tunnel

import (
	"net"
	"sync"
)

// Purse has the bytes that the tunnels of one sandbox may move. A tunnel takes bytes before it moves them, so that a limit holds
// exactly. Whoever keeps the limits gives bytes in larger amounts. A tunnel without bytes waits for them.
type Purse struct {
	more func() // called when bytes are wanted, once for each Give or Refuse; it must not block

	mu      sync.Mutex
	bytes   int64
	given   int64 // by the last Give
	free    bool  // there is no limit
	asked   bool  // neither Give nor Refuse has answered more
	dry     bool  // the last answer was Refuse
	refused error // of the tunnels that wait
	changed chan struct{}
}

// NewPurse returns an empty Purse.
func NewPurse(more func()) *Purse { return &Purse{more: more, changed: make(chan struct{})} }

// Free sets whether there is no limit.
func (p *Purse) Free(free bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free = free; free {
		p.wake()
	}
}

// Give adds bytes.
func (p *Purse) Give(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes, p.given, p.asked, p.dry = p.bytes+n, n, false, false
	p.wake()
}

// Refuse ends the tunnels that wait for bytes with an error.
func (p *Purse) Refuse(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.dry, p.refused = false, true, err
	p.wake()
}

// Again repeats a request that has no answer: whoever gets it may be another one now.
func (p *Purse) Again() {
	p.mu.Lock()
	asked := p.asked
	p.mu.Unlock()
	if asked {
		p.more()
	}
}

// wake wakes the tunnels that wait. The caller holds mu.
func (p *Purse) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// take takes up to want bytes, and waits for the first one until over is closed. back returns those that the caller has not
// moved.
func (p *Purse) take(want int64, over <-chan struct{}) (n int64, back func(int64), err error) {
	for {
		p.mu.Lock()
		if p.free {
			p.mu.Unlock()
			return want, func(int64) {}, nil
		}
		n = min(want, p.bytes)
		p.bytes -= n
		// Bytes are requested before they are used up, so that tunnels do not wait for them.
		ask := !p.asked && (n == 0 || p.bytes < p.given/2 && !p.dry)
		p.asked, p.dry = p.asked || ask, p.dry && n > 0
		changed := p.changed
		p.mu.Unlock()
		if ask {
			p.more()
		}
		if n > 0 {
			return n, p.back, nil
		}
		select {
		case <-changed:
			if err := p.refusal(); err != nil {
				return 0, nil, err
			}
		case <-over:
			return 0, nil, net.ErrClosed
		}
	}
}

// refusal returns the error of Refuse, if that was the last change.
func (p *Purse) refusal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dry && p.bytes == 0 && !p.free {
		return p.refused
	}
	return nil
}

// back returns bytes that have not moved.
func (p *Purse) back(n int64) {
	if n <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += n
	p.wake()
}
