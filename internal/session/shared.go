package session

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agentproc"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/internal/liveness"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Shared holds what the agents of one process share. The daemon sets the exported fields
// before it mounts a view.
type Shared struct {
	*account.Host
	Log      *audit.Log // the daemon's own connection
	Control  fusemount.Control
	Watcher  *liveness.Watcher // of processes that serve mounts
	Holder   *holder.Holder
	Grace    time.Duration // how long views and sandboxes live on without a daemon; 0: they end with it
	Settings config.Settings
	Version  string // sent to MCP clients
	Soon     bool   // a command that waits starts a sandbox

	HandOver atomic.Bool // the daemon ends, and leaves to the next one what can live on

	// Returned returns the sandbox that the last daemon has left for the user at the other end of a connection, once; nil: none.
	Returned func(ctx context.Context, id scope.ID, client api.Resume, conn net.Conn) *Sandbox
	// ReturnedWeb returns that of an agent's clients over HTTP.
	ReturnedWeb func(ctx context.Context, id scope.ID) (*Sandbox, error)
	Web         *outlive.Web // sessions over HTTP that live on; nil: they end with the daemon
	// ServeHTTP serves HTTP on a connection of an agent's own socket, until it is closed. Nil: sockets have no HTTP.
	ServeHTTP func(id scope.ID, conn net.Conn)

	Warnings  *ledger.Warnings
	Queue     *limit.Queue // of calls, agent by agent
	Examiners *limit.Slots // of long arguments
	Encoders  *limit.Slots // of large results
	Networks  *agentproc.Set

	borders   borders
	sandboxes sandboxes
	groups    opened[sandbox.Groups] // the host's, for agents
	ca        opened[egress.CA]      // of the daemon's proxies
	git       account.Git
	tasks     taskQueues
	left      sync.Map      // the sandboxes of tasks that the last daemon has left
	connected atomic.Uint64 // clients so far
	ends      recordedEnds
}

// Event records what the daemon or an operator does.
func (s *Shared) Event(e audit.Event) { s.event(s.Log, e) }

// Record is Event for an action that must not happen unrecorded.
func (s *Shared) Record(ctx context.Context, e audit.Event) error { return record(ctx, s.Log, e) }

// appender is the log of the daemon, or of one agent.
type appender interface {
	Append(context.Context, audit.Event) (uint64, error)
}

func (s *Shared) event(to appender, e audit.Event) {
	if _, err := to.Append(context.Background(), e); err != nil {
		s.Logger.Error("audit", "err", err)
	}
}

func record(ctx context.Context, to appender, e audit.Event) error {
	if _, err := to.Append(ctx, e); err != nil {
		return fmt.Errorf("nothing runs while the audit log cannot be written: %w", err)
	}
	return nil
}

// sandboxes is the host's sandbox starter, opened on first use.
type sandboxes struct {
	mu     sync.Mutex
	closed bool
	host   *sandbox.Host // nil until it could be opened
}

// OpenSandboxes prepares starts of sandboxes, and returns why there can be none. It tries
// again at each call until it succeeds: the operator may install what is missing.
func (s *Shared) OpenSandboxes() error {
	go s.git.Get()       // meanwhile: the first sandbox needs it
	go s.prepareGroups() // likewise
	_, err := s.sandboxes.open(s.sandboxConfig())
	return err
}

// sandboxConfig has the certificates made of sessions that start soon: those with a proxy, which most have.
func (s *Shared) sandboxConfig() (config sandbox.Config) {
	if s.Soon {
		config.Trust = func() []byte { return s.trust(true) }
	}
	return config
}

// CloseSandboxes ends all sandboxes, and starts no more.
func (s *Shared) CloseSandboxes() error {
	if host := s.noSandboxes(); host != nil {
		return host.Close()
	}
	return nil
}

// noSandboxes starts no more sandboxes.
func (s *Shared) noSandboxes() *sandbox.Host {
	s.sandboxes.mu.Lock()
	defer s.sandboxes.mu.Unlock()
	s.sandboxes.closed = true
	return s.sandboxes.host
}

func (s *sandboxes) open(c sandbox.Config) (*sandbox.Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosing
	}
	if s.host != nil {
		return s.host, nil
	}
	host, err := sandbox.Open(c)
	if err == nil {
		s.host = host
	}
	return host, err
}
