package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/peer"
)

// Channel appends the events of one agent to a log. The end of the log checks them, in a log of [Start] the process that writes
// it: who holds a channel can write no other agent's events, and none that only the daemon may write. Its methods are safe for
// concurrent use.
type Channel struct {
	log *Log
	own lane
}

// ErrRefused is the error of events that a channel must not write, or that are more than [Options.ChannelDay]. None of them is in the
// log, and the log works.
var ErrRefused = errors.New("not an event that this channel may write")

// Channel returns a channel for the events of an agent. It ends with the log, whose state it shares: see [Log.Err].
func (l *Log) Channel(agent string) *Channel {
	return &Channel{l, lane{max: maxChannel, turn: make(chan struct{}, 1), to: l.disk.channel(agent)}}
}

// Append is [Log.Append]. Events of several goroutines may be refused together.
func (c *Channel) Append(ctx context.Context, e Event) (uint64, error) {
	return c.log.append(ctx, &c.own, e)
}

// refusal is an error of ErrRefused, on its way to the other end.
type refusal struct{ why string }

func (r *refusal) Error() string { return fmt.Sprintf("%v: %s", ErrRefused, r.why) }
func (r *refusal) Unwrap() error { return ErrRefused }

// agentStore is the end of a channel: the store for one agent's events.
type agentStore struct {
	*store
	agent string
}

func (s *store) channel(agent string) appender { return agentStore{s, agent} }

func (s agentStore) append(bodies []byte) (first uint64, err error) {
	if bodies, err = ofAgent(bodies, s.agent); err != nil {
		return 0, &refusal{err.Error()}
	}
	if err = s.admit(s.agent, bodies, time.Now()); err != nil {
		return 0, &refusal{err.Error()}
	}
	if first, err = s.store.append(bodies); err != nil {
		s.repay(s.agent, bodies)
	}
	return first, err
}

// ofAgent returns events of an agent as the log has them, from what the agent's channel has brought, which may be anything.
func ofAgent(bodies []byte, agent string) (clean []byte, err error) {
	for body := range bytes.Lines(bodies) {
		var e Event
		if err := peer.Decode(append([]byte{'{'}, body...), &e); err != nil {
			return nil, err
		}
		if e.Agent != agent {
			return nil, fmt.Errorf("an event of %.64q on the channel of %s", e.Agent, agent)
		}
		if err := agentsOwn(e); err != nil {
			return nil, err
		}
		if len(e.Context) > maxScopes {
			return nil, fmt.Errorf("%d scopes", len(e.Context))
		}
		eachText(&e, func(text *string, most int) {
			if len(*text) > most || !event.Escaped(*text) {
				err = fmt.Errorf("a text of %d bytes is not as the log has texts: %.64q", len(*text), *text)
			}
		})
		if err != nil {
			return nil, err
		}
		clean = appendBody(clean, e)
	}
	if len(clean) == 0 {
		return nil, errors.New("no event")
	}
	return clean, nil
}

// agentsOwn returns an error for an event that says what the daemon or an operator has done.
func agentsOwn(e Event) error {
	refused := true
	switch e.Event {
	case KindFile, KindCall, KindNetwork, KindKey:
		refused = false
	case KindSandbox:
		refused = e.Op == OpKill
	case KindHistory: // the user is the operator
		refused = e.UID != nil
	case KindApproval:
		refused = e.UID != nil || e.Outcome != OutcomeAsked && e.Outcome != OutcomeUsed
	case KindAgent:
		refused = e.UID != nil || e.Outcome != OutcomeDelegated && e.Outcome != OutcomeBudget
	}
	if !e.Decided.IsZero() { // the daemon does not append an event of a spool again that the log has: see AppendAll
		return errors.New("an event of a spool is the daemon's")
	}
	if refused {
		return fmt.Errorf("an event %.64q, operation %.64q, outcome %.64q, is the daemon's", e.Event, e.Op, e.Outcome)
	}
	return nil
}

// serveChannels appends for the channels whose ends arrive at control, until end is called, which waits for them.
func serveChannels(control *os.File, s *store) (end func()) {
	var mu sync.Mutex
	open, ended := map[*os.File]bool{}, false
	var working sync.WaitGroup
	working.Go(func() {
		for name := make([]byte, maxText); ; {
			n, fds, err := descriptors.Read(control, name, 1)
			if err != nil {
				return
			}
			for _, conn := range descriptors.Files(fds, "channel") {
				mu.Lock()
				if ended {
					conn.Close()
				} else {
					open[conn] = true
					to := s.channel(string(name[:n]))
					working.Go(func() {
						serveChannel(conn, to)
						mu.Lock()
						defer mu.Unlock()
						delete(open, conn)
						conn.Close()
					})
				}
				mu.Unlock()
			}
		}
	})
	return func() {
		mu.Lock()
		ended = true
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		control.Close()
		working.Wait()
	}
}

// serveChannel appends what a channel brings until it ends, or brings no message. It delays no other channel: each has a
// goroutine, and one group in flight.
func serveChannel(conn io.ReadWriter, to appender) {
	in, out := peer.NewReader(conn, maxChannel), peer.NewWriter(conn, maxAnswer, writeTime)
	for {
		var bodies []byte
		if in.Read(&bodies) != nil {
			return
		}
		text, err := json.Marshal(answerOf(to.append(bodies)))
		if err != nil || out.Write(text) != nil {
			return
		}
	}
}
