package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// startTries bounds how often a view may die under a sandbox that starts on it.
const startTries = 3

// Purpose says what a sandbox of an agent is for. Without a Parent it is a command of the
// operator's.
type Purpose struct {
	By       *uint32       // the agent's user, who asked for a command; nil: the operator, or a client
	Parent   string        // the client that it belongs to, for the log
	Once     bool          // that client is one command: see api.Hello
	Chain    string        // the client's callers, for the log
	Trace    trace.Context // the span of the caller's call, for the log
	ReadOnly bool          // the callers may change nothing

	Kind    api.SessionKind // ""; a command of the operator's
	Command string          // that it is for, for people

	NoView bool                 // it runs programs that must not see the agent's files
	Hosts  func() *hosts.Policy // what it may connect to now; nil: what the agent may
	Binds  []sandbox.Bind       // further files that it shows

	Task *outlive.Task // that its runner does; nil: it has none
	Held *changeSet    // whose view it has; nil: the agent's own

	Others bool // the operator attends: hosts that no rule names need an approval

	Lent   []scope.ID // further roots than those of the definition
	Expose []string   // what it shows beside what all sandboxes show; see Ready

	Publish   []hosts.Publication // ports of the host that the operator opens for the run
	HostPorts []uint16            // ports of the host that the run reaches

	Keys    map[string]string // variables for credentials that the daemon has not; see api.RunRequest
	SSH     SSH               // what the command says of SSH keys
	Presets []string          // further ones, for hosts of this sandbox alone
	Login   *login.Login      // whose token the hosts of its rules get; see Ready

	// Refused gets the connections and requests that its network refuses; see
	// egress.Tenant. nil drops them.
	Refused func(host, text, remedy string)

	// Asked gets the questions about paths that nobody has decided when the client's wait was over. nil drops them.
	Asked func(text, remedy string)

	// Context returns what /context shows to the processes of a command, by its tag; nil:
	// there is no /context.
	Context func(tag string) *contextfs.Files
}

// own reports whether the sandbox runs the agent's commands: it has the agent's HOME and
// variables.
func (p Purpose) own() bool {
	return p.Kind == "" || p.Kind == api.RunSession || p.Kind == api.ClientSession
}

// server returns the name of the MCP server that the sandbox is of, for the log; "": of none.
func (p Purpose) server() string {
	if p.Kind == api.ServerSession {
		return p.Command
	}
	return ""
}

// Sandbox is a running sandbox of an agent.
type Sandbox struct {
	*sandbox.Session
	Name string // in the log

	Earlier *outlive.Item // an earlier daemon has started it; nil: this one
	Because error         // why this daemon ends it, for the log

	kind    api.SessionKind
	parent  string // the client that it belongs to
	began   time.Time
	command string

	agent    *Agent
	view     View
	print    string           // see outlive.Print
	place    *holder.Place    // it outlives the daemon; nil: it does not
	commands outlive.Commands // that do so, too
	held     *changeSet       // on whose view it is; nil: the agent's own
	context  *contextfs.Mount // nil: none
	network  *network
	trace    trace.Context
	server   string // see Purpose.server
	end      sync.Once
	claimed  atomic.Bool // see Claim
	asked    func(text, remedy string)
	roots    []scope.ID // whose views it has beside the agent's
	homed    bool       // it has the HOME that lasts
	keys     *keyring   // nil: no SSH key of the user's
	opened   []*os.File // for the start

	echoing sync.Once
	echoes  *sandbox.Ports // see echoer
}

// Start starts a sandbox on the agent's mounted view, and records an error. It mounts the
// view if need be; only a command of the operator's mounts one that the operator has
// unmounted.
func (a *Agent) Start(ctx context.Context, p Purpose) (*Sandbox, error) {
	if p.By != nil { // the events of a sandbox and of its command count as the agent's
		if err := a.paces.WaitFor(ctx, audit.Event{}, audit.Event{}, audit.Event{Target: p.Command}, audit.Event{Target: p.Command}); err != nil {
			return nil, err
		}
	}
	box, err := a.tryStart(ctx, p)
	for try := 1; errors.Is(err, errViewEnded) && try < startTries; try++ {
		box, err = a.tryStart(ctx, p)
	}
	if err != nil {
		outcome := "refused"
		if errors.Is(err, context.Canceled) && ctx.Err() != nil {
			outcome = "abandoned" // the client has gone
		}
		a.Event(audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Parent: p.Parent, Chain: p.Chain,
			Server: p.server(), Outcome: outcome, Detail: err.Error()})
	}
	return box, err
}

var (
	errViewEnded = errors.New("the view has ended")
	errRoot      = errors.New("a root has no sandbox of its own")
	errNotUser   = fmt.Errorf("%w of this user", api.ErrUnknown) // says no more than of an agent that does not exist
)

func (a *Agent) tryStart(ctx context.Context, p Purpose) (*Sandbox, error) {
	if def, err := a.Definition(); err == nil && def.RootOf != "" {
		return nil, fmt.Errorf("%w: it is %s: its sandboxes have it", errRoot, def.Description)
	}
	var preparing sync.WaitGroup
	defer preparing.Wait()
	preparing.Go(a.prepareMove)
	host, err := a.sandboxes.open(sandbox.Config{})
	if err != nil {
		return nil, err
	}
	v, err := a.viewFor(ctx, p)
	if err != nil {
		return nil, err
	}
	served, owner := v.Served()
	box, err := a.startOn(ctx, host, v, owner, p)
	if now, _ := v.Served(); now == 0 || now != served {
		// The view has died meanwhile, perhaps before EndSandboxes could find the sandbox.
		if err == nil {
			box.End()
		}
		return nil, errors.Join(errViewEnded, err)
	}
	return box, err
}

// viewFor returns the view of a sandbox, and mounts it if need be.
func (a *Agent) viewFor(ctx context.Context, p Purpose) (View, error) {
	if p.Held == nil {
		return a.Mount(ctx, p.Parent == "" && p.By == nil)
	}
	v := p.Held.branch.View()
	if v == nil {
		return nil, sandbox.ErrEnded
	}
	return v, v.Wait(ctx)
}

// startOn starts a sandbox on the view that is mounted now. When it returns,
// EndSandboxes finds the sandbox.
func (a *Agent) startOn(ctx context.Context, host *sandbox.Host, v View, owner account.User, p Purpose) (*Sandbox, error) {
	if p.By != nil && *p.By != owner.UID { // a reload has changed the user; the view has not
		return nil, errNotUser
	}
	dir, mounted, err := a.openMount(v)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	box := &Sandbox{agent: a, view: v, held: p.Held, network: a.newNetwork(p), kind: cmp.Or(p.Kind, api.RunSession),
		parent: p.Parent, trace: p.Trace, server: p.server(), began: time.Now(), command: p.Command, asked: p.Asked}
	roots, err := a.mountRoots(ctx, owner, p)
	if err != nil {
		return nil, err
	}
	defer roots.close()
	if len(roots) > 0 { // their mounts may be new
		if mounted, err = a.Mounts.Read(); err != nil {
			return nil, err
		}
	}
	box.roots = roots.ids()
	if err := v.Beside(ctx, roots.dirs()); err != nil {
		return nil, errors.Join(errViewEnded, err)
	}
	spec, err := box.equip(ctx, v, dir, mounted, owner, p)
	if err != nil {
		return nil, err
	}
	defer spec.Home.Close() // of nil is an error and no more
	spec.Roots = roots.spec()
	defer func() {
		for _, f := range box.opened {
			f.Close()
		}
		if err != nil {
			box.keys.close()
		}
	}()
	if err = box.equipSSH(ctx, &spec, owner, p); err == nil {
		err = box.network.publish(p)
	}
	if err == nil {
		box.Session, err = host.Start(ctx, spec)
	}
	if err != nil {
		box.network.withdraw()
		box.context.Close()
		if closed := account.ClosedShown(owner, p.Expose); closed != nil {
			return nil, closed
		}
		return nil, errors.Join(account.ClosedTo(owner, v.At()), err)
	}
	session := box.Session
	box.context.Show(session, p.Context)
	box.Name = fmt.Sprintf("%d-%d", time.Now().Unix(), session.PID())
	began := audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Session: box.Name, Parent: p.Parent,
		Chain: p.Chain, Server: p.server(), Outcome: "started", PID: session.PID(), Detail: "limits: " +
			session.Limiter(), Trace: p.Trace.String()}
	if p.Once {
		began.Op = audit.OpCall
	}
	err = a.Record(ctx, began)
	if err != nil {
		session.Close()
		box.network.withdraw()
		box.context.Close()
		return nil, err
	}
	if box.network.kind == hosts.HostNetwork {
		a.borders.enter(box)
	}
	box.network.serve(box, p)
	box.keys.serve()
	a.mu.Lock()
	a.sessions[session] = box
	a.mu.Unlock()
	a.recheck()          // the rules may have changed before the sandbox was found by a reload
	if !roots.served() { // one has died before its EndSandboxes could find the sandbox
		box.End()
		return nil, errViewEnded
	}
	return box, nil
}

// equip returns what makes the sandbox on a mounted view, and makes its /context. The caller closes the spec's Home.
func (b *Sandbox) equip(ctx context.Context, v View, dir *os.File, mounted []*mountinfo.Info, owner account.User,
	p Purpose) (sandbox.Spec, error) {
	a := b.agent
	def := *v.Definition()
	def.Name = a.id
	group, err := a.groupOf(&def)
	if err != nil {
		return sandbox.Spec{}, fmt.Errorf("start sandbox of %q: %w", a.id, err)
	}
	spec, err := a.specOn(ctx, v, owner, p)
	if err != nil {
		return sandbox.Spec{}, err
	}
	points := []string{v.At()}
	for _, id := range b.roots {
		points = append(points, filepath.Join(a.Paths.Views(), string(id)))
	}
	b.homed = p.own() && spec.Home != nil
	b.print = outlive.Print(spec, b.network.kind == hosts.HostNetwork, a.runner(p.Task))
	spec.View, spec.Group, spec.Mounts, spec.OutOfMemory = dir, group, mount.WithoutViews(mounted, points...), a.noMemory(p)
	a.equipNetwork(&spec, b.network.kind, b.network.secrets)
	if spec.Binds = p.Binds; p.NoView {
		spec.View = nil
	}
	if p.Context != nil && b.context.Ended() {
		b.context.Close()
		m, err := a.mountContext(owner, group)
		if err != nil {
			spec.Home.Close()
			return sandbox.Spec{}, err
		}
		spec.Context = m.Root
		a.mu.Lock()
		b.context = m
		a.mu.Unlock()
	}
	return spec, nil
}

// openMount opens the mount point of a view, and returns what is mounted on the host.
func (a *Agent) openMount(v View) (*os.File, []*mountinfo.Info, error) {
	mounted, err := a.Mounts.Read()
	if err == nil {
		err = mount.CheckAlone(mounted, v.Definition().Name, v.At())
	}
	if err != nil {
		return nil, nil, err
	}
	// O_PATH: nothing of the view is opened.
	fd, err := unix.Open(v.At(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("view at %q: %w", v.At(), err)
	}
	return os.NewFile(uintptr(fd), v.At()), mounted, nil
}

// specOn is specOf for a sandbox on a view.
func (a *Agent) specOn(ctx context.Context, v View, owner account.User, p Purpose) (sandbox.Spec, error) {
	spec, err := a.specOf(ctx, v.Definition(), owner, p)
	if err == nil && !v.Watches() {
		env := maps.Clone(polling)
		maps.Copy(env, spec.Env)
		spec.Env = env
	}
	return spec, err
}

// specOf returns what makes a sandbox but for its mounts, network and group. The caller closes its Home.
func (a *Agent) specOf(ctx context.Context, def *agents.Definition, owner account.User, p Purpose) (spec sandbox.Spec, err error) {
	spec = sandbox.Spec{
		Agent: a.id, UID: owner.UID, GID: owner.GID, At: def.Dir, ReadOnly: p.ReadOnly, Limits: limitsOf(def),
		Expose: slices.Concat(a.reachable(owner), p.Expose), Sockets: a.Settings.Sockets, Env: a.Settings.Env,
	}
	_, spec.Roots = a.rootsOf(p)
	if p.own() {
		err = a.equip(ctx, &spec, p)
	}
	return spec, err
}

// noMemory records that the kernel has killed a process of a sandbox.
func (a *Agent) noMemory(p Purpose) func(*sandbox.Session) {
	return func(s *sandbox.Session) {
		a.Event(audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Session: a.nameOf(s), Parent: p.Parent,
			Server: p.server(), Outcome: sandbox.OutcomeMemory,
			Detail: "the kernel killed a process: limits: memory was reached"})
	}
}

// reachable returns what expose names and the agent's user can reach on the host. It logs
// what a sandbox therefore does not have.
func (a *Agent) reachable(u account.User) (paths []string) {
	for _, name := range a.Settings.Expose {
		if err := u.Reach(name, a.Root); err != nil {
			a.Warnings.Warn(a.id, "expose: left out, the agent's user cannot reach it", "path", name, "user", u.UID, "err", err)
			continue
		}
		paths = append(paths, name)
	}
	return paths
}

// nameOf returns the name of a session in the log; "" while it starts.
func (a *Agent) nameOf(s *sandbox.Session) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if box := a.sessions[s]; box != nil {
		return box.Name
	}
	return ""
}

// End ends the sandbox with every process in it, and records that. Only the first call
// has an effect; all return after it.
func (b *Sandbox) End() {
	b.end.Do(func() {
		var err error
		left := b.Left()
		if !left {
			err = b.Close()
		}
		b.agent.mu.Lock()
		network, shown := b.network, b.context
		delete(b.agent.sessions, b.Session)
		b.agent.mu.Unlock()
		network.Close()
		b.keys.close()
		b.echoer().Close()
		b.agent.borders.leave(b)
		if left {
			return
		}
		shown.Close()
		var detail []string
		for _, e := range []error{b.Because, b.Err(), err} {
			if e != nil {
				detail = append(detail, e.Error())
			}
		}
		b.commands.Close()
		if b.place != nil {
			defer b.place.Remove()
		}
		if b.Earlier != nil {
			b.Earlier.Drop()
			b.agent.drainView()
			b.Earlier.RecordEnd(b.agent.Shared, b.agent.Paths.Audit(), strings.Join(detail, "; "))
			return
		}
		b.agent.Event(audit.Event{Event: audit.KindSandbox, Agent: string(b.agent.id), Session: b.Name, Parent: b.parent, Server: b.server,
			Outcome: outlive.Ended, Detail: strings.Join(detail, "; "), Trace: b.trace.String(), DurationUS: time.Since(b.began).Microseconds()})
	})
}

// Sandboxes returns the process 1 of each sandbox that the agent has now, in order.
func (a *Agent) Sandboxes() (pids []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for session := range a.sessions {
		pids = append(pids, session.PID())
	}
	slices.Sort(pids)
	return pids
}

// EndSandboxes kills the sandboxes that the agent has now; their clients see that. wait
// returns when nothing of them is left.
func (a *Agent) EndSandboxes() (wait func()) {
	own := a.endSandboxes(func(*Sandbox) bool { return true })
	of := a.rootOf()
	if of == nil {
		return own
	}
	others := of.endSandboxes(withRoot(a.id))
	return func() {
		own()
		others()
	}
}

// EndHomed is EndSandboxes of those that have the agent's HOME.
func (a *Agent) EndHomed() (wait func()) {
	return a.endSandboxes(func(b *Sandbox) bool { return b.homed })
}

// EndOfTask is EndSandboxes of those on the branch of a task.
func (a *Agent) EndOfTask(id scope.ID) (wait func()) {
	return a.endSandboxes(func(b *Sandbox) bool { return b.held != nil && b.held.id == id })
}

func (a *Agent) endSandboxes(meant func(*Sandbox) bool) (wait func()) {
	var closing sync.WaitGroup
	a.mu.Lock()
	defer a.mu.Unlock()
	for s, box := range a.sessions {
		if !meant(box) {
			continue
		}
		closing.Go(func() {
			if err := s.Close(); err != nil {
				a.Logger.Warn("sandbox", "agent", a.id, "err", err)
			}
		})
	}
	return closing.Wait
}

// RecordExec records a command before it starts; a command that cannot be recorded must
// not run. e has the session, and the command as its target. The function that it
// returns records the end.
func (a *Agent) RecordExec(ctx context.Context, e audit.Event) (ended func(outcome string), err error) {
	e.Agent = string(a.id)
	return ledger.RecordExec(ctx, a, e)
}

// recordEnd waits for a command and records its end.
func recordEnd(p *sandbox.Process, ended func(outcome string)) {
	exit, err := p.Wait()
	if err != nil {
		ended("ended with its sandbox")
		return
	}
	ended(exit.Outcome())
}
