// Package upstream provides the tools of an agent's MCP servers. A server is a
// command in its own sandbox, with the protocol on its standard input and output,
// or a URL, to which this process connects (streamable HTTP).
//
// A server is not trusted. Messages, lists, descriptions, schemas and results are
// limited in size. Of a server's requests only ping and roots/list are answered;
// the only root is /workspace, for a server that sees it. Sampling and elicitation
// are not offered.
package upstream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	startTimeout = 30 * time.Second // from the start of a server to its initialize result
	callTimeout  = 60 * time.Second // the default of clients with the MCP TypeScript SDK
	firstPause   = time.Second      // after the second failure in a row; doubles with each further one
	longestPause = time.Minute
	restTime     = time.Second // between two calls of OnChange; doubles while changes continue
	steady       = time.Minute // the end of a server after this uptime resets its failures
	maxTools     = 512         // per server
)

// validName matches the names of servers and tools. They contain no colon, so that
// "mcp:SERVER:TOOL" is unambiguous in a policy.
var validName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`) })

// Sandboxes starts the command of a server in the server's sandbox. The end of ctx
// kills the command.
type Sandboxes interface {
	Exec(ctx context.Context, server string, c sandbox.Command) (*sandbox.Process, error)
}

// Spec describes how to start or reach a server. A server whose Spec changes is
// stopped, and started again when it is used.
type Spec struct {
	Command string // looked up in the PATH of the sandbox
	Args    []string
	Env     map[string]string
	Cwd     string // relative to the view, or absolute in the sandbox

	// Timeout limits one call, without the start of the server. A call that times
	// out is cancelled at the server. 0 means a minute.
	Timeout time.Duration

	Start time.Duration // limits a start, up to the initialize result; 0 means 30 s
	// URL is the address of a server that runs elsewhere; Command is then unused.
	// Headers are sent to this address only. Redirects are errors.
	URL     string
	Headers map[string]string

	Blind   bool   // the server does not see /workspace, and gets no root
	Sandbox string // identifies the sandbox's configuration, for comparing two Specs
}

// Upstream manages the MCP servers of one client session. Its methods are safe for
// concurrent use. The caller must close it.
type Upstream struct {
	// OnChange is called when the result of Tools may have changed: a server
	// announced a new list, or a server that was too slow for Tools has started.
	// Calls do not overlap. One call covers all changes since the last call and in
	// the second after it; the interval doubles, up to a minute, while changes
	// continue. OnChange may call Tools but not Close. Set it before the first call.
	OnChange func()

	// Share bounds what the output of servers takes of a processor; nil does not. Set it before the first call.
	Share *limit.Share

	sandboxes Sandboxes
	servers   func() map[string]Spec
	timeout   time.Duration
	pause     time.Duration
	rest      time.Duration

	mu        sync.Mutex
	running   map[string]*server
	closed    bool
	ended     chan struct{}  // closed by Close
	notifying bool           // the goroutine of OnChange runs
	again     bool           // a change arrived since OnChange was called
	stopping  sync.WaitGroup // servers being stopped, and the goroutine of OnChange
}

// New returns an Upstream that starts servers in sandboxes. servers returns the
// servers that the agent may use now; it runs with a lock held at every call and
// must not call the Upstream. New starts no server.
func New(sandboxes Sandboxes, servers func() map[string]Spec) *Upstream {
	return &Upstream{
		sandboxes: sandboxes, servers: servers, timeout: startTimeout, pause: firstPause, rest: restTime,
		running: map[string]*server{}, ended: make(chan struct{}),
	}
}

// Tools returns the tools of the named servers, or of all if none is named, sorted
// by server and tool and named "mcp:SERVER:TOOL". It returns an error for each server and
// tool that is missing from the result. It starts servers that do not run, all at
// once, and waits until ctx ends. A server that starts more slowly continues up to
// its Spec's Start, and OnChange follows. Servers that the agent may no longer use
// are stopped.
func (u *Upstream) Tools(ctx context.Context, servers ...string) ([]tools.Tool, []error) {
	now, err := u.reconcile()
	if err != nil {
		return nil, []error{err}
	}
	if len(servers) > 0 {
		maps.DeleteFunc(now, func(name string, _ *server) bool { return !slices.Contains(servers, name) })
	}
	names := slices.Sorted(maps.Keys(now))
	lists, errs := make([][]tools.Tool, len(names)), make([][]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { lists[i], errs[i] = u.toolsOf(ctx, now[name]) })
	}
	all.Wait()
	return slices.Concat(lists...), slices.Concat(errs...)
}

func (u *Upstream) toolsOf(ctx context.Context, s *server) (list []tools.Tool, errs []error) {
	if !validName().MatchString(s.name) {
		return nil, []error{fmt.Errorf("MCP server %.80q: invalid name: use 1 to 64 letters, digits, '_', '.' and '-'", s.name)}
	}
	c, err := s.connect(ctx, true)
	if err != nil {
		return nil, []error{err}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.spec.Timeout, callTimeout))
	defer cancel()
	theirs, err := c.list(ctx)
	if err != nil {
		return nil, []error{fmt.Errorf("list tools: %w", c.because(err))}
	}
	seen := map[string]bool{}
	for _, t := range theirs {
		ours, err := u.newTool(s.name, t)
		if err == nil && seen[t.Name] {
			err = fmt.Errorf("MCP server %q: two tools %q: the second is ignored", s.name, t.Name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		seen[t.Name] = true
		list = append(list, ours)
	}
	slices.SortFunc(list, func(a, b tools.Tool) int { return strings.Compare(a.Name, b.Name) })
	return list, errs
}

// reconcile stops the servers that are no longer allowed or have a new Spec, and
// returns the allowed servers.
func (u *Upstream) reconcile() (map[string]*server, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, fmt.Errorf("MCP servers: %w", os.ErrClosed)
	}
	specs := u.servers()
	for name, s := range u.running {
		if spec, ok := specs[name]; !ok || !reflect.DeepEqual(spec, s.spec) {
			delete(u.running, name)
			u.stopping.Go(s.close)
		}
	}
	for name, spec := range specs {
		if u.running[name] == nil {
			u.running[name] = &server{name: name, spec: spec, sandboxes: u.sandboxes,
				timeout: cmp.Or(spec.Start, u.timeout), pause: u.pause, changed: u.change, share: u.Share}
		}
	}
	return maps.Clone(u.running), nil
}

// change schedules a call of OnChange. It does not block: its caller is the reader
// goroutine of a server's connection.
func (u *Upstream) change() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.again = u.notifying; u.notifying || u.closed || u.OnChange == nil {
		return
	}
	u.notifying = true
	u.stopping.Go(func() {
		rest := u.rest
		for more := true; more; rest = min(2*rest, longestPause) {
			u.OnChange()
			select {
			case <-time.After(rest):
			case <-u.ended:
			}
			u.mu.Lock()
			more = u.again && !u.closed
			u.notifying, u.again = more, false
			u.mu.Unlock()
		}
	})
}

// Starting returns the names of the servers that are starting, sorted.
func (u *Upstream) Starting() (names []string) {
	u.mu.Lock()
	now := maps.Clone(u.running)
	u.mu.Unlock()
	for name, s := range now {
		s.mu.Lock()
		if s.starting != nil {
			names = append(names, name)
		}
		s.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// Close stops all servers and waits until they have exited. Calls in flight and
// later calls fail. It always returns nil.
func (u *Upstream) Close() error {
	u.mu.Lock()
	if !u.closed {
		close(u.ended)
	}
	u.closed = true
	for name, s := range u.running {
		delete(u.running, name)
		u.stopping.Go(s.close)
	}
	u.mu.Unlock()
	u.stopping.Wait()
	return nil
}
