package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/mcp"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// A client is a connection to an agent's tools: the set of tools and the sandbox in
// which they run. The sandbox starts on first use, and again after it has ended.
type client struct {
	agent *Agent
	work
	name    string // of its session, in the log
	once    bool   // see api.Hello
	token   string // by which it returns to the next daemon; "": it does not
	resumes bool   // then it resumes its calls
	user    uint32 // with a token: whose process it is
	set     *tools.Set
	face    *mcp.Face
	own     []func() error // what to close

	files    *file.Files
	shell    *bash.Shell
	servers  *servers
	contexts contextfs.Calls // of its calls
	messages outlive.Context // of context_set, for the next daemon
	log      mcp.Log         // of its calls, for itself
	told     told

	began   time.Time
	life    context.Context // ends with the client
	stop    context.CancelFunc
	hangUp  context.CancelCauseFunc // ends the connection
	drain   func()                  // ends the reading of requests; nil for HTTP requests
	gone    chan struct{}           // closed after close
	working sync.WaitGroup          // goroutines beside calls

	starting sync.Mutex // held while a sandbox starts

	mu       sync.Mutex
	closed   bool
	box      *Sandbox
	unlisted bool         // an answer has said why changes are not listed
	purpose  Purpose      // of box
	sets     []*changeSet // that wait, the oldest first
	tasks    []*Sandbox   // of runners, that outlive the daemon
}

// newClient returns a client of the agent's tools under the names of a profile, "" for
// their own, whose commands start in dir, and which does a task. admit starts it.
func (a *Agent) newClient(profile, dir string, task work) (*client, error) {
	if _, err := a.Definition(); err != nil {
		return nil, err
	}
	c := &client{agent: a, work: task, began: time.Now(), hangUp: func(error) {}, gone: make(chan struct{}),
		name: fmt.Sprintf("c%d-%d", time.Now().UnixMilli(), a.connected.Add(1))}
	if c.earlier != nil {
		c.name, c.box = c.earlier.parent, c.earlier
	}
	c.life, c.stop = context.WithCancel(context.Background())
	files, shell := file.New(worker.New(worker.In(c, c.dirs))), bash.NewShell(c)
	shell.Dir = dir
	resume := outlive.Client{Agent: a.id, Session: c.name, Log: a, Dir: a.Paths.Audit()}.Keep(shell, a.Holder, c.kept, c.leaves, c.endTask)
	files.Dirs, files.Quick, files.RefusedFrom, files.Refused = c.dirs, c.quick, a.refusals.Renamed, a.refused
	if c.held == nil {
		files.Unfinished = a.unfinished
	}
	c.files, c.shell = files, shell
	c.servers = newServers(c)
	c.own = []func() error{files.Close, shell.Close, c.servers.up.Close, c.messages.Close, c.hide}
	all, err := c.tools(files, shell, profile)
	if err == nil {
		c.set, err = tools.NewSet(tools.Gate{
			Agent: a.id, Session: c.name, Chain: c.chain(), Trace: c.trace, Within: c.within,
			Rules: func() tools.Rules { return c.rules() }, Find: c.servers.find, Effects: c.watch, Record: c.record, Show: c.showContext,
			Queue: a.Queue, Examiners: a.Examiners, Rates: a.rates, Approvals: a.Approvals(), Nobody: a.nobody(),
			Wait: a.Settings.Approve.Wait, Object: files.Object, Preview: files.Preview,
			Resume: c.counted(resume),
		}, all...)
	}
	if err == nil {
		err = c.set.Declare(c.activities())
	}
	if err == nil && c.earlier != nil {
		err = c.resume(c.earlier, shell)
	}
	if err != nil {
		return nil, err
	}
	var sessions mcp.Sessions
	if c.web && a.Web != nil {
		sessions = a.Web.Of(a.id)
	}
	quiet := slog.New(slog.DiscardHandler) // the library logs each message
	c.face = mcp.New(c.set, mcp.Options{Version: a.Version, Log: &c.log, Instructions: c.instructions,
		FullSchemas: c.full, Listing: c.listing, Logger: quiet, Encoders: a.Encoders, Inbox: a.inbox, Returns: func() bool { return c.resumes },
		Context: c.context, HoldContext: a.holdContext, Sessions: sessions, KeepContext: c.keepContext, KeptContext: c.keptContext})
	return c, nil
}

// counted counts the calls that go on.
func (c *client) counted(resume func(string) *tools.Resumed) func(string) *tools.Resumed {
	return func(call string) *tools.Resumed {
		was := resume(call)
		if was != nil {
			c.agent.tally.Resume(ledger.Call{ID: was.Call, Session: c.name, Tool: was.Tool, Chain: c.chain(), Since: was.At})
		}
		return was
	}
}

// newReturned is newClient of a client that continues with the sandbox of an earlier daemon, or starts another one.
func (a *Agent) newReturned(profile, dir string, task work) (*client, error) {
	c, err := a.newClient(profile, dir, task)
	if err == nil || task.earlier == nil || task.earlier.Left() { // the next daemon has it
		return c, err
	}
	a.Warnings.Warn(a.id, "a client does not get its sandbox", "session", task.earlier.Name, "err", err)
	task.earlier.Because = err
	task.earlier.End()
	task.earlier = nil
	return a.newClient(profile, dir, task)
}

// admit makes the client one of the agent's, or that of its HTTP requests, and starts its worker.
func (a *Agent) admit(c *client) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closing:
		return ErrClosing
	case c.web && a.socket == nil:
		return ErrNotOpen
	case c.web:
		a.web = c
	}
	a.clients[c] = struct{}{}
	if err := c.set.Declare(c.activities()); err != nil { // a reload did not know the client yet
		return err
	}
	// While the client and we still negotiate. The first call returns the error.
	c.beside(func() { _ = c.files.Start(c.life) })
	return nil
}

// Exec runs a command in the client's sandbox.
func (c *client) Exec(ctx context.Context, command sandbox.Command) (*sandbox.Process, error) {
	s, err := c.sandbox(ctx)
	if err != nil {
		return nil, c.noSandbox(ctx, err)
	}
	if err := tools.Still(ctx); err != nil { // a start takes a while
		return nil, err
	}
	return s.Exec(ctx, command)
}

// noSandbox is the error of a call that needs a sandbox which cannot be started, as while a view is replaced.
func (c *client) noSandbox(ctx context.Context, err error) error {
	if _, said := errors.AsType[*tools.Error](err); said || ctx.Err() != nil || errors.Is(err, sandbox.ErrEnded) {
		return err
	}
	e := tools.Errorf(tools.Unavailable, "no sandbox can be made")
	e.Hint = "call again, or ask the operator: scopefs audit and the daemon's log have the reason"
	if missing, ok := errors.AsType[*sandbox.MissingError](err); ok && c.agent.Private && c.by == nil { // the operator's own command, and no runner
		e.Hint = missing.Error()
	}
	return e.Because(err)
}

// sandbox returns the client's sandbox, and starts one if need be.
func (c *client) sandbox(ctx context.Context) (*Sandbox, error) {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	old, was, closed := c.box, c.purpose, c.closed
	c.mu.Unlock()
	if closed {
		return nil, sandbox.ErrEnded
	}
	now := c.newPurpose()
	if old != nil {
		select {
		case <-old.Done():
			old.End()
		default:
			if now.ReadOnly == was.ReadOnly && now.Hosts().Kind() == old.network.kind {
				return old, nil
			}
			old.End() // the callers may do less now, or more
		}
	}
	box, err := c.agent.Start(ctx, now)
	if err != nil {
		return nil, err
	}
	c.outlive(box)
	c.mu.Lock()
	c.box, c.purpose, closed = box, now, c.closed
	c.mu.Unlock()
	if closed { // meanwhile
		box.End()
		return nil, sandbox.ErrEnded
	}
	return box, nil
}

// beside runs f in a goroutine that close waits for.
func (c *client) beside(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.working.Go(f)
	}
}

// close ends the client's calls, and its sandbox with all that runs in it. It returns the sandbox if it is left to the next daemon.
func (c *client) close() (left *Sandbox) {
	c.agent.mu.Lock()
	delete(c.agent.clients, c)
	c.agent.mu.Unlock()
	c.stop()
	c.mu.Lock()
	c.closed = true
	box := c.box
	c.mu.Unlock()
	switch {
	case box == nil:
	case box.leaves():
		left = box
	default: // before its processes are waited for
		box.End()
	}
	for _, end := range c.own {
		_ = end()
	}
	c.face.Close()
	c.working.Wait()
	c.dropSets()
	c.agent.Approvals().EndSession(c.name)
	close(c.gone)
	return left
}

// rules returns the agent's current rules, narrowed to those of its callers. An agent without a definition has none.
func (c *client) rules() *agents.Grants {
	def, err := c.agent.Definition()
	if err != nil {
		return nil
	}
	if c.by == nil {
		return def.Grants
	}
	return def.Grants.Delegated(c.by.rules()) // nil if it is no member any more
}

// quick reports whether changes by file tools need not wait for the disk.
func (c *client) quick() bool {
	durable := c.agent.Settings.Durable
	if def, err := c.agent.Definition(); err == nil && def.Durable != nil {
		durable = def.Durable
	}
	return durable != nil && !*durable
}

// record appends the events of calls to the log. A client that calls without end waits.
func (c *client) record(ctx context.Context, e audit.Event) error {
	e.Chain = c.chain()
	c.agent.refusals.Explain(&e)
	// A disconnected client does not wait, so that close does not wait for it.
	if err := c.agent.paces.Wait(ctx, c.life.Done(), e); err != nil {
		return fmt.Errorf("wait for the log: %w", err)
	}
	err := c.agent.Record(ctx, e)
	if err == nil {
		c.log.Add(e)
	}
	return err
}

// instructions are for the model: where it is, its definition's text, and what it may use.
func (c *client) instructions() string {
	if _, err := c.agent.Definition(); err != nil {
		return ""
	}
	text := fmt.Sprintf("You are agent %s. Your files are below %s; paths of tools are relative to it. What is outside does not exist for you.", c.agent.id, sandbox.Workspace)
	if c.held != nil {
		text += fmt.Sprintf(
			" They are a copy of those of agent %s, which takes your changes over, or not, when you have finished.", c.by.agent.id)
	}
	if roots := c.agent.rootTexts(c.newPurpose()); len(roots) > 0 {
		text += fmt.Sprintf(" You have further directories, by their absolute paths: %s.", strings.Join(roots, ", "))
	}
	if c.module {
		return text
	}
	return strings.TrimSpace(text + "\n\n" + c.rules().Prompt())
}

// narrow ends the sandbox if the callers may change less now than when it was started. For its network see recheck.
func (c *client) narrow() {
	c.starting.Lock()
	defer c.starting.Unlock()
	c.mu.Lock()
	box, was := c.box, c.purpose
	c.mu.Unlock()
	if box != nil && c.newPurpose().ReadOnly && !was.ReadOnly {
		box.End()
	}
}
