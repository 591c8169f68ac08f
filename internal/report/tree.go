package report

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// maxTree limits the events of a tree, which is held in memory.
const maxTree = 200_000

// treeSession is a session, with what was recorded of it. The events of no session have one without a name.
type treeSession struct {
	Session  string         `json:"session,omitempty"`
	Agent    string         `json:"agent,omitempty"`
	Parent   string         `json:"parent,omitempty"` // the session that delegated to it
	Calls    []*treeCall    `json:"calls"`
	Sessions []*treeSession `json:"sessions,omitempty"` // that it delegated to
}

// treeCall is a call, or what was recorded between two calls.
type treeCall struct {
	Call   string        `json:"call,omitempty"`
	Begin  *audit.Event  `json:"begin,omitempty"`
	End    *audit.Event  `json:"end,omitempty"`
	Events []audit.Event `json:"events,omitempty"`
}

// Tree prints the selected events below their calls, and these below their sessions. It returns how many there were.
func Tree(ctx context.Context, dir string, sel Selection, asJSON bool, stdout, stderr io.Writer) (int, error) {
	root := &treeSession{}
	known, calls := map[string]*treeSession{}, map[string]*treeCall{}
	n := 0
	_, err := selected(ctx, dir, sel.events(ctx, dir, false), stderr, func(e audit.Event) error {
		if n++; n > maxTree {
			return fmt.Errorf("more than %d events: give --session, --agent or --since", maxTree)
		}
		key := e.Agent + " " + e.Session
		s := known[key]
		if s == nil {
			s = &treeSession{Session: e.Session, Agent: e.Agent}
			known[key] = s
			root.Sessions = append(root.Sessions, s)
		}
		if s.Parent == "" {
			s.Parent = e.Parent
		}
		calls[e.Call] = s.add(e, calls[e.Call])
		return nil
	})
	if err != nil {
		return n, err
	}
	root.nest()
	if asJSON {
		return n, JSON(stdout, some(root.Sessions))
	}
	out := &treeWriter{w: stdout}
	for _, s := range root.Sessions {
		out.session(s, "")
	}
	return n, out.err
}

// add adds an event to a call, which may be of the session that the call runs for; nil: to a new one, or to the events
// before it that are of no call. It returns the call.
func (s *treeSession) add(e audit.Event, c *treeCall) *treeCall {
	if e.Call == "" {
		c = nil
		if len(s.Calls) > 0 && s.Calls[len(s.Calls)-1].Call == "" {
			c = s.Calls[len(s.Calls)-1]
		}
	}
	if c == nil {
		c = &treeCall{Call: e.Call}
		s.Calls = append(s.Calls, c)
	}
	switch {
	case e.Event != audit.KindCall || e.Call == "":
		c.Events = append(c.Events, e)
	case e.Outcome == audit.OutcomeBegin:
		c.Begin = &e
	default:
		c.End = &e
	}
	return c
}

// nest moves sessions below those that delegated to them.
func (s *treeSession) nest() {
	byName := map[string]*treeSession{}
	for _, one := range s.Sessions {
		byName[one.Session] = one
	}
	var top []*treeSession
	for _, one := range s.Sessions {
		if of := byName[one.Parent]; one.Parent != "" && of != nil && of != one && !of.below(one) {
			of.Sessions = append(of.Sessions, one)
		} else {
			top = append(top, one)
		}
	}
	s.Sessions = top
}

// below reports whether s is somewhere below of.
func (s *treeSession) below(of *treeSession) bool {
	for _, one := range of.Sessions {
		if one == s || s.below(one) {
			return true
		}
	}
	return false
}

// treeWriter prints a tree, until an error.
type treeWriter struct {
	w   io.Writer
	err error
}

func (out *treeWriter) line(format string, args ...any) {
	if out.err == nil {
		_, out.err = fmt.Fprintf(out.w, format+"\n", args...)
	}
}

func (out *treeWriter) session(s *treeSession, indent string) {
	switch {
	case s.Session != "":
		out.line("%ssession %s of %s", indent, s.Session, s.Agent)
	case s.Agent != "":
		out.line("%s%s, without a session", indent, s.Agent)
	default:
		out.line("%sthe daemon", indent)
	}
	for _, c := range s.Calls {
		out.call(c, indent+"  ")
	}
	for _, one := range s.Sessions {
		out.session(one, indent+"  ")
	}
}

func (out *treeWriter) call(c *treeCall, indent string) {
	head := c.End
	if head == nil {
		head = c.Begin
	}
	switch {
	case head != nil:
		out.event(folded{Event: *head, Count: 1}, indent+"call "+c.Call)
		indent += "  "
	case c.Call != "":
		out.line("%scall %s", indent, c.Call)
		indent += "  "
	}
	equal := folder{Gap: time.Hour, Span: 24 * time.Hour}
	for _, e := range c.Events {
		for _, one := range equal.Add(e) {
			out.event(one, indent)
		}
	}
	for _, one := range equal.Rest() {
		out.event(one, indent)
	}
}

// event prints an event without what the lines above it say.
func (out *treeWriter) event(e folded, before string) {
	e.Agent, e.Call, e.Parent = "", "", ""
	out.line("%s %s", before, eventLine(e))
}
