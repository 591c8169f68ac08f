package tunnels

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/tunnels/relay"
	"github.com/scopefs/scopefs/tools/egress"
)

// Leave leaves the process to the next daemon, if it has tunnels, or ends of tunnels that are not recorded. Otherwise it ends
// the process.
func (s *Set) Leave() {
	p := s.stop()
	if p == nil {
		return
	}
	p.mu.Lock()
	empty := len(p.all)+len(p.unrecorded) == 0
	if !empty {
		p.over, p.leaving = true, true
	}
	for _, m := range p.all {
		m.Leave()
	}
	p.mu.Unlock()
	if empty {
		p.end()
		return
	}
	p.flush()
	p.wire.Close()
}

// takeTime bounds the wait for the list of a process.
const takeTime = 2 * time.Second

// Adopt continues with the process that an earlier daemon has left in a place. Until Take or EndLeft its tunnels move on.
func (s *Set) Adopt(place *holder.Place) {
	p, err := s.adopt(place)
	if err != nil {
		s.Logger.Error("tunnels: open connections of agents have ended", "err", fmt.Errorf("the process of the last daemon: %w", err))
		place.End()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = p
	p.serve()
}

func (s *Set) adopt(place *holder.Place) (*process, error) {
	var was held
	if err := json.Unmarshal(place.Meta, &was); err != nil {
		return nil, err
	}
	if was.Protocol != relay.Protocol || len(place.Files) != files {
		return nil, fmt.Errorf("its protocol is number %d, this daemon's %d", was.Protocol, relay.Protocol)
	}
	p := newProcess(s, 0)
	p.place = place
	var err error
	if p.wire, err = openWire(place.Files[controlFile]); err != nil {
		return nil, err
	}
	late := time.AfterFunc(takeTime, p.kill)
	defer late.Stop()
	if err := p.list(); err != nil {
		p.wire.Close()
		return nil, err
	}
	p.watch(was.PID)
	return p, nil
}

// list receives the tunnels of the process.
func (p *process) list() error {
	hello := relay.Message{Op: relay.OpHello, ID: rand.Uint64()}
	if err := p.wire.Send(hello); err != nil {
		return err
	}
	p.set.left = map[string][]egress.Left{}
	for answered := false; ; {
		var msg relay.Message
		files, err := p.wire.Receive(&msg)
		if err != nil {
			return err
		}
		descriptors.Close(files)
		switch {
		case !answered:
			answered = msg.Op == hello.Op && msg.ID == hello.ID // what comes before is the last daemon's
		case msg.Op == relay.OpListed:
			return nil
		case msg.Op == relay.OpOwner && len(msg.Owner) <= relay.MaxOwner && len(p.owners) < relay.MaxTunnels:
			p.owners[msg.Owner] = &share{known: true}
		case msg.Op == relay.OpItem && p.all[msg.ID] == nil && !p.unrecorded[msg.ID] && len(p.all)+
			len(p.unrecorded) < 2*relay.MaxTunnels && msg.Sent >= 0:
			if err := p.item(msg); err != nil {
				return err
			}
		default:
			return errNonsense
		}
	}
}

// item adds a tunnel in the list of the process.
func (p *process) item(msg relay.Message) error {
	of := p.owners[msg.Owner]
	if of == nil { // its sandbox has ended
		of = &share{}
	}
	m := &moving{process: p, id: msg.ID, of: of, began: msg.Began, ended: make(chan struct{}), left: make(chan struct{})}
	p.last = max(p.last, m.id)
	p.all[m.id] = m
	if msg.Ended {
		if err := p.finish(msg); err != nil {
			return err
		}
	} else {
		m.sent = msg.Sent
	}
	p.set.left[msg.Owner] = append(p.set.left[msg.Owner], egress.Left{Moving: m, Meta: msg.Meta, Seen: msg.Ended && msg.Seen})
	return nil
}

// Take returns the tunnels that an earlier daemon has left of a sandbox, once.
func (s *Set) Take(name string) []egress.Left {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.left[name]
	delete(s.left, name)
	return all
}

// Recorded reports whether a log has the end of a tunnel.
func Recorded(dir string, end audit.Event) bool {
	filter := audit.Filter{Agent: end.Agent, Session: end.Session, Since: time.Now().Add(-recentTime)}
	for e, err := range audit.Read(context.Background(), dir, filter, false) {
		if err == nil && e.Event == end.Event && e.Op == end.Op && e.Target == end.Target && e.Outcome == end.Outcome &&
			e.Bytes == end.Bytes && e.Sent == end.Sent && e.DurationUS == end.DurationUS {
			return true
		}
	}
	return false
}

// recentTime is longer than the grace time and the start of a daemon.
const recentTime = 15 * time.Minute

// Rest returns the tunnels that Take has not returned, once.
func (s *Set) Rest() (all []egress.Left) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.left {
		all = append(all, of...)
	}
	s.left = nil
	return all
}
