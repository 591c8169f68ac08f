package session

import (
	"context"
	"encoding/json"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/approvals"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/limit"
)

// Daemon is what one agent asks of the daemon; it asks nothing else. Whoever implements it knows which agent asks: no request says
// it. The numbers are those of docs/architecture.md, "The agent process".
type Daemon interface {
	// Definition returns the agent's definition and grants, or why there are none (1, 20). Each decision needs a call of its own: a
	// reload replaces the result. It takes no lock, as those of the next two do.
	Definition() (*agents.Agent, error)
	// RootDefinition returns the definition of one of the agent's roots.
	RootDefinition(root scope.ID) (*agents.Agent, error)
	// Activities returns the calls that the operator has declared.
	Activities() activities.Set
	// Refresh reads the definitions again if the agent's may have changed.
	Refresh()
	// User returns the user and the group of the agent's processes.
	User() (uid, gid uint32, err error)

	// Mount returns the agent's view, which it mounts if need be (2). It reads the definition again if it has changed. Without
	// the operator it fails with ErrDown for an agent that the operator has unmounted.
	Mount(ctx context.Context, operator bool) (*view.View, error)
	// View returns the view that is mounted, or is being mounted; nil: none.
	View() *view.View
	// HomeView returns the view that serves the HOME of an agent with limits of its disk.
	HomeView(ctx context.Context, def *agents.Definition) (*view.View, error)
	// History answers a request about the agent's history (3). The caller records what changes something.
	History(ctx context.Context, request json.RawMessage) (json.RawMessage, error)

	// Approvals are what waits for the operator (4 to 6); nil: there is no operator.
	Approvals() *approvals.Set
	// Member returns an agent that this one has as a member, as a root, or of which it is a root; or why there is none (7).
	Member(id scope.ID) (*Agent, error)
	// StoreTools returns the tools of the stores (8).
	StoreTools() ([]tools.Tool, error)
	// DeclareStores waits until the programs of stores have declared their tools, or ctx ends.
	DeclareStores(ctx context.Context)

	// Enter counts a request. The daemon waits for leave before it closes the log (9).
	Enter() (leave func(), err error)
	// Welcome opens the control socket for the user of the agent. It takes no agent's lock.
	Welcome(uid uint32) error
}

// Own is what belongs to one agent alone (1).
type Own struct {
	ID             scope.ID
	Channel        func() *audit.Channel // of its events to the log
	Rates, Traffic limit.Store           // what its calls and its sandboxes have used
	Unfinished     file.Unfinished       // temporary files that killed calls may leave
}
