package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Place is where a daemon may run.
type Place struct {
	config.Paths
	Only bool // it is of one command, and mounts one agent
}

// Daemons are the daemons that an operator's command is about: one, or all of a user. What several answer is put together. A
// decision goes to the daemon that has the approval or the session.
type Daemons struct {
	find func() []Place
	one  bool // its errors are those of the command
}

// OneDaemon is the daemon of a base.
func OneDaemon(p config.Paths) *Daemons {
	return &Daemons{func() []Place { return []Place{{Paths: p}} }, true}
}

// AllDaemons are those of the places that find returns, at each request.
func AllDaemons(find func() []Place) *Daemons { return &Daemons{find: find} }

// answer is what a daemon says.
type answer[T any] struct {
	Place
	got T
	err error
}

// ask asks the daemons side by side. Of one daemon an error is returned; of several only that none answers.
func ask[T any](d *Daemons, f func(*Client) (T, error)) ([]answer[T], error) {
	places := d.find()
	all := make([]answer[T], len(places))
	var asked sync.WaitGroup
	for i, p := range places {
		asked.Go(func() {
			got, err := f(NewClient(p.Paths))
			all[i] = answer[T]{p, got, err}
		})
	}
	asked.Wait()
	if d.one {
		return all, all[0].err
	}
	left := slices.IndexFunc(all, func(a answer[T]) bool { return errors.Is(a.err, ErrLeft) })
	if left >= 0 && !slices.ContainsFunc(all, func(a answer[T]) bool { return !errors.Is(a.err, ErrNoDaemon) }) {
		return nil, all[left].err
	}
	all = slices.DeleteFunc(all, func(a answer[T]) bool { return errors.Is(a.err, ErrNoDaemon) })
	if len(all) == 0 {
		return nil, fmt.Errorf("%w for you: start an agent with scopefs run, or a daemon with scopefs daemon --user", ErrNoDaemon)
	}
	return all, nil
}

// Running reports whether one of them answers.
func (d *Daemons) Running(ctx context.Context) bool {
	_, err := ask(d, func(c *Client) (none, error) {
		conn, err := c.Dial(ctx)
		if err == nil {
			conn.Close()
		}
		return none{}, err
	})
	return err == nil
}

// Agents lists the agents that are defined or mounted. Of several daemons each agent has its base, and an error of a daemon
// is a failed agent without a name.
func (d *Daemons) Agents(ctx context.Context) ([]Agent, error) {
	all, err := ask(d, func(c *Client) ([]Agent, error) { return c.Agents(ctx) })
	if err != nil || d.one {
		return first(all), err
	}
	list := []Agent{}
	for _, a := range all {
		if a.err != nil {
			a.got = []Agent{{State: Failed, Error: a.err.Error()}}
		}
		for _, g := range a.got {
			if a.Only && g.Mount == "" && a.err == nil {
				continue
			}
			g.Base = a.Base
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b Agent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

func first[T any](all []answer[T]) (got T) {
	if len(all) > 0 {
		got = all[0].got
	}
	return got
}

// Streams lists the streams of the logs of the daemons that answer.
func (d *Daemons) Streams(ctx context.Context) []Stream {
	return listed(d, func(c *Client) ([]Stream, error) { return c.Streams(ctx) }, func(s *Stream, base string) { s.Base = base })
}

// Doors lists where the daemons serve agents' tools; of several daemons those that are not sockets of their own run directory.
func (d *Daemons) Doors(ctx context.Context) []Door {
	all := listed(d, func(c *Client) ([]Door, error) { return c.Doors(ctx) }, func(at *Door, base string) { at.Base = base })
	return slices.DeleteFunc(all, func(at Door) bool { return at.Base != "" && at.By == "socket" })
}

// listed returns a list of each daemon, with its base if there may be several. Those that the caller may not have are empty.
func listed[T any](d *Daemons, f func(*Client) ([]T, error), in func(one *T, base string)) (list []T) {
	all, _ := ask(d, f)
	for _, a := range all {
		for _, one := range a.got {
			if !d.one {
				in(&one, a.Base)
			}
			list = append(list, one)
		}
	}
	return list
}

// Top returns what runs now. Agents of one name are one.
func (d *Daemons) Top(ctx context.Context) (Top, error) {
	all, err := ask(d, func(c *Client) (Top, error) { return c.Top(ctx) })
	if err != nil || d.one {
		return first(all), err
	}
	t := NewTop()
	for _, a := range all {
		if a.err != nil {
			t.Agents = append(t.Agents, TopAgent{ID: scope.ID(a.Base), State: Failed, Error: a.err.Error()})
		}
		for _, g := range a.got.Agents {
			if i := slices.IndexFunc(t.Agents, func(b TopAgent) bool { return b.ID == g.ID }); i >= 0 {
				t.Agents[i].add(g)
			} else if !a.Only || g.State == Mounted {
				t.Agents = append(t.Agents, g)
			}
		}
		t.Sessions, t.Approvals = append(t.Sessions, a.got.Sessions...), append(t.Approvals, a.got.Approvals...)
		t.Calls, t.Proposals = append(t.Calls, a.got.Calls...), append(t.Proposals, a.got.Proposals...)
		t.Totals.add(a.got.Totals)
		for _, disk := range a.got.Disks {
			if !slices.ContainsFunc(t.Disks, func(b Disk) bool { return b.Size == disk.Size && b.Free == disk.Free }) {
				t.Disks = append(t.Disks, disk)
			}
		}
	}
	slices.SortStableFunc(t.Agents, func(a, b TopAgent) int { return strings.Compare(string(a.ID), string(b.ID)) })
	slices.SortStableFunc(t.Sessions, func(a, b TopSession) int {
		return cmp.Or(strings.Compare(string(a.Agent), string(b.Agent)), a.Since.Compare(b.Since))
	})
	return t, nil
}

// add adds what an agent of the same name does.
func (a *TopAgent) add(b TopAgent) {
	if a.State != Mounted {
		a.State, a.Error = b.State, b.Error
	}
	a.Use.Add(b.Use)
	a.Denials, a.Calls, a.Running = a.Denials+b.Denials, a.Calls+b.Calls, a.Running+b.Running
	a.Open += b.Open
}

// Approvals lists the calls that wait for the operator, or that the operator has decided, the oldest first. With an error it
// returns those of the daemons that have answered.
func (d *Daemons) Approvals(ctx context.Context) ([]approvals.Approval, error) {
	all, err := ask(d, func(c *Client) ([]approvals.Approval, error) { return c.Approvals(ctx) })
	if err != nil || d.one {
		return first(all), err
	}
	list, errs := []approvals.Approval{}, []error(nil)
	for _, a := range all {
		list = append(list, a.got...)
		if a.err != nil {
			errs = append(errs, fmt.Errorf("the daemon of %s: %w", a.Base, a.err))
		}
	}
	slices.SortStableFunc(list, func(a, b approvals.Approval) int { return a.Asked.Compare(b.Asked) })
	return list, errors.Join(errs...)
}

// of returns the daemon that has something.
func of[T any](d *Daemons, what error, list func(*Client) ([]T, error), has func(T) bool) (p Place, err error) {
	if d.one {
		return d.find()[0], nil
	}
	all, err := ask(d, list)
	if err != nil {
		return p, err
	}
	i := slices.IndexFunc(all, func(a answer[[]T]) bool { return slices.ContainsFunc(a.got, has) })
	if i < 0 {
		return p, what
	}
	return all[i].Place, nil
}

func (d *Daemons) approvalOf(ctx context.Context, id string) (*Client, error) {
	p, err := of(d, &Error{Text: fmt.Sprintf("no approval %.64q in any daemon of yours: scopefs approvals has the ids", id), Kind: Other},
		func(c *Client) ([]approvals.Approval, error) { return c.Approvals(ctx) }, func(p approvals.Approval) bool { return p.ID == id })
	if err != nil {
		return nil, err
	}
	return NewClient(p.Paths), nil
}

// Approval returns one approval with all arguments of the call.
func (d *Daemons) Approval(ctx context.Context, id string) (p approvals.Approval, err error) {
	c, err := d.approvalOf(ctx, id)
	if err == nil {
		p, err = c.Approval(ctx, id)
	}
	return p, err
}

// Approve grants a call that waits, or makes a standing approval from it.
func (d *Daemons) Approve(ctx context.Context, id string, how DecideRequest) (p approvals.Approval, err error) {
	c, err := d.approvalOf(ctx, id)
	if err == nil {
		p, err = c.Approve(ctx, id, how)
	}
	return p, err
}

// Deny denies a call that waits.
func (d *Daemons) Deny(ctx context.Context, id string, how DecideRequest) (p approvals.Approval, err error) {
	c, err := d.approvalOf(ctx, id)
	if err == nil {
		p, err = c.Deny(ctx, id, how)
	}
	return p, err
}

// Revoke ends a standing approval, or one that is not used yet.
func (d *Daemons) Revoke(ctx context.Context, id string, how DecideRequest) (p approvals.Approval, err error) {
	c, err := d.approvalOf(ctx, id)
	if err == nil {
		p, err = c.Revoke(ctx, id, how)
	}
	return p, err
}

// Kill ends a session.
func (d *Daemons) Kill(ctx context.Context, id string) (s Session, err error) {
	agent := scope.ID("")
	p, err := of(d, &Error{Text: fmt.Sprintf("no session %.64q runs in any daemon of yours: scopefs ps has the ids", id), Kind: Invalid},
		func(c *Client) ([]Agent, error) { return c.Agents(ctx) }, func(a Agent) bool {
			agent = a.ID
			return slices.Contains(a.Sessions, id)
		})
	if err != nil {
		return s, err
	}
	c := NewClient(p.Paths)
	s, err = c.Kill(ctx, id)
	if err != nil && p.Only {
		if _, over := c.Agents(ctx); errors.Is(over, ErrNoDaemon) { // the command has ended, and its daemon, before that had answered
			return Session{ID: id, Agent: agent}, nil
		}
	}
	return s, err
}

// PathsOf returns the directories of the daemon that has an agent.
func (d *Daemons) PathsOf(ctx context.Context, agent string) (p config.Paths, ok bool) {
	if d.one {
		return d.find()[0].Paths, true
	}
	all, _ := ask(d, func(c *Client) ([]Agent, error) { return c.Agents(ctx) })
	for _, a := range all {
		if slices.ContainsFunc(a.got, func(g Agent) bool { return string(g.ID) == agent && (g.Mount != "" || !a.Only) }) {
			return a.Paths, true
		}
	}
	return p, false
}

// againEvery is how often a watch looks for daemons that have started.
const againEvery = 2 * time.Second

// WatchApprovals calls each for every approval that there is, and then for every change, until ctx ends or each returns an
// error. It also watches daemons that start later, with every approval that there is then, and none needs to run.
func (d *Daemons) WatchApprovals(ctx context.Context, each func(approvals.Update) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	ended, watched := make(chan string), map[string]bool{} // by run directory
	var one sync.Mutex
	var watches sync.WaitGroup
	defer func() {
		stop(nil)
		watches.Wait()
	}()
	watch := func(p Place) {
		_ = NewClient(p.Paths).WatchApprovals(ctx, func(u approvals.Update) error {
			one.Lock()
			defer one.Unlock()
			err := each(u)
			if err != nil {
				stop(err)
			}
			return err
		})
		select {
		case ended <- p.Run:
		case <-ctx.Done():
		}
	}
	for again := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case run := <-ended:
			delete(watched, run)
		case <-again.C:
			for _, p := range d.find() {
				if !p.Only && !watched[p.Run] { // a daemon of one command has nobody to ask
					watched[p.Run] = true
					watches.Go(func() { watch(p) })
				}
			}
			again.Reset(againEvery)
		}
	}
}
