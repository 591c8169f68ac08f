package view

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusedev"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/internal/view/wire"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const ackTime = 5 * time.Second // for a view to take new rules

// config returns the configuration of a view, but for the rules.
func (v *View) config(history kept, spooled bool) wire.Config {
	spec, caller := v.def.View, v.def.Identity == agents.IdentityCaller
	cfg := wire.Config{
		Record: spec.Record, Caller: caller,
		Mediated: spec.Data == agents.DataMediated, Passthrough: v.host.Root && spec.Data != agents.DataMediated,
		Shared: v.shared() || v.def.View.Closed, Gate: v.def.View.Closed, Sole: !v.host.Root, Shown: v.host.Expose, XAttrs: v.shared() ||
			spec.XAttrs, Trace: v.host.Trace, Spin: v.def.Limits.CPU == 0 && !cpuLimited("/"),
		Spool: spooled,
	}
	cfg.Limits.Handles, cfg.Limits.Links, cfg.Limits.Memory = v.def.Limits.View()
	if v.below.Shared {
		cfg.Remote, cfg.Patience = true, serverTime
		// The kernel has one backing file an inode, which an earlier open may have: a server of FUSE may answer its reads
		// with what it had then.
		cfg.Passthrough = cfg.Passthrough && !strings.HasPrefix(v.below.Type, "fuse")
	}
	if v.def.Placement == agents.PlacementOne { // the kernel and the mount below hold no write back that was answered
		cfg.Leased, cfg.Mediated, cfg.Passthrough = true, true, false
		cfg.Lease, _ = v.host.Placement.Until(v.def.Name)
	}
	if v.cached() {
		cfg.Timeout, cfg.Watch = metadataTime, true
	}
	cfg.Whole = v.kind() == agents.ChangesHeld
	if v.share != nil { // the kernel would write past it
		cfg.Quota, cfg.Passthrough = &v.share.Slot, false
	}
	if v.def.Home != "" {
		cfg.Shown = append(slices.Clone(cfg.Shown), sandbox.Home)
	}
	cfg.Beside = v.besides()
	if v.Holdable() {
		cfg.Grace = v.host.Grace
	}
	if h := v.def.History; history.Root != nil {
		cfg.History = &wire.HistoryConfig{Bytes: h.Bytes, Percent: h.Percent, Age: h.Age, Exclude: h.Exclude,
			Unkept: h.Unkept, Optional: v.kind() == agents.ChangesAuto}
	}
	return cfg
}

// handshake configures the view with the present rules and waits until it is confined.
func (v *View) handshake(p *served, w *wire.Conn, requests *peer.Requests[wire.FromView], cfg wire.Config) ([]string, error) {
	v.mu.Lock()
	rules, ruled := v.rules, v.ruled
	v.mu.Unlock()
	cfg.Policy = rules
	err := w.Send(wire.ToView{Config: &cfg})
	if err != nil {
		return nil, fmt.Errorf("configure view: %w", err)
	}
	conn := p.wire
	_ = conn.SetReadDeadline(time.Now().Add(readyTimeout))
	var reply wire.FromView
	if err := w.Receive(&reply); err != nil {
		return nil, fmt.Errorf("view did not start: %w", err)
	}
	if reply.Failed != "" || len(reply.Ready) == 0 {
		return nil, errors.New(cmp.Or(reply.Failed, "view did not start"))
	}
	v.decide(reply.Unkept)
	v.setLate(reply.Late)
	for { // until the view has the latest rules; from then on SetRules sends them
		v.mu.Lock()
		late := v.ruled != ruled
		rules, ruled = v.rules, v.ruled
		if !late {
			v.wire, v.requests, v.process = w, requests, p // before sendLog: it also sends a change in between
		}
		v.mu.Unlock()
		if !late {
			break
		}
		if err := w.Send(wire.ToView{ID: ruled, Policy: &rules}); err != nil {
			return nil, err
		}
		var ack wire.FromView // the view is not mounted yet: it sends nothing else
		if err := w.Receive(&ack); err != nil {
			return nil, err
		}
		if ack.Failed != "" {
			return nil, fmt.Errorf("new rules: %s", ack.Failed)
		}
	}
	_ = conn.SetReadDeadline(time.Time{})
	return reply.Ready, v.sendLog(w)
}

// channel is the daemon's side of a view's messages. The channel identifies the agent.
type channel struct {
	*View
	alive context.Context // ends shortly before the view
	end   func(why error) // ends the view
	wire  *wire.Conn
	spool *spool // nil: none

	requests *peer.Requests[wire.FromView]
	asks     asks
}

// maxWaiting is the most events, drains and questions about processes that a view has under way: one for each request, one
// for the spool, one for what the history gave up, one for an echo.
const maxWaiting = fusedev.MaxRequests + 3 + wire.MaxRequests

// listen handles the view's messages until the view ends. An event may wait for the agent's pace, and a drain for the
// disk of the log: each does so in a goroutine of its own, and delays neither the requests of other clients nor the
// acknowledgement of new rules.
func (c *channel) listen() {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	slots := make(chan struct{}, maxWaiting)
	for {
		var msg wire.FromView
		if err := c.wire.Receive(&msg); err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) { // it ended before it read an answer
				c.host.Logger.Warn("view", "agent", c.def.Name, "err", err)
			}
			return
		}
		switch {
		case msg.Event != nil, msg.Pruned != nil, msg.Drain && c.spool != nil:
			slots <- struct{}{} // a view that sends more than it has requests waits
			waiting.Go(func() {
				defer func() { <-slots }()
				c.store(msg)
			})
		case msg.Who != 0: // it may wait for a process that starts
			slots <- struct{}{}
			waiting.Go(func() {
				defer func() { <-slots }()
				actor := c.of.Actor(int(msg.Who))
				c.answer(wire.ToView{ID: msg.ID, Actor: &actor})
			})
		case msg.Ask != nil:
			ctx, done := c.asked(msg)
			slots <- struct{}{}
			waiting.Go(func() {
				defer func() { <-slots }()
				defer done()
				c.ask(ctx, msg)
			})
		case msg.Echo != nil:
			slots <- struct{}{}
			waiting.Go(func() {
				defer func() { <-slots }()
				reply := wire.ToView{ID: msg.ID}
				var err error
				if reply.Echoes, err = c.of.Echo(c.alive, c.View, *msg.Echo); err != nil {
					reply.Error = err.Error()
				}
				c.answer(reply)
			})
		case msg.Cancel != 0:
			c.cancel(msg.Cancel)
		case msg.Answer != 0:
			c.requests.Deliver(msg.Answer, msg) // false if the client is gone
		case msg.Ack != 0:
			c.acked(msg.Ack, msg.Failed)
		case msg.Groups != 0:
			reply := wire.ToView{ID: msg.ID}
			groups, err := groupsOf(msg.Groups)
			if err != nil {
				reply.Error = err.Error()
			}
			reply.Groups = groups
			c.answer(reply)
		}
	}
}

// answer sends a reply. After an error the wire is closed, and listen returns: see bounded.
func (c *channel) answer(reply wire.ToView) { _ = c.wire.Send(reply) }

// store records an event, or what the spool has, and answers.
func (c *channel) store(msg wire.FromView) {
	var err error
	switch {
	case msg.Pruned != nil:
		err = c.record(prunedEvent(msg.Pruned, c.def.Name))
	case msg.Event != nil:
		e := eventOf(msg, c.def.Name)
		if msg.Began.IsZero() || !c.host.again.Recorded(e, msg.Began) {
			err = c.record(e)
		}
	default:
		err = c.spool.take(msg.Reset)
	}
	if errors.Is(err, errSpool) {
		c.end(err)
		return
	}
	reply := wire.ToView{ID: msg.ID, Spool: c.spool.room()}
	if err != nil {
		reply.Error = err.Error()
	}
	c.answer(reply)
}

// eventOf returns the event of a message from an agent's view. An agent may have taken the view over: the event has the
// fields of a file operation, and no other, such as those of a call, a chain or a server.
func eventOf(msg wire.FromView, id scope.ID) audit.Event {
	e := msg.Event
	return audit.Event{
		Event: audit.KindFile, Agent: string(id), Op: e.Op, Path: string(msg.Path), Target: string(msg.Target),
		Verdict: e.Verdict, Rule: e.Rule, RuleKind: e.RuleKind, Errno: e.Errno, PID: e.PID, UID: e.UID,
	}
}

// prunedEvent returns the event of what an agent's history has given up, or is about to.
func prunedEvent(p *wire.Pruned, id scope.ID) audit.Event {
	e := audit.Event{Event: audit.KindHistory, Agent: string(id), Op: "pruned", Outcome: "done",
		Detail: fmt.Sprintf("%d generations: %s", p.Generations, p.Why)}
	if p.Generations == 0 {
		e.Outcome, e.Detail = "nearly full", p.Why
	}
	return e
}

// record appends an event to the log, after what the view has recorded before.
func (c *channel) record(e audit.Event) error {
	c.mu.Lock()
	hurry := c.hurry
	c.mu.Unlock()
	return c.of.RecordFile(c.alive, hurry, e, c.Drain)
}

// bounded closes the file when a view does not take a write in time: the log must not
// wait for a broken view. Later writes fail.
type bounded struct{ *os.File }

func (b bounded) Write(p []byte) (int, error) {
	_ = b.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := b.File.Write(p)
	if err != nil {
		b.Close()
	}
	return n, err
}

const writeTimeout = 2 * time.Second

// sendLog sends the view whether the log can be written. It reads the log's state
// under a lock, so that the last message has the latest state.
func (v *View) sendLog(w *wire.Conn) error {
	v.sending.Lock()
	defer v.sending.Unlock()
	text := ""
	if failure := v.host.Log.Err(); failure != nil {
		text = failure.Error()
	}
	return w.Send(wire.ToView{Log: &text})
}

// SetRules makes the view decide by new rules, and returns when the view does. A view
// that does not answer is killed, and the next one starts with the new rules. Any number of
// goroutines may call it: the view gets the rules of one call after those of another.
func (v *View) SetRules(spec scope.PolicySpec) (changed bool, err error) {
	v.ruling.Lock()
	defer v.ruling.Unlock()
	v.mu.Lock()
	spec.Granted = v.rules.Granted
	if reflect.DeepEqual(v.rules, spec) {
		v.mu.Unlock()
		return false, nil
	}
	v.rules = spec
	v.mu.Unlock()
	return true, v.sendRules()
}

// sendRules sends the view its rules, and returns when the view decides by them. A view that does not answer is killed. The
// caller holds ruling.
func (v *View) sendRules() error {
	v.mu.Lock()
	spec, w, process := v.rules, v.wire, v.process
	v.ruled++
	id, ack := v.ruled, make(chan string, 1)
	v.acks = map[uint64]chan string{id: ack}
	if w != nil {
		// The view answers after the invalidation, for which the kernel needs locks of clients whose denials wait
		// for their pace.
		close(v.hurry)
		defer v.unhurried()
	}
	v.mu.Unlock()
	if w == nil {
		return nil // it starts with them: see handshake
	}
	v.asking.Add(1)
	defer v.asking.Add(-1)
	err := w.Send(wire.ToView{ID: id, Policy: &spec})
	if err == nil {
		select {
		case text := <-ack:
			if text == "" {
				return nil
			}
			err = errors.New(text)
		case <-process.ended:
			err = errEnded
		case <-time.After(ackTime):
			err = fmt.Errorf("no answer within %v", ackTime)
		}
	}
	process.Kill()
	return fmt.Errorf("the view of %q did not take new rules: %w", v.def.Name, err)
}

// unhurried makes denials wait for their pace again.
func (v *View) unhurried() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hurry = make(chan struct{})
}

// acked notes that the view decides by the rules of an id.
func (v *View) acked(id uint64, failed string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ack := v.acks[id]; ack != nil {
		delete(v.acks, id)
		ack <- failed
	}
}

// groupsOf returns the supplementary groups of a process; proc_pid_status(5).
func groupsOf(pid uint32) ([]uint32, error) {
	status, err := proc.ReadTable(int(pid), "status")
	words := status.Words("Groups")
	if err != nil || words == nil {
		return nil, cmp.Or(err, error(syscall.ESRCH))
	}
	groups := []uint32{}
	for _, word := range words {
		g, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, err
		}
		groups = append(groups, uint32(g))
	}
	return groups, nil
}
