package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// Past is what a session has done, by the log.
type Past struct {
	Session string    `json:"session"`
	Agent   string    `json:"agent"`
	Command string    `json:"command,omitempty"`
	Last    time.Time `json:"last"` // its last event
	Calls   int64     `json:"calls"`
	Denied  int64     `json:"denied"`
	Changed int       `json:"changed"`           // objects, as far as the view saw them
	Effects []string  `json:"effects,omitempty"` // of the command and of calls, [maxEffects] at most
}

// maxEffects bounds Past.Effects.
const maxEffects = 3

// Add adds an event of the session. Events may come in any order.
func (p *Past) Add(e audit.Event) {
	p.Session, p.Agent = e.Session, e.Agent
	if e.Time.After(p.Last) {
		p.Last = e.Time
	}
	switch {
	case e.Verdict == audit.Deny, e.Verdict == audit.Violation:
		p.Denied += 1 + e.Unrecorded
	case e.Event == audit.KindCall && e.Outcome == audit.OutcomeBegin:
		p.Calls++
	case e.Event == audit.KindSandbox && e.Op == "exec" && e.Target != "":
		p.Command = e.Target
	}
	if e.Changed != nil && *e.Changed > 0 {
		p.Changed += *e.Changed
		if e.Effects != "" && len(p.Effects) < maxEffects {
			p.Effects = append(p.Effects, e.Effects)
		}
	}
}

// Text says what the session has changed; "": nothing, or it is not known.
func (p *Past) Text() string {
	switch {
	case p.Changed == 0:
		return ""
	case len(p.Effects) == 1:
		return p.Effects[0]
	}
	return strings.TrimSuffix(fmt.Sprintf("%d changes: %s", p.Changed, strings.Join(p.Effects, "; ")), ": ")
}
