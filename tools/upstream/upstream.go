// Package upstream makes tools of an agent's MCP servers. A server is a command
// that runs in a sandbox of its own and is spoken to over its standard input and
// output, or it has a URL and is spoken to by this process (streamable HTTP).
//
// What a server says is not trusted: messages, lists, descriptions, schemas and
// results are bounded, its requests are answered with no more than the root
// /workspace, if it sees that, and neither sampling nor elicitation is offered.
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
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	startTimeout = 30 * time.Second // from the start of a server to its answer to initialize
	callTimeout  = 60 * time.Second // as clients of the MCP TypeScript SDK have it
	firstPause   = time.Second      // after the second early death; doubles with each more
	longestPause = time.Minute
	restTime     = time.Second // between two calls of OnChange; doubles while changes do not end
	steady       = time.Minute // a server that lived so long has not failed when it ends
	maxTools     = 512         // of one server
)

// validName is what a server and a tool may be called: the name of the whole,
// "mcp:SERVER:TOOL", must be unambiguous in policies.
var validName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Place is where servers run. ctx bounds the life of the command.
type Place interface {
	Exec(ctx context.Context, server string, c sandbox.Command) (*sandbox.Process, error)
}

// Spec says how a server is started.
type Spec struct {
	Command string // looked up in the PATH of the sandbox
	Args    []string
	Env     map[string]string
	Cwd     string // relative to the view, or absolute in the sandbox

	// Timeout is for one call, without the start of the server. A server that has
	// not answered by then is told that the call is cancelled. 0 is a minute.
	Timeout time.Duration

	Start time.Duration // bounds a start, up to the answer to initialize; 0 is 30 s
	// URL is the address of a server that is not started, instead of Command.
	// Headers are for it alone: they follow no redirect.
	URL     string
	Headers map[string]string

	Blind bool   // it does not see the workspace, which is no root of it then
	Place string // what else there is to its place: another one is another server
}

// Upstream is the MCP servers of one agent session. Its methods may be called
// from any goroutine.
type Upstream struct {
	// OnChange is called when Tools may answer otherwise than it did: a server
	// says so, or one that was too slow for Tools is there. It is called by one
	// goroutine, once for all changes that come meanwhile and in a second after,
	// more of a server that never rests. It may call Tools, not Close. Set it
	// before the first call.
	OnChange func()

	place   Place
	servers func() map[string]Spec
	timeout time.Duration
	pause   time.Duration

	mu       sync.Mutex
	running  map[string]*server
	closed   bool
	ended    chan struct{}  // closed then
	telling  bool           // OnChange runs
	again    bool           // and is to run once more
	stopping sync.WaitGroup // servers that the agent may use no longer, and OnChange
}

// New returns the servers that run in place. servers says which the agent may
// use now; it is asked at every call and must not call back. Nothing is started
// yet.
func New(place Place, servers func() map[string]Spec) *Upstream {
	return &Upstream{
		place: place, servers: servers, timeout: startTimeout, pause: firstPause,
		running: map[string]*server{}, ended: make(chan struct{}),
	}
}

// Tools returns the tools of servers, of all where none is named, as
// "mcp:SERVER:TOOL" and in the order of their names, and an error for each server
// and tool that is not among them. It starts what does not run, all at once, and
// waits for it as long as ctx lives; a start takes as long as the Spec allows. A
// server that ctx was too short for goes on starting, see OnChange. What the
// agent may use no longer is stopped.
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
	if !validName.MatchString(s.name) {
		return nil, []error{fmt.Errorf("MCP server %.80q: a name has 1 to 64 letters, digits, '_', '.' and '-'", s.name)}
	}
	l, err := s.connect(ctx, true)
	if err != nil {
		return nil, []error{err}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.spec.Timeout, callTimeout))
	defer cancel()
	theirs, err := l.list(ctx)
	if err != nil {
		return nil, []error{fmt.Errorf("list tools: %w", l.because(err))}
	}
	seen := map[string]bool{}
	for _, t := range theirs {
		ours, err := u.newTool(s.name, t)
		if err == nil && seen[t.Name] {
			err = fmt.Errorf("MCP server %q has two tools %q: the second is left out", s.name, t.Name)
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

// reconcile stops the servers that the agent may not use any more, or not so,
// and returns those that it may.
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
			u.running[name] = &server{name: name, spec: spec, place: u.place, timeout: cmp.Or(spec.Start, u.timeout), pause: u.pause, changed: u.change}
		}
	}
	return maps.Clone(u.running), nil
}

// change has OnChange called. It does not wait: who calls it reads what the
// server says, without a bound.
func (u *Upstream) change() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.again = u.telling; u.telling || u.closed || u.OnChange == nil {
		return
	}
	u.telling = true
	u.stopping.Go(func() {
		rest := restTime
		for more := true; more; rest = min(2*rest, longestPause) {
			u.OnChange()
			select {
			case <-time.After(rest):
			case <-u.ended:
			}
			u.mu.Lock()
			more = u.again && !u.closed
			u.telling, u.again = more, false
			u.mu.Unlock()
		}
	})
}

// Close stops all servers and waits until they are gone. Calls under way end
// with an error, as do later ones.
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
