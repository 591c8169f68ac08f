package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/mcp"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A client is one that uses an agent's tools: its set, behind its door, and the
// sandbox in which they run. The sandbox is started when it is first needed,
// and again when it has ended.
type client struct {
	d    *Daemon
	id   scope.ID
	by   *client // for whose task it works; nil: for nobody's
	name string  // of its session, in the log
	set  *tools.Set
	face *mcp.Face
	own  []func() error // what to close

	servers *servers

	life    context.Context // ends with it
	stop    context.CancelFunc
	working sync.WaitGroup // what goes on beside calls

	paces *paces

	starting sync.Mutex // of sandboxes, which takes its time

	mu       sync.Mutex
	closed   bool
	session  *sandbox.Session
	purposed purpose // of the session
	end      func()
}

// newClient returns a client of an agent's tools under the names of a profile,
// "" for our own. by is the client for whose task it works, nil for nobody's.
func (d *Daemon) newClient(id scope.ID, profile string, by *client) (*client, error) {
	if _, err := d.defined(id); err != nil {
		return nil, err
	}
	c := &client{d: d, id: id, by: by, paces: d.pacesOf(id), name: fmt.Sprintf("c%d-%d", time.Now().Unix(), d.clientCount.Add(1))}
	c.life, c.stop = context.WithCancel(context.Background())
	files, shell := file.New(worker.New(worker.In(c))), bash.NewShell(c)
	files.Quick, files.Unfinished, files.RefusedFrom = c.quick, d.unfinished.Of(id), d.renames.take
	c.servers = newServers(c)
	c.own = []func() error{files.Close, shell.Close, c.servers.up.Close}
	all, err := c.tools(files, shell, profile)
	if err == nil {
		c.set, err = tools.NewSet(tools.Gate{
			Agent: id, Session: c.name, Chain: c.chain(), Rules: c.rules, Find: c.servers.find, Record: c.record,
			Queue: d.queue, Rates: d.ratesOf(id), Approvals: d.approvals, Object: files.Object,
		}, all...)
	}
	if err != nil {
		return nil, err
	}
	c.face = mcp.New(c.set, mcp.Options{Version: d.version, Instructions: c.instructions, Listing: c.servers.list, Logger: d.quiet()})
	if err := d.admit(c); err != nil {
		return nil, err
	}
	// While the client and we are still saying hello.
	c.beside(func() { _ = files.Start(c.life) }) // the first call tells
	return c, nil
}

// admit has the client found by close and refresh.
func (d *Daemon) admit(c *client) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return errClosing
	}
	if d.clients[c.id] == nil {
		d.clients[c.id] = map[*client]struct{}{}
	}
	d.clients[c.id][c] = struct{}{}
	return nil
}

// Exec runs a command in the client's sandbox.
func (c *client) Exec(ctx context.Context, command sandbox.Command) (*sandbox.Process, error) {
	s, err := c.sandbox(ctx)
	if _, missing := errors.AsType[*sandbox.MissingError](err); missing {
		e := tools.Errorf(tools.Unavailable, "no sandbox can be made")
		e.Hint = "ask the operator: scopefs audit and the daemon's log have the reason"
		return nil, e.Because(err)
	}
	if err != nil {
		return nil, err
	}
	if err := tools.Still(ctx); err != nil { // a start takes a while
		return nil, err
	}
	return s.Exec(ctx, command)
}

func (c *client) sandbox(ctx context.Context) (*sandbox.Session, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	old, end, was, closed := c.session, c.end, c.purposed, c.closed
	c.mu.Unlock()
	if closed {
		return nil, sandbox.ErrEnded
	}
	now := c.purpose()
	if old != nil {
		select {
		case <-old.Done():
			end()
		default:
			if now.readOnly == was.readOnly && now.noNetwork == was.noNetwork {
				return old, nil
			}
			end() // the callers may do less now, or more
		}
	}
	s, name, err := c.d.startSession(ctx, c.id, now)
	if err != nil {
		return nil, err
	}
	end = sync.OnceFunc(func() { c.d.endSession(c.id, s, name) })
	c.mu.Lock()
	c.session, c.end, c.purposed, closed = s, end, now, c.closed
	c.mu.Unlock()
	if closed { // meanwhile
		end()
		return nil, sandbox.ErrEnded
	}
	return s, nil
}

// beside does something that close waits for.
func (c *client) beside(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.working.Go(f)
	}
}

// close ends the sandbox and all that runs in it.
func (c *client) close() {
	c.d.mu.Lock()
	delete(c.d.clients[c.id], c)
	c.d.mu.Unlock()
	c.stop()
	for _, end := range c.own {
		_ = end()
	}
	c.mu.Lock()
	c.closed = true
	end := c.end
	c.mu.Unlock()
	if end != nil {
		end()
	}
	c.face.Close()
	c.working.Wait()
}

// rules returns the agent's current rules, narrowed to those of its callers. An
// agent without a definition has none.
func (c *client) rules() *agents.Grants {
	def, err := c.d.defined(c.id)
	if err != nil {
		return nil
	}
	if c.by == nil {
		return def.Grants
	}
	above := c.by.rules()
	switch {
	case !above.Member(string(c.id)).Allow: // not any more
		return nil
	case above.Widens(c.id):
		return def.Grants
	}
	return def.Grants.Within(above)
}

// quick reports whether changes by file tools need not wait for the disk.
func (c *client) quick() bool {
	durable := c.d.host.Durable
	if def, err := c.d.defined(c.id); err == nil && def.Durable != nil {
		durable = def.Durable
	}
	return durable != nil && !*durable
}

// record takes the door's events to the log. Who calls without end waits.
func (c *client) record(ctx context.Context, e audit.Event) error {
	e.Chain = c.chain()
	// A client that is gone does not wait, so that nobody waits for it.
	if err := c.paces.wait(ctx, c.life.Done(), e); err != nil {
		return fmt.Errorf("wait for the log: %w", err)
	}
	return c.d.record(ctx, e)
}

// instructions are for the model: where it is, its definition's text, and what it may use.
func (c *client) instructions() string {
	if _, err := c.d.defined(c.id); err != nil {
		return ""
	}
	text := fmt.Sprintf("You are agent %s. Your files are below %s; paths of tools are relative to it. What is outside does not exist for you.", c.id, sandbox.Workspace)
	return strings.TrimSpace(text + "\n\n" + c.rules().Prompt())
}

// callID is the form of a call's id, which no name of an idle thread has.
var callID = regexp.MustCompile(`^[a-z2-7]{13}$`)

// callOf tells to which call a process belongs that the kernel names by a
// thread id; "" when to none that is known. byTool says that a file tool is that process.
func (d *Daemon) callOf(id scope.ID, pid int) (call string, byTool bool) {
	d.mu.Lock()
	var sessions []*sandbox.Session
	for s := range d.sessions[id] {
		sessions = append(sessions, s)
	}
	d.mu.Unlock()
	for _, s := range sessions {
		tag, own, ours := s.TagOf(pid)
		switch {
		case !ours:
			continue
		case tag != worker.Arg:
			return tag, false
		case own: // it is ours: others of the sandbox call themselves what they like
			if name := threadName(pid); callID.MatchString(name) {
				return name, true
			}
		}
		return "", false
	}
	return "", false
}

// threadName is a thread's (proc_tid_comm(5)): the file worker gives each that
// works for a call the call's id.
func threadName(tid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", tid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (d *Daemon) ratesOf(id scope.ID) *tools.Rates {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rates[id] == nil {
		d.rates[id] = tools.NewRates(state.RatesOf(d.paths.State, id))
	}
	return d.rates[id]
}

// refresh has the clients of agents, and of those who work for them, do and list
// what they may by the rules of now.
func (d *Daemon) refresh(ids []scope.ID) {
	d.mu.Lock()
	var all []*client
	for _, clients := range d.clients {
		for c := range clients {
			if slices.ContainsFunc(c.callers(), func(id scope.ID) bool { return slices.Contains(ids, id) }) {
				all = append(all, c)
			}
		}
	}
	d.mu.Unlock()
	for _, c := range all {
		c.face.Refresh()
		c.beside(c.narrow)
		c.beside(func() { c.servers.refresh(c.life) }) // they may take their time
	}
}

// narrow ends the sandbox if the callers may do less now than when it was started.
func (c *client) narrow() {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	end, was := c.end, c.purposed
	c.mu.Unlock()
	if now := c.purpose(); end != nil && (now.readOnly && !was.readOnly || now.noNetwork && !was.noNetwork) {
		end()
	}
}
