package session

import (
	"maps"
	"regexp"
	"sync"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/proc"
	"github.com/scopefs/scopefs/tools/file/worker"
)

// callID is the form of a call's id, which no name of an idle thread has.
var callID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z2-7]{13}$`) })

// origin is where a file operation comes from.
type origin struct {
	session string // the sandbox, in the log
	parent  string // the client that the sandbox belongs to
	trace   string // the span of another agent's call that the sandbox works for
	call    string // "": unknown
	program string // the process's name; "" for a file tool
	byTool  bool   // the process is that of a file tool
	serves  bool   // the process serves one call of a file tool after another
}

// originOf returns the origin of an operation of a process, which the kernel names by a thread id.
func (a *Agent) originOf(pid int) origin {
	if of := a.rootOf(); of != nil { // whose sandboxes have the view
		a = of
	}
	a.mu.Lock()
	sessions := maps.Clone(a.sessions)
	a.mu.Unlock()
	for s, box := range sessions {
		tag, own, ours := s.TagOf(pid)
		if !ours {
			continue
		}
		from := origin{session: box.Name, parent: box.parent, trace: box.trace.String(), program: proc.Name(pid), serves: tag == worker.Tag}
		switch {
		case tag != worker.Tag:
			from.call = tag
		case own && callID().MatchString(from.program): // our own program: other processes of the sandbox choose their names
			from.call, from.program, from.byTool = from.program, "", true
		}
		return from
	}
	return origin{program: proc.Name(pid)}
}

// Actor returns the session and the call that a process works for: see view.Agent.
func (a *Agent) Actor(pid int) history.Actor {
	from := a.originOf(pid)
	if of := a.rootOf(); of != nil {
		of.watches.touchRoot(from, a.id)
	} else {
		a.watches.touch(from)
	}
	label := history.Label{Session: from.session, Parent: from.parent, Call: from.call}
	return history.Actor{Label: label, Program: from.program, Lasting: !from.serves}
}
