package agents

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// RepositoryFile is the file in which a repository proposes keys for the agent of its directory. Only a copy that the user
// has trusted is in force: {base}/agents.d/<id>.trusted.yaml.
const RepositoryFile = ".scopefs.yaml"

const trustedSuffix = ".trusted.yaml"

// TrustedName returns the path of the trusted copy of an agent, relative to the base directory.
func TrustedName(id scope.ID) string { return path.Join(agentsDir, string(id)+trustedSuffix) }

// repositoryKeys are the keys that a repository may set. All others are the user's.
var repositoryKeys = []string{
	"argument_filters", "env", "limits", "mcp_servers", "mcps", "members", "network", "policy", "protect", "rate_limits", "skills", "tools", "view",
}

// repository is the parsed text of a RepositoryFile.
type repository struct {
	file string // for errors
	text *folder.Text
	def  *Definition // nil beside an error
	refs []catalog.Ref
	env  map[string]int // the lines of variables
	keys []string       // that it sets
	err  error
}

// is reports whether both are the same text, or none.
func (r *repository) is(other *repository) bool {
	return r == nil && other == nil || r != nil && other != nil && r.text.Is(other.text)
}

func readTrusted(dir folder.Folder, id scope.ID, last *loaded) *repository {
	var old *repository
	var text *folder.Text
	if last != nil && last.trusted != nil {
		old, text = last.trusted, last.trusted.text
	}
	file := TrustedName(id)
	now, err := dir.Read(path.Base(file), text)
	switch {
	case err != nil:
		return &repository{file: file, err: fields.ErrorAt(file, 0, id, err)}
	case old != nil && now.Is(text):
		same := *old
		same.text = now
		return &same
	}
	return parseRepository(file, id, now)
}

// parseRepository parses a text that anybody may have written.
func parseRepository(file string, id scope.ID, text *folder.Text) *repository {
	r := &repository{file: file, text: text, env: map[string]int{}}
	def := &Definition{View: ViewSpec{Hardlinks: scope.HardlinksAllow}}
	err := r.parse(def, id)
	if err == nil {
		_, err = scope.Compile(def.View.PolicySpec())
	}
	if err != nil {
		r.err = fields.ErrorAt(file, 1, id, err)
		return r
	}
	r.def = def
	return r
}

func (r *repository) parse(def *Definition, id scope.ID) error {
	switch data := r.text.Data; {
	case len(data) > frontmatter.MaxKeys:
		return fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys)
	case !utf8.Valid(data):
		return errors.New("is not UTF-8: save it as UTF-8")
	}
	top, err := frontmatter.Parse(r.text.Data)
	if err != nil {
		return err
	}
	if top == nil {
		return errors.New("has no keys: write some, or remove the file")
	}
	if err := noVariables(top); err != nil {
		return err
	}
	var named bool
	keys := def.fields(RepositoryFile, id, &named, r.env, &r.refs)
	for key, inner := range map[string][]string{
		"view":   {"access", "hardlinks", "paths"},
		"limits": {"cpu", "memory", "pids", "timeout"},
		"policy": {"mcp", "tools"},
	} {
		keys[key] = only(key+": ", keys[key], inner...)
	}
	keys["network"] = proposed(keys["network"], func() error { return checkProposed(def.Network) })
	keys["mcp_servers"] = proposed(keys["mcp_servers"], func() error { return checkServers(def.Servers) })
	keys["members"] = proposed(keys["members"], func() error { return absent("may: widen", def.Widened) })
	keys["policy"] = proposed(keys["policy"], func() error { return absent("trust", def.Rules.Trusted) })
	for i := 0; top.Kind == yaml.MappingNode && i+1 < len(top.Content); i += 2 {
		r.keys = append(r.keys, top.Content[i].Value)
	}
	slices.Sort(r.keys)
	return fields.AtLine(top.Line, only("", fields.Mapping(keys), repositoryKeys...)(top))
}

// only is a field of a mapping that has no other keys than these. where begins the errors.
func only(where string, field fields.Field, keys ...string) fields.Field {
	return func(n *yaml.Node) error {
		var wrong fields.Problems
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
			if key := n.Content[i]; !slices.Contains(keys, key.Value) {
				wrong.Add(key.Line, fmt.Errorf("%s%q is no key of %s: want one of %s; others only your own definition sets", where, key.Value, RepositoryFile, strings.Join(keys, ", ")))
			}
		}
		if wrong != nil {
			return wrong.Err()
		}
		return field(n)
	}
}

// proposed is a field whose value check may refuse.
func proposed(field fields.Field, check func() error) fields.Field {
	return func(n *yaml.Node) error {
		if err := field(n); err != nil {
			return err
		}
		return check()
	}
}

func absent(key string, list []string) error {
	if len(list) > 0 {
		return fmt.Errorf("%s for %s only your own definition sets: remove it", key, strings.Join(list, ", "))
	}
	return nil
}

// checkProposed refuses the network of the host, and whatever leads a host's name to an address, a certificate or a
// credential of the repository's choice.
func checkProposed(n hosts.Network) error {
	if n.Kind == hosts.HostNetwork {
		return errors.New("host only your own definition sets: name the hosts in allow")
	}
	for _, r := range slices.Concat(n.Rules.Deny, n.Rules.Ask, n.Rules.Allow) {
		if r.Address.IsValid() || r.CA != "" || r.Secret != "" {
			return fmt.Errorf("%q: address, ca and credential only your own definition sets: remove them, or name a preset", r.Host)
		}
	}
	return nil
}

func checkServers(all Servers) error {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name]
		err := checkProposed(s.Network)
		switch {
		case s.Headers != nil:
			err = errors.New("headers only your own definition sets: remove them")
		case strings.HasPrefix(s.URL, "http://"):
			err = errors.New("url: a server of this host only your own definition names: write https")
		case err != nil:
			err = fmt.Errorf("network: %w", err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// noVariables returns an error for ${VAR}: no repository reads the daemon's environment.
func noVariables(n *yaml.Node) error {
	var wrong fields.Problems
	if n.Kind == yaml.ScalarNode && fields.NotExpanded(n.Value) != nil {
		wrong.Add(n.Line, fmt.Errorf("%q has a variable, and the environment only your own definition reads: write the value itself", n.Value))
	}
	for _, c := range n.Content {
		wrong.Add(c.Line, noVariables(c))
	}
	return wrong.Err()
}

// beside returns the servers whose names are not taken.
func (s Servers) beside(taken Servers) Servers {
	all := s.clone()
	maps.DeleteFunc(all, func(name string, _ Server) bool { _, is := taken[name]; return is })
	return all
}

// join returns the definition with def, the keys of a repository's file, and with the servers of it that the agent sees.
// Rules that restrict hold of both. Of a list of names that both have, the agent gets what is in both. Of network the rules
// are joined; see [hosts.Network.Join]. A variable of the user's replaces the repository's with the same name.
func (d *Definition) join(r *repository, def *Definition, k known, servers Servers) (*Definition, error) {
	all := *d
	var err error
	if all.Network, err = d.Network.Join(def.Network, k.presets); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	all.View.setPolicy(d.View.PolicySpec().Within(def.View.PolicySpec()))
	if len(def.Env) > 0 {
		all.Env = maps.Clone(def.Env)
		maps.Copy(all.Env, d.Env)
	}
	if err := checkEnv(all.Env, r.env, all.Network); err != nil {
		return nil, err
	}
	all.Limits.Memory, all.Limits.PIDs = lower(d.Limits.Memory, def.Limits.Memory), lower(d.Limits.PIDs, def.Limits.PIDs)
	all.Limits.CPU, all.Limits.Timeout = lower(d.Limits.CPU, def.Limits.CPU), lower(d.Limits.Timeout, def.Limits.Timeout)
	tool := func(a, b string) bool { return coversTool(k.host.Tools, a, b) }
	own, more := d.Reach, def.Reach
	all.Reach.Repository = r.keys
	tools := k.host.Tools.Names()
	all.Tools = inBoth(own.Tools, more.Tools, tools, tool)
	all.Rules.Allowed = inBoth(own.Rules.Allowed, more.Rules.Allowed, tools, tool)
	all.Skills = inBoth(own.Skills, more.Skills, k.skills, catalog.Wild)
	all.Members = inBoth(k.idsOf(d.Name, own.Members), k.idsOf(d.Name, more.Members), k.ids, catalog.Wild)
	all.MCPs = inBoth(own.MCPs, more.MCPs, nil, catalog.Wild)
	all.Rules.AllowedServers = inBoth(own.Rules.AllowedServers, more.Rules.AllowedServers, nil, catalog.Wild)
	all.Rules.Exclude = slices.Concat(own.Rules.Exclude, more.Rules.Exclude)
	all.Rules.Ask = slices.Concat(own.Rules.Ask, more.Rules.Ask)
	all.Rules.ExcludedServer = slices.Concat(own.Rules.ExcludedServer, more.Rules.ExcludedServer)
	all.Rates, all.Filters = slices.Concat(own.Rates, more.Rates), slices.Concat(own.Filters, more.Filters)
	if len(servers) > 0 {
		all.Servers = own.Servers.clone()
		maps.Copy(all.Servers, servers)
	}
	_, err = scope.Compile(all.View.PolicySpec())
	return &all, err
}

// lower returns the lower of two limits, of which zero is none.
func lower[T int | int64 | float64 | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// inBoth returns the patterns and names that two lists cover; nil is a list without restriction. Of two patterns of which
// neither covers the other, it has the names that both match, and nothing else.
func inBoth(a, b, names []string, covers func(pattern, other string) bool) []string {
	everything := func(list []string) bool { return slices.Contains(list, catalog.Everything) }
	switch {
	case a == nil, b != nil && everything(a):
		return b
	case b == nil, everything(b):
		return a
	}
	in := func(list []string, s string) bool {
		return slices.ContainsFunc(list, func(p string) bool { return covers(p, s) })
	}
	both := []string{}
	for _, s := range slices.Concat(a, b, names) {
		if in(a, s) && in(b, s) && !in(both, s) {
			both = append(both, s)
		}
	}
	return both
}

// coversTool reports whether a pattern of tools matches every tool that another matches.
func coversTool(tools catalog.Tools, pattern, other string) bool {
	p, errP := tools.ParsePattern(pattern)
	o, errO := tools.ParsePattern(other)
	if errP != nil || errO != nil || o.All {
		return errP == nil && errO == nil && p.All
	}
	if o.Server == "" && o.Name == catalog.MCP { // which stands for all tools of servers; m* does not
		return p.All || p.Server == "" && p.Name == catalog.MCP
	}
	return p.Match(catalog.ToolName{Server: o.Server, Name: o.Name})
}

// Propose returns an agent without a trusted RepositoryFile, and as it would be with the text of one. Errors name the file
// RepositoryFile.
func (s *Snapshot) Propose(id scope.ID, text []byte) (without, with *Agent, errs []error) {
	f := s.files[id]
	if f == nil {
		return nil, nil, []error{fmt.Errorf("no agent %q is in %s: define it", id, agentsDir)}
	}
	bare := *f.parsed
	bare.trusted = nil
	if without, errs, _ = s.agent(&bare, s.seen); errs != nil {
		return nil, nil, errs
	}
	bare.trusted = parseRepository(RepositoryFile, id, folder.TextOf(text))
	with, errs, _ = s.agent(&bare, s.seen)
	return without, with, errs
}
