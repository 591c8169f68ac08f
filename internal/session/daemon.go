package session

import (
	"context"
	"encoding/json"
	"os"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
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
	Mount(ctx context.Context, operator bool) (View, error)
	// View returns the view that is mounted, or is being mounted; nil: none.
	View() View
	// HomeView returns the view that serves the HOME of an agent with limits of its disk.
	HomeView(ctx context.Context, def *agents.Definition) (View, error)
	// History answers a request about the agent's history (3). The caller records what changes something.
	History(ctx context.Context, request json.RawMessage) (json.RawMessage, error)

	// Branch returns a branch of the agent's directory for a task of a member, before it is made (2, 3).
	Branch(t Task) (Branch, error)

	// Approvals are what waits for the operator (4 to 6); nil: there is no operator.
	Approvals() *approvals.Set
	// Member returns a member or a root of this agent, or the agent whose root it is; or why there is none (7).
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

// View is a view that the daemon keeps mounted: the agent's own, that of a root or of the HOME, or that of a branch.
type View interface {
	// At returns the mount point.
	At() string
	// Definition returns the definition with which the view was started.
	Definition() *agents.Definition
	// Wait waits until the view is mounted or could not be.
	Wait(ctx context.Context) error
	// Served returns the process that serves the view now; 0 when none does, or when the view is about to end.
	Served() (pid int, owner account.User)
	// User returns the user that a view runs as that was mounted.
	User() account.User
	// Beside makes the view take links to what sandboxes have beside it.
	Beside(ctx context.Context, dirs []string) error
	// Drain appends what the view has recorded so far to the log.
	Drain() error
	// Holdable reports whether the view may live on without the daemon.
	Holdable() bool
	// Keeps reports whether the view keeps a history, and Unkept why it does not though it should.
	Keeps() bool
	Unkept() string
	// Watches reports whether the view learns of each change by the host: programs that wait for inotify(7) in a sandbox see it then.
	Watches() bool
	// History answers a request about the view's history, which the process may answer in any way.
	History(ctx context.Context, request json.RawMessage) (json.RawMessage, error)
}

// Task is a member's task on a branch.
type Task struct {
	ID     scope.ID // begins with TaskPrefix: the name of the branch and of its view
	Member scope.ID
	Chain  string // for the log
}

// Branch is a branch of an agent's directory. The daemon keeps it.
type Branch interface {
	// Mount makes the branch and mounts its view, for the member.
	Mount(ctx context.Context) error
	// View returns the view; nil: it is not mounted.
	View() View
	// Unmount ends the view, and with it each process that could change the branch.
	Unmount()
	// Open starts a process that has the branch open, by the agent's current rules. The view is unmounted.
	Open() (BranchProcess, error)
	// Remove removes the branch. Nothing uses it any more.
	Remove() error
}

// BranchProcess has a branch open.
type BranchProcess interface {
	// History answers a request about the branch.
	History(ctx context.Context, request json.RawMessage) (json.RawMessage, error)
	// Upper opens the directory that has what the branch has changed.
	Upper() (*os.File, error)
	Close()
}

// Question is an operation on a view that the rules leave to the operator. The view says so: it may be the agent's.
type Question struct {
	Path  string // "" with Whole
	Write bool
	Whole bool // it is about the view as a whole
	PID   int
}

// Answer is what the operator has decided.
type Answer struct {
	Grant   *scope.Grant              // nil: nothing is granted
	Outlast func(ctx context.Context) // returns when the grant has ended
	Outside bool                      // the process is outside all sandboxes: no question is put
}

// Own is what belongs to one agent alone (1).
type Own struct {
	ID             scope.ID
	Channel        func() *audit.Channel // of its events to the log
	Rates, Traffic limit.Store           // what its calls and its sandboxes have used
	Unfinished     file.Unfinished       // temporary files that killed calls may leave
}
