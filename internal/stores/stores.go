// Package stores makes the tools of the shared stores that scopefs.yaml
// configures, and reports the health of each. A store is opened when its first
// call needs it; one that cannot be opened fails its own calls only, and is tried
// again.
package stores

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/fs/quota"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/usage"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/http"
	"github.com/scopefs/scopefs/tools/messages"
	"github.com/scopefs/scopefs/tools/notify"
)

// Stores are the stores of one daemon.
type Stores struct {
	// OnDeclare is called when a program has declared its tools. Set it before the first
	// call.
	OnDeclare func()

	all      []store
	tools    []tools.Tool // of all
	programs *programs    // nil: none
	drivers  *drivers
	pages    *usage.Pages // nil: nothing is bounded
	disks    []*disk
	err      error // of the configuration
}

// Host is what stores need of the process that they are in. The zero value is for a
// process that only reads their configuration.
type Host struct {
	User    UserOf       // returns the user of an agent's SQL process; nil: the daemon's own
	Exec    Exec         // starts programs; nil: none can be started
	Root    bool         // this process is root of the host: drivers run as [StoresUser]
	Program string       // the file of the program of the drivers; "": the one that is installed with this program
	Disk    *usage.Pages // bounds what stores hold for agents; nil: nothing does
	Stderr  io.Writer    // gets what drivers print when they crash; nil: nobody
}

// A store is one of them.
type store struct {
	name, kind string
	tools      []tools.Tool
	names      []string                    // of the tools
	check      func(context.Context) error // whether it works; bounded by its context; makes no file
	close      func() error                // nil: nothing is to be closed
	end        func(scope.ID)              // ends the processes of an agent; nil: it has none

	held   func(context.Context, scope.ID) (quota.Use, error) // of an agent, for forget; nil: nothing can be removed
	forget func(context.Context, scope.ID) error

	allows func(scope.Principal) bool // nil: every agent that has one of the tools
}

// New returns the stores of a configuration. It opens none of them. Embedded
// stores keep their files in the directory state.
func New(config config.Stores, state string, host Host) *Stores {
	s := &Stores{drivers: newDrivers(host, state), pages: host.Disk}
	s.err = errors.Join(
		s.kv(config.KV), s.sql(config.SQL, state, host.User), s.messages(config.Messages), s.services(config.Services),
		s.notify(config.Notify), s.objects(config.Objects), s.metrics(config.Metrics),
	)
	s.addPrograms(config.Programs, host.Exec)
	return s
}

// Tools returns the tools of all stores. They are the same for every agent: the
// door applies their strategies to the agent of each call.
func (s *Stores) Tools() ([]tools.Tool, error) { return s.tools, s.err }

// Close closes the stores that were opened.
func (s *Stores) Close() error {
	var errs []error
	if s.programs != nil {
		errs = append(errs, s.programs.up.Close())
	}
	for _, one := range s.all {
		if one.close != nil {
			errs = append(errs, one.close())
		}
	}
	return errors.Join(append(errs, s.drivers.close())...)
}

// End ends the processes that work for an agent, which goes down. Its next call starts
// others.
func (s *Stores) End(agent scope.ID) {
	for _, one := range s.all {
		if one.end != nil {
			one.end(agent)
		}
	}
}

// A Part is what a store holds for an agent, and can remove.
type Part struct {
	Store, Kind string
	Bytes       int64
	forget      func(context.Context, scope.ID) error
}

// Parts returns what stores hold for an agent. A store that does not answer is an error.
func (s *Stores) Parts(ctx context.Context, agent scope.ID) (all []Part, err error) {
	for _, one := range s.all {
		if one.held == nil {
			continue
		}
		use, err := one.held(ctx, agent)
		if err != nil {
			return nil, fmt.Errorf("store %s: %s", one.name, health(err))
		}
		if use.Bytes > 0 {
			all = append(all, Part{one.name, one.kind, use.Bytes, one.forget})
		}
	}
	return all, nil
}

// Forget removes parts of an agent, which must have no session.
func (s *Stores) Forget(ctx context.Context, agent scope.ID, parts []Part) error {
	for _, p := range parts {
		if err := p.forget(ctx, agent); err != nil {
			return fmt.Errorf("store %s: %s", p.Store, health(err))
		}
	}
	for _, d := range s.disks {
		h := d.heldBy(agent)
		h.add(quota.Use{}) // less than before: it is measured again
	}
	return nil
}

// checkTime bounds the check of one store.
const checkTime = 5 * time.Second

// Report checks every store and returns its health, and the agents that reach it.
// It takes 5 s at most.
func (s *Stores) Report(ctx context.Context, loaded map[scope.ID]*agents.Agent) []api.Store {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	all := make([]api.Store, len(s.all))
	var checks sync.WaitGroup
	for i, one := range s.all {
		all[i] = api.Store{Name: one.name, Kind: one.kind, Tools: one.names, Agents: one.agents(loaded)}
		checks.Go(func() {
			if err := one.check(ctx); err != nil {
				all[i].Error = health(err)
			}
		})
	}
	checks.Wait()
	return all
}

// health returns the text of a store's error, with what the operator can do about the
// common ones.
func health(err error) string {
	switch {
	case errors.Is(err, egress.ErrAddress):
		return err.Error() + ": add it to addresses, if agents may reach it"
	case errors.Is(err, syscall.ECONNREFUSED):
		return err.Error() + ": start the server, or correct its address"
	case errors.Is(err, context.DeadlineExceeded):
		return err.Error() + ": the server does not answer: start it again, or correct its address"
	}
	return err.Error()
}

// Of returns the names of the stores that an agent reaches, sorted.
func (s *Stores) Of(a *agents.Agent) []string {
	names := []string{}
	for _, one := range s.all {
		if one.reachedBy(a) {
			names = append(names, one.name)
		}
	}
	slices.Sort(names)
	return names
}

// agents returns the agents that reach the store, sorted.
func (one store) agents(loaded map[scope.ID]*agents.Agent) []string {
	ids := []string{}
	for id, a := range loaded {
		if one.reachedBy(a) {
			ids = append(ids, string(id))
		}
	}
	slices.Sort(ids)
	return ids
}

// reachedBy reports whether an agent may call one of the store's tools, or may after an
// approval.
func (one store) reachedBy(a *agents.Agent) bool {
	may := slices.ContainsFunc(one.tools, func(t tools.Tool) bool {
		d := a.Grants.Tool(t.Name)
		return d.Allow || d.Ask
	})
	return may && (one.allows == nil || one.allows(a.Grants.Principal()))
}

// add adds a store with its tools.
func (s *Stores) add(one store) {
	for _, t := range one.tools {
		one.names = append(one.names, t.Name)
	}
	s.all = append(s.all, one)
}

// services adds the services of http_request: a store for each.
func (s *Stores) services(config map[string]config.Service) error {
	if len(config) == 0 {
		return nil
	}
	all := map[string]http.Service{}
	for name, c := range config {
		u, err := url.Parse(c.URL)
		if err != nil {
			return fmt.Errorf("services: %s: url: is no address: write https://HOST/PATH", name)
		}
		all[name] = http.Service{
			URL: u, Agents: c.Allows, Methods: c.Methods, Paths: c.Paths, Addresses: c.Addresses,
			Credential: c.Credential, Header: c.Header, Prefix: c.Prefix, Timeout: c.Timeout,
		}
	}
	list, err := http.New(all)
	if err != nil {
		return fmt.Errorf("services: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s.add(store{name: "services." + name, kind: "http", tools: list, check: all[name].Dial, allows: config[name].Allows})
	}
	s.tools = append(s.tools, list...) // one tool for all of them
	return nil
}

// Judge decides again about a call that the log has: a tool's name, and the target of the
// call's record. known is false if the stores do not decide about calls of the tool, or if
// the record does not say enough.
func Judge(config config.Stores, env tools.Env, tool, target string) (refused scope.Decision, ok, known bool) {
	var in any
	switch tool {
	case "http_request":
		in = http.Arguments(target)
	case "notify":
		in = notify.Arguments(target)
	case "publish", "subscribe":
		in = messages.Arguments(target)
	case "sql_execute":
		in = map[string]string{"sql": target} // its keyword
	}
	args, err := json.Marshal(in)
	all, wrong := New(config, "", Host{}).Tools()
	at := slices.IndexFunc(all, func(t tools.Tool) bool { return t.Name == tool })
	if in == nil || err != nil || wrong != nil || at < 0 {
		return scope.Decision{}, false, false
	}
	refused, ok = all[at].Judge(env, args)
	return refused, ok, true
}

// Known returns the tools of a configuration as definitions may name them.
func Known(config config.Stores) (known catalog.Tools, err error) {
	all, err := New(config, "", Host{}).Tools()
	for _, t := range all {
		known = append(known, catalog.Tool{Name: t.Name, Aliases: t.Aliases, Writes: t.Hints.Writes})
	}
	return known, err
}
