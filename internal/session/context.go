package session

import (
	"sync/atomic"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/contextset"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// contentOf returns a file for each scope.
func contentOf(s scoped.Scoped) map[string][]byte {
	content := map[string][]byte{}
	for name, messages := range s.Files() {
		content[name+".json"] = messages
	}
	return content
}

func notShown(err error) error {
	return tools.Errorf(tools.Invalid, "the context cannot be shown: %v", err)
}

// showContext makes the context of a call visible to its processes in the client's sandboxes, until hide.
func (c *client) showContext(call string, s scoped.Scoped) (hide func(), err error) {
	if hide, err = c.contexts.Show(call, contentOf(s)); err != nil {
		return nil, notShown(err)
	}
	return hide, nil
}

// maxContexts bounds the contexts of all clients of an agent, in bytes.
const maxContexts = 64 << 20

var errContexts = tools.Errorf(tools.RateLimited, "the contexts of the agent's clients have too many bytes: end one of them")

// holdContext reserves memory for the context of a session.
func (a *Agent) holdContext(size int) (release func(), ok bool) {
	return a.contexts.Hold(size, maxContexts)
}

func (c *client) contextSet() contextset.Client {
	return contextset.Client{Given: c.context, Rules: c.rules}
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

// keptContext returns what a session has set before this daemon began.
func (c *client) keptContext(session string) *scoped.Environment {
	text := c.messages.Messages()
	if session != "" {
		text = c.agent.Web.Of(c.agent.id).TakeContext(session)
	}
	if text == nil {
		return nil
	}
	env, err := c.contextSet().Again(text)
	if err != nil {
		c.agent.Logger.Info("a client loses what context_set has set", "agent", c.agent.id, "session", c.name, "err", err)
		c.keepContext(session, nil)
		return nil
	}
	return env
}

// contextMount is /context of one sandbox.
type contextMount struct {
	*contextfs.Mount
	session atomic.Pointer[sandbox.Session] // nil until it has started
	refused ledger.Repeats
}

// mountContext makes /context of a sandbox, whose process is in the agent's group. A process sees the files of its command's
// tag, and none in another sandbox.
func (a *Agent) mountContext(owner account.User, group *sandbox.Group, of func(tag string) *contextfs.Files) (*contextMount, error) {
	m := &contextMount{}
	m.refused.Record = a.Event
	m.refused.Event = func(tid uint32, others int64) audit.Event {
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
	var err error
	m.Mount, err = contextfs.Open(contextfs.Options{
		UID: owner.UID, GID: owner.GID, Root: a.Root, Control: a.Control, Holder: a.Holder,
		Logger: a.Logger.With("agent", a.id), Refused: m.refused.Add,
		Owner: func(tid uint32) *contextfs.Files {
			s := m.session.Load()
			if s == nil {
				return nil
			}
			tag, _, ours := s.TagOf(int(tid))
			if !ours {
				return nil
			}
			return of(tag)
		},
		Ready: func(pid int) {
			if err := group.AddView(pid); err != nil { // its processor time is bounded all the same: see package callfs
				a.Logger.Warn("the agent's limits do not hold for the process of "+sandbox.Context, "agent", a.id, "err", err)
			}
		},
		Died: func(why error) {
			a.Logger.Warn("a sandbox has no "+sandbox.Context+" any more", "agent", a.id, "err", why)
			e := audit.Event{Event: audit.KindSandbox, Agent: string(a.id), Path: sandbox.Context, Outcome: "died", Detail: why.Error()}
			if s := m.session.Load(); s != nil {
				e.Session = a.nameOf(s)
			}
			a.Event(e)
		},
	})
	return m, err
}

// started makes the mount answer for a sandbox that has started on it.
func (m *contextMount) started(s *sandbox.Session) {
	if m != nil {
		m.Root.Close() // the sandbox holds the mount
		m.session.Store(s)
	}
}

// close ends the mount of a sandbox that has ended.
func (m *contextMount) close() {
	if m != nil {
		_ = m.Mount.Close() // without fusectl the server ends with the mount
		m.refused.Close()
	}
}
