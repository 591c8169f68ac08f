package session

import (
	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func notShown(err error) error {
	return tools.Errorf(tools.Invalid, "the context cannot be shown: %v", err)
}

// showContext makes the context of a call visible to its processes in the client's sandboxes, until hide.
func (c *client) showContext(call string, s scoped.Scoped) (hide func(), err error) {
	end, err := c.contexts.Show(call, contextfs.ContentOf(s))
	if err != nil {
		return nil, notShown(err)
	}
	return func() {
		if !c.leaves() { // else the next daemon may go on with the call
			end()
		}
	}, nil
}

// maxContexts bounds the contexts of all clients of an agent, in bytes.
const maxContexts = 64 << 20

var errContexts = tools.Errorf(tools.RateLimited, "the contexts of the agent's clients have too many bytes: end one of them")

// holdContext reserves memory for the context of a session.
func (a *Agent) holdContext(size int) (release func(), ok bool) {
	return a.contexts.Hold(size, maxContexts)
}

// hide ends the files of calls that nobody has resumed.
func (c *client) hide() error {
	if c.leaves() {
		return nil
	}
	return c.contexts.Close()
}

func (c *client) contextSet() contextSetter {
	return contextSetter{Given: c.context, Rules: c.rules}
}

// keepContext keeps what a session of the client has set, for the next daemon.
func (c *client) keepContext(session string, messages []byte) {
	switch {
	case session != "" && c.agent.Web != nil:
		c.agent.Web.Of(c.agent.id).KeepContext(session, messages)
	case c.token != "":
		c.messages.Set(messages)
	}
}

// keptContext restores what a session has set before this daemon began.
func (c *client) keptContext(session string, restore func(*scoped.Environment) error) {
	text := c.messages.Messages()
	if session != "" {
		text = c.agent.Web.Of(c.agent.id).TakeContext(session)
	}
	if text == nil {
		return
	}
	env, err := c.contextSet().again(text)
	if err == nil {
		err = restore(env)
	}
	if err != nil {
		c.agent.Logger.Warn("a client loses what context_set has set", "agent", c.agent.id, "session", c.name, "err", err)
		c.keepContext(session, nil)
	}
}

// mountContext makes /context of a sandbox, whose process is in the agent's group.
func (a *Agent) mountContext(owner account.User, group *sandbox.Group) (*contextfs.Mount, error) {
	opt := a.contextOptions()
	opt.UID, opt.GID, opt.Root, opt.Holder = owner.UID, owner.GID, a.Root, a.Holder
	opt.Ready = func(pid int) {
		if err := group.AddView(pid); err != nil { // its processor time is bounded all the same: see package callfs
			a.Logger.Warn("the agent's limits do not hold for the process of "+sandbox.Context, "agent", a.id, "err", err)
		}
	}
	return contextfs.Open(opt)
}

// adoptContext continues with /context of a sandbox that the last daemon has left. Until its client has returned, requests wait.
func (a *Agent) adoptContext(item *outlive.Item) *contextfs.Mount {
	if item.Mount == nil {
		return nil
	}
	m, err := contextfs.Adopt(item.Mount, a.contextOptions(), item.Seeing())
	if err != nil {
		a.Logger.Warn("a sandbox gets another "+sandbox.Context, "agent", a.id, "session", item.Name, "err", err)
		item.Mount.End()
	}
	return m
}

// contextOptions returns what all of the agent's have.
func (a *Agent) contextOptions() contextfs.Options {
	refused := &ledger.Repeats{Record: a.Event}
	refused.Event = func(tid uint32, others int64) audit.Event {
		e := audit.Event{
			Event: audit.KindSandbox, Agent: string(a.id), Op: "read", Path: sandbox.Context, Verdict: audit.Deny, PID: int(tid),
			Rule: "context: of another call, or of one that has ended", RuleKind: string(scope.KindContext),
			Errno: "ESTALE", Unrecorded: others,
		}
		if tid == 0 {
			e.Outcome = "repeated"
		} else {
			from := a.originOf(int(tid))
			e.Session, e.Parent, e.Call, e.Trace, e.Program = from.session, from.parent, from.call, from.trace, from.program
		}
		return e
	}
	return contextfs.Options{
		Control: a.Control, Watcher: a.Watcher, Grace: a.Grace, Logger: a.Logger.With("agent", a.id), Refused: refused.Add, Gone: refused.Close,
		Died: func(s *sandbox.Session, why error) {
			a.Logger.Warn("a sandbox has no "+sandbox.Context+" any more", "agent", a.id, "err", why)
			e := audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Path: sandbox.Context, Outcome: "died", Detail: why.Error()}
			if s != nil {
				e.Session = a.nameOf(s)
			}
			a.Event(e)
		},
	}
}
