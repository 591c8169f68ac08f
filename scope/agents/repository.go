package agents

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// RepositoryFile is the file in which a repository proposes keys for the agent of its directory. Only a copy that the user
// has trusted is in force: {base}/agents.d/<id>.trusted.yaml.
const RepositoryFile = paths.RepositoryFile

const trustedSuffix = paths.TrustedSuffix

// TrustedName returns the path of the trusted copy of an agent, relative to the base directory.
func TrustedName(id scope.ID) string { return path.Join(agentsDir, string(id)+trustedSuffix) }

// memberKeys are the keys that a repository may set for an agent of its team, and repositoryKeys those for the agent of its
// directory. All others are the user's.
var (
	memberKeys = []string{
		"argument_filters", "delegate", "env", "limits", "mcp_servers", "mcps", "members", "network", "policy", "protect", "rate_limits", "skills", "tools", "view",
		"description", "prompt",
	}
	repositoryKeys = append(slices.Clone(memberKeys[:len(memberKeys)-2]), "agents", "stores")
)

// repository is the parsed text of a RepositoryFile.
type repository struct {
	file string       // for errors
	text *folder.Text // nil if the file could not be read or parsed
	def  *Definition  // nil beside an error
	refs []catalog.Ref
	env  map[string]int // the lines of variables
	keys []string       // that it sets
	err  error

	team   map[scope.ID]*repository // of the key agents
	stores []string
	member bool // it is of a team
}

// ofTeam reports whether the keys are those of an agent of a team.
func (r *repository) ofTeam() bool { return r != nil && r.member }

// is reports whether both are the same text, or none.
func (r *repository) is(other *repository) bool {
	return r == nil && other == nil || r != nil && other != nil && r.text.Is(other.text)
}

func readTrusted(dir folder.Folder, host Host, id scope.ID, last *loaded) *repository {
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
	return parseRepository(host, file, id, now)
}

// parseRepository parses a text that anybody may have written.
func parseRepository(host Host, file string, id scope.ID, text *folder.Text) *repository {
	r := &repository{file: file, text: text, team: map[scope.ID]*repository{}}
	if err := r.parse(host, id); err != nil {
		r.err = fields.ErrorAt(file, 1, id, err)
	}
	return r
}

func (r *repository) parse(host Host, id scope.ID) error {
	switch data := r.text.Data; {
	case len(data) > frontmatter.MaxKeys:
		return fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys)
	case !utf8.Valid(data):
		return errors.New("is not UTF-8: save it as UTF-8")
	}
	top, err := host.parse(r.text.Data)
	if _, wrong := errors.AsType[*frontmatter.Error](err); err != nil && !wrong {
		r.text = nil // as of a file that could not be read: the next load parses it again
	}
	if err != nil {
		return err
	}
	if top == nil {
		return errors.New("has no keys: write some, or remove the file")
	}
	if err := fields.NoVariables(top); err != nil {
		return err
	}
	return r.read(top, id)
}

// read reads the keys of one agent.
func (r *repository) read(top *yaml.Node, id scope.ID) error {
	def, named, allowed := &Definition{View: ViewSpec{Hardlinks: scope.HardlinksAllow}}, false, repositoryKeys
	r.env = map[string]int{}
	keys := def.fields(RepositoryFile, id, &named, r.env, &r.refs)
	for key, inner := range map[string][]string{
		"view":   {"access", "hardlinks", "paths", "secrets"},
		"limits": {"cpu", "disk", "files", "memory", "pids", "timeout"},
		"policy": {"mcp", "tools"},
	} {
		keys[key] = fields.Only(keys[key], key+": ", RepositoryFile, inner)
	}
	keys["network"] = fields.Checked(keys["network"], func() error { return checkProposed(def.Network) })
	keys["mcp_servers"] = fields.Checked(keys["mcp_servers"], func() error { return checkServers(def.Servers) })
	keys["members"] = fields.Checked(keys["members"], func() error { return fields.NotYours("may: widen", def.Widened) })
	keys["policy"] = fields.Checked(keys["policy"], func() error { return fields.NotYours("trust", def.Rules.Trusted) })
	keys["stores"], keys["agents"], keys["prompt"] = r.readStores, r.readTeam, fields.Text(&def.Prompt)
	if r.member {
		allowed = memberKeys
	}
	for i := 0; top.Kind == yaml.MappingNode && i+1 < len(top.Content); i += 2 {
		r.keys = append(r.keys, top.Content[i].Value)
	}
	slices.Sort(r.keys)
	if err := fields.Only(fields.Mapping(keys), "", RepositoryFile, allowed)(top); err != nil {
		return fields.AtLine(top.Line, err)
	}
	_, err := scope.Compile(def.View.PolicySpec())
	r.def = def
	return err
}

// checkProposed refuses the network of the host, and whatever leads a host's name to an address, a certificate or a
// credential of the repository's choice.
func checkProposed(n hosts.Network) error {
	if n.Kind == hosts.HostNetwork {
		return errors.New("host only your own definition sets: name the hosts in allow")
	}
	if len(n.Published)+len(n.Host) > 0 {
		return errors.New("publish and host: ports of this host only your own definition opens: remove them")
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

// beside returns the servers whose names are not taken.
func (s Servers) beside(taken Servers) Servers {
	all := s.clone()
	maps.DeleteFunc(all, func(name string, _ Server) bool { _, is := taken[name]; return is })
	return all
}

// deniesAll reports whether excluded alone denies everything: see [Grants].
func deniesAll(allowed, excluded []string) bool {
	return len(allowed) == 0 && slices.Contains(excluded, catalog.Everything)
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
	all.View.setPolicy(within(d.View.PolicySpec(), def.View.PolicySpec()))
	if len(def.Env) > 0 {
		all.Env = maps.Clone(def.Env)
		maps.Copy(all.Env, d.Env)
	}
	if err := checkEnv(all.Env, r.env, all.Network); err != nil {
		return nil, err
	}
	all.Limits.Memory, all.Limits.PIDs = fields.Lower(d.Limits.Memory, def.Limits.Memory), fields.Lower(d.Limits.PIDs, def.Limits.PIDs)
	all.Limits.Disk, all.Limits.Files = fields.Lower(d.Limits.Disk, def.Limits.Disk), fields.Lower(d.Limits.Files, def.Limits.Files)
	all.Limits.CPU, all.Limits.Timeout = fields.Lower(d.Limits.CPU, def.Limits.CPU), fields.Lower(d.Limits.Timeout, def.Limits.Timeout)
	tool := func(a, b string) bool { return k.host.Tools.Covers(a, b) }
	own, more := d.Reach, def.Reach
	all.Reach.Repository = r.keys
	tools := k.host.Tools.Names()
	switch held := more.Tasks == ChangesHeld; {
	case held && own.Tasks != ChangesHeld && d.View.Changes != ChangesHeld:
		all.Tasks = ChangesHeld
	case d.Branch != "" && len(r.team) > 0, held && d.View.Changes == ChangesHeld:
		more.Members = []string{} // they would change the directory itself
	}
	all.Tools = catalog.InBoth(own.Tools, more.Tools, tools, tool)
	all.Rules.Allowed = catalog.InBoth(own.Rules.Allowed, more.Rules.Allowed, tools, tool)
	all.Skills = catalog.InBoth(own.Skills, more.Skills, k.skills, catalog.Wild)
	all.Members = catalog.InBoth(k.idsOf(d.Name, own.Members), k.idsOf(d.Name, more.Members), k.ids, catalog.Wild)
	if own.Members == nil { // an entry of the user's is about no agent of the repository
		all.Team = slices.DeleteFunc(k.teamOf(d), func(name string) bool { return !catalog.AnyOf(more.Members, name) })
	}
	all.MCPs = catalog.InBoth(own.MCPs, more.MCPs, nil, catalog.Wild)
	all.Rules.AllowedServers = catalog.InBoth(own.Rules.AllowedServers, more.Rules.AllowedServers, nil, catalog.Wild)
	if deniesAll(own.Rules.Allowed, own.Rules.Exclude) { // an allowed list of the repository's does not turn "*" into a default
		all.Rules.Allowed = []string{}
	}
	if deniesAll(own.Rules.AllowedServers, own.Rules.ExcludedServer) {
		all.Rules.AllowedServers = []string{}
	}
	all.Rules.Exclude = slices.Concat(own.Rules.Exclude, more.Rules.Exclude)
	all.Rules.Ask = slices.Concat(own.Rules.Ask, more.Rules.Ask)
	all.Rules.ExcludedServer = slices.Concat(own.Rules.ExcludedServer, more.Rules.ExcludedServer)
	all.Rates, all.Filters = slices.Concat(own.Rates, more.Rates), slices.Concat(own.Filters, more.Filters)
	if len(servers) > 0 {
		all.Servers = own.Servers.clone()
		maps.Copy(all.Servers, servers)
	}
	if _, err = scope.Compile(all.View.PolicySpec()); err == nil {
		err = all.checkChanges()
	}
	return &all, err
}
