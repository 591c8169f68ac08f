package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
	"github.com/scopefs/scopefs/tools/upstream"
)

// serverWait is how long a list of tools waits for MCP servers that start. The tools of
// slower servers are advertised later.
const serverWait = 5 * time.Second

// servers are a client's MCP servers. A server starts with the first list of tools, or
// with the first call of one of its tools, if the rules allow a tool of it. It runs in a
// sandbox of its own: the agent's processes can neither read nor impersonate it. The
// daemon itself is the client of a server with a URL.
type servers struct {
	c  *client
	up *upstream.Upstream

	mu     sync.Mutex
	all    bool              // every one is wanted: the client lists tools
	wanted map[string]bool   // else these
	boxes  map[string]string // the sandboxes of servers, in the log
	tools  []tools.Tool      // that the set has of them
	denied map[string]bool   // what the networks of servers refused, and the operator was told
}

func newServers(c *client) *servers {
	s := &servers{c: c, wanted: map[string]bool{}, boxes: map[string]string{}}
	s.up = upstream.New(s, s.specs)
	s.up.Share = c.agent.share
	s.up.OnChange = func() { s.refresh(c.life) }
	return s
}

// specs are the servers that may run now.
func (s *servers) specs() map[string]upstream.Spec {
	all := map[string]upstream.Spec{}
	rules := s.c.rules()
	for name, server := range rules.Servers() {
		if rules.Uses(name) {
			p := s.purpose(name, server)
			if server.URL != "" && !s.c.reaches(server.URL) {
				continue // see find
			}
			all[name] = upstream.Spec{
				URL: server.URL, Headers: server.Headers,
				Command: server.Command, Args: server.Args, Env: server.Env, Cwd: server.Cwd, Timeout: server.Timeout, Start: server.Start,
				Blind: p.NoView || server.URL != "", Sandbox: fmt.Sprint(p.NoView, p.ReadOnly, p.Hosts().Kind(), server.Dir, server.Edition),
			}
		}
	}
	return all
}

// purpose says what a server's sandbox has.
func (s *servers) purpose(name string, server agents.Server) Purpose {
	p := s.c.newPurpose()
	p.Kind, p.Command = api.ServerSession, name
	p.Context, p.NoView = nil, server.Use() == agents.WorkspaceNone
	p.ReadOnly = p.ReadOnly || server.Use() == agents.WorkspaceRead
	if server.Dir != "" {
		p.Expose = []string{server.Dir}
	}
	p.Hosts = func() *hosts.Policy { return s.c.rules().ServerHosts(name) }
	p.Refused = func(host, text, remedy string) {
		if host != "" && remedy != "" && s.first(name, host) {
			s.refused(name, host, text)
		}
	}
	return p
}

// maxDenied bounds servers.denied.
const maxDenied = 32

// first reports whether the network of a server has not refused a host before.
func (s *servers) first(server, host string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := server + " " + host
	if s.denied[key] || len(s.denied) == maxDenied {
		return false
	}
	if s.denied == nil {
		s.denied = map[string]bool{}
	}
	s.denied[key] = true
	return true
}

// refused tells the operator what the network of a server refused. A server that lacks it, such as one that npx is to fetch, often
// fails with an error that says nothing of it.
func (s *servers) refused(server, host, text string) {
	remedy := fmt.Sprintf("network: {allow: [%s]}", host)
	if name, port, err := net.SplitHostPort(host); err == nil {
		remedy = fmt.Sprintf("network: {allow: [{host: %s, ports: [%s]}]}", name, port)
	} else if preset := s.c.rules().Preset(host, 443); preset != "" {
		remedy = fmt.Sprintf("network: {presets: [%s]}", preset)
	}
	s.c.agent.Logger.Error("MCP server", "agent", s.c.agent.id, "err",
		fmt.Sprintf("network of MCP server %q: %s: set %s in mcp_servers: %s", server, text, remedy, server))
}

// listing waits until servers and stores have declared their tools, for 5 s at most. It returns the servers that are
// still starting.
func (c *client) listing(ctx context.Context) (starting []string) {
	var both sync.WaitGroup
	both.Go(func() { c.agent.DeclareStores(ctx) })
	both.Go(func() { starting = c.servers.list(ctx) })
	both.Wait()
	return starting
}

// list adds the tools of all servers to the set at the first list of tools; from then on
// the servers report changes. It returns the servers that are still starting.
func (s *servers) list(ctx context.Context) (starting []string) {
	s.mu.Lock()
	first := !s.all
	s.all = true
	s.mu.Unlock()
	if first {
		s.refresh(ctx)
	}
	return s.up.Starting()
}

// find adds the tools of one server, mcp:SERVER:TOOL, to the set. It waits until the
// server has started or failed.
func (s *servers) find(ctx context.Context, tool string) error {
	name := strings.Split(tool, ":")[1]
	if at := s.c.rules().Servers()[name].URL; at != "" && !s.c.reaches(at) {
		return fmt.Errorf("MCP server %q has a url, which the network of this agent's caller does not reach: allow its host there, or say that the member may: widen", name)
	}
	s.mu.Lock()
	s.wanted[name] = true
	s.mu.Unlock()
	list, errs := s.up.Tools(ctx, name)
	s.c.agent.logServers(errs)
	s.put(list, name)
	if len(list) == 0 {
		return errors.Join(errs...)
	}
	return nil
}

// refresh lists the tools of the wanted servers again.
func (s *servers) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	s.mu.Lock()
	all, names := s.all, slices.Sorted(maps.Keys(s.wanted))
	s.mu.Unlock()
	if !all && len(names) == 0 {
		return
	}
	if all {
		names = nil
	}
	list, errs := s.up.Tools(ctx, names...)
	if s.c.life.Err() != nil {
		return
	}
	s.c.agent.logServers(errs)
	s.put(list, names...)
}

// put puts what servers have into the set, in the place of what these had, or of
// everything where none is named.
func (s *servers) put(list []tools.Tool, names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) > 0 {
		others := slices.DeleteFunc(slices.Clone(s.tools), func(t tools.Tool) bool {
			return slices.Contains(names, strings.Split(t.Name, ":")[1])
		})
		list = append(others, list...)
	}
	for i := range list {
		server := s.c.rules().Servers()[strings.Split(list[i].Name, ":")[1]]
		list[i].Hints.Changes = server.URL == "" && server.Use() == agents.WorkspaceWrite
	}
	s.tools = list
	if err := s.c.set.Extend(list); err != nil {
		s.c.agent.Logger.Warn("MCP servers", "agent", s.c.agent.id, "err", err)
	}
	s.c.face.Refresh()
}

// Exec starts a server in a sandbox of its own, which ends with it.
func (s *servers) Exec(ctx context.Context, name string, command sandbox.Command) (*sandbox.Process, error) {
	c := s.c
	server, ok := c.rules().Servers()[name]
	if !ok {
		return nil, errors.New("it may not be used any more")
	}
	command.Lasting = true
	// arguments may hold secrets
	e := audit.Event{Session: c.name, Chain: c.chain(), Trace: c.trace.String(), Server: name, Target: ledger.CommandLine(command.Argv[:1])}
	ended, err := c.agent.RecordExec(ctx, e)
	if err != nil {
		return nil, err
	}
	box, err := c.agent.Start(ctx, s.purpose(name, server))
	if err != nil { // an agent's error names nothing of the host
		ended("not started: " + err.Error())
		return nil, errors.New("there is no sandbox for it")
	}
	s.mu.Lock()
	s.boxes[name] = box.Name
	s.mu.Unlock()
	process, err := box.Exec(ctx, command)
	if err != nil {
		ended("not started: " + err.Error())
		box.End()
		return nil, err
	}
	c.beside(func() {
		recordEnd(process, ended)
		box.End()
	})
	return process, nil
}

// box returns the sandbox of a server, in the log; "": it has none.
func (s *servers) box(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[name]
}

// logServers logs the errors of the agent's MCP servers, each once though every client
// has it. The level is error: nothing else says why tools are missing.
func (a *Agent) logServers(errs []error) {
	var now []string
	a.mu.Lock()
	logged := a.sick
	a.mu.Unlock()
	for _, err := range errs {
		if errors.Is(err, context.DeadlineExceeded) { // nothing is wrong yet
			a.Logger.Warn("MCP server", "agent", a.id, "err", err)
			continue
		}
		if pause, ok := errors.AsType[*upstream.PauseError](err); ok {
			err = pause.Err
		}
		text := err.Error()
		if now = append(now, text); !slices.Contains(logged, text) {
			a.Logger.Error("MCP server", "agent", a.id, "err", text)
		}
	}
	a.mu.Lock()
	a.sick = now
	a.mu.Unlock()
}
