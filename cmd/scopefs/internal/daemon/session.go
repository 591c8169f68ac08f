package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// sandboxHost returns what makes sandboxes. It is asked again until there is one:
// what is missing may be installed meanwhile.
func (d *Daemon) sandboxHost() (*sandbox.Host, error) {
	d.sandboxMu.Lock()
	defer d.sandboxMu.Unlock()
	d.mu.Lock()
	closing := d.closing
	d.mu.Unlock()
	if closing {
		return nil, errClosing
	}
	if d.sandboxes != nil {
		return d.sandboxes, nil
	}
	host, err := sandbox.Open(context.Background(), sandbox.Config{})
	if err == nil {
		d.sandboxes = host
	}
	return host, err
}

// startTries bounds how often a view may die under a sandbox that starts on it.
const startTries = 3

// purpose is what a sandbox of an agent's is for. The zero purpose is a command
// of the operator's.
type purpose struct {
	parent    string // the client whose it is, for the log
	chain     string // of callers, likewise
	readOnly  bool   // the callers may change nothing
	noNetwork bool   // the callers have none

	noView  bool           // it is not for what has the agent's files
	network agents.Network // of its own; "": the agent's
	binds   []sandbox.Bind // what else it shows
}

// startSession starts a sandbox on an agent's mounted view, or records why not.
func (d *Daemon) startSession(ctx context.Context, id scope.ID, p purpose) (*sandbox.Session, string, error) {
	session, name, err := d.trySession(ctx, id, p)
	for try := 1; errors.Is(err, errViewEnded) && try < startTries; try++ {
		session, name, err = d.trySession(ctx, id, p)
	}
	if err != nil {
		d.event(audit.Event{Event: audit.KindSandbox, Agent: string(id), Parent: p.parent, Chain: p.chain, Outcome: "refused", Detail: err.Error()})
	}
	return session, name, err
}

var errViewEnded = errors.New("the view has ended")

func (d *Daemon) trySession(ctx context.Context, id scope.ID, p purpose) (*sandbox.Session, string, error) {
	host, err := d.sandboxHost()
	if err != nil {
		return nil, "", err
	}
	v, err := d.bring(ctx, id, "", p.parent == "")
	if err != nil {
		return nil, "", err
	}
	served, owner := v.served()
	session, name, err := d.sandboxOn(ctx, host, v, owner, p)
	if now, _ := v.served(); now == 0 || now != served {
		// It has died meanwhile, perhaps before endSessions could find ours.
		if err == nil {
			d.endSession(id, session, name)
		}
		return nil, "", errors.Join(errViewEnded, err)
	}
	return session, name, err
}

// sandboxOn starts a sandbox on what is mounted now. It can be found by
// endSessions when it returns.
func (d *Daemon) sandboxOn(ctx context.Context, host *sandbox.Host, v *view, owner user, p purpose) (*sandbox.Session, string, error) {
	id := v.def.Name
	mounted, err := d.mounts.read()
	if err == nil {
		err = nothingElse(mounted, id, v.at)
	}
	if err != nil {
		return nil, "", err
	}
	// O_PATH: nothing of the view is opened.
	fd, err := unix.Open(v.at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("view at %q: %w", v.at, err)
	}
	mount := os.NewFile(uintptr(fd), v.at)
	defer mount.Close()
	group, err := d.groups.of(v.def)
	if err != nil {
		return nil, "", fmt.Errorf("start sandbox of %q: %w", id, err)
	}
	spec := sandbox.Spec{
		Agent: id, UID: owner.uid, GID: owner.gid, View: mount, ReadOnly: p.readOnly, Network: v.def.Network == agents.NetworkHost && !p.noNetwork,
		Limits: limitsOf(v.def), Group: group,
		Expose: d.host.Expose, Env: d.host.Env, Mounts: withoutViews(mounted, v.at),
		OutOfMemory: func(s *sandbox.Session) {
			d.mu.Lock()
			name := d.sessions[id][s]
			d.mu.Unlock()
			d.event(audit.Event{Event: audit.KindSandbox, Agent: string(id), Session: name, Parent: p.parent, Outcome: outcomeMemory,
				Detail: "the kernel killed a process: limits: memory was reached"})
		},
	}
	if spec.Binds = p.binds; p.noView {
		spec.View = nil
	}
	if p.network != "" {
		spec.Network = p.network == agents.NetworkHost
	}
	session, err := host.Start(ctx, spec)
	if err != nil {
		return nil, "", errors.Join(closedTo(owner, v.at), err)
	}
	name := fmt.Sprintf("%d-%d", time.Now().Unix(), session.PID())
	err = d.record(ctx, audit.Event{Event: audit.KindSandbox, Agent: string(id), Session: name, Parent: p.parent, Chain: p.chain, Outcome: "started", PID: session.PID(), Detail: "limits: " + session.Limiter()})
	if err != nil {
		session.Close()
		return nil, "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[id] == nil {
		d.sessions[id] = map[*sandbox.Session]string{}
	}
	d.sessions[id][session] = name
	return session, name, nil
}

func (d *Daemon) endSession(id scope.ID, s *sandbox.Session, name string) {
	err := s.Close()
	d.mu.Lock()
	delete(d.sessions[id], s)
	d.mu.Unlock()
	var detail []string
	for _, e := range []error{s.Err(), err} {
		if e != nil {
			detail = append(detail, e.Error())
		}
	}
	d.event(audit.Event{Event: audit.KindSandbox, Agent: string(id), Session: name, Outcome: "ended", Detail: strings.Join(detail, "; ")})
}

// endSessions kills the sandboxes that an agent has now: those who wait for them
// see it. wait returns when nothing of them is left.
func (d *Daemon) endSessions(id scope.ID) (wait func()) {
	var closing sync.WaitGroup
	d.mu.Lock()
	defer d.mu.Unlock()
	for s := range d.sessions[id] {
		closing.Go(func() {
			if err := s.Close(); err != nil {
				d.logger.Warn("sandbox", "agent", id, "err", err)
			}
		})
	}
	return closing.Wait
}
