package session

import (
	"slices"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/tools/egress"
)

// rules are the current rules of a sandbox's network. A host that no rule of the agent's own names needs an approval, if
// the sandbox's operator attends and is asked about such hosts, or if a standing approval covers it.
func (n *network) rules(box *Sandbox, p Purpose) egress.Rules {
	may := func(q egress.Question) bool {
		of, err := n.approval(box, p, q)
		return p.Chain == "" && p.own() && (p.Others || err == nil && n.agent.Approvals() != nil && n.agent.Approvals().Covered(&of))
	}
	return egress.Others{Rules: n.hosts(), May: may}
}

// Approvable returns the sessions whose calls, or whose connections, ask for approvals now: those that a standing approval
// can end with.
func (a *Agent) Approvable(connections bool) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if connections {
		for _, box := range a.sessions {
			if box.kind == "" || box.kind == api.RunSession || box.kind == api.ClientSession {
				names = append(names, box.Name)
			}
		}
	} else {
		for c := range a.clients {
			names = append(names, c.name)
		}
	}
	slices.Sort(names)
	return names
}
