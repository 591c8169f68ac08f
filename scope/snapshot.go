package scope

import (
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Host is what the operator has set for all agents, in {base}/scopefs.yaml.
type Host struct {
	Primary   ID       // the agent that its lists do not restrict; "" is none
	BaseTools []string // of a computed list of tools; nil: bash and ask_user
	Memory    bool     // whether that list holds remember, recall, memory and forget
	Servers   Servers  // that every agent sees
}

// Agent is one agent that is defined, and what it may do.
type Agent struct {
	*Definition
	Grants *Grants
}

// Snapshot is all that definitions say at one time. It never changes.
type Snapshot struct {
	Agents map[ID]*Agent

	known      known
	extensions map[string]*extension

	// What it was made of, so that the next one takes over what has not changed.
	files          map[ID]*loaded
	dir, extendDir dated // agents.d and extensions.d before they were read
}

// loaded is a definition and what became of it.
type loaded struct {
	*parsed
	agent *Agent // nil: err
	err   error
}

// known is what there is that a pattern can match.
type known struct {
	host   Host
	skills []string // sorted
	ids    []string // of the files in agents.d, sorted, whether they load or not
}

// Load reads the definitions of a base directory: agents.d, extensions.d and
// the names of skills. An agent that does not load gives an error, mostly a
// *DefinitionError, and is not in the snapshot.
func Load(base string, host Host) (*Snapshot, []error) {
	return (&Snapshot{}).Reload(base, host)
}

// Reload is Load that takes what does not load any more from s, where it is as
// it was. It parses only files that have changed since s, and *Agent of what has
// not changed is that of s. s itself does not change.
func (s *Snapshot) Reload(base string, host Host) (*Snapshot, []error) {
	next := &Snapshot{Agents: map[ID]*Agent{}, files: map[ID]*loaded{}}
	files, dir, err := readAgents(base, s.files)
	if err != nil { // agents.d itself: of nothing in it is known that it has changed
		next.Agents, next.known, next.extensions, next.files = s.Agents, s.known, s.extensions, s.files
		if next.Agents == nil {
			next.Agents = map[ID]*Agent{}
		}
		return next, []error{err}
	}
	next.dir = dir
	for _, f := range files {
		if _, err := ParseID(string(f.id)); err == nil {
			next.known.ids = append(next.known.ids, string(f.id))
		}
	}
	slices.Sort(next.known.ids) // the files were, and '-' is before '.'
	var errs []error
	if next.known.skills, err = readSkills(base); err != nil {
		errs = append(errs, err)
		next.known.skills = s.known.skills
	}
	next.known.host = host
	same := next.known.equal(s.known)
	if same {
		next.known = s.known
	} else {
		next.known.host.BaseTools, next.known.host.Servers = slices.Clone(host.BaseTools), host.Servers.clone()
	}
	more := next.readExtensions(base, s, same)
	errs = append(errs, more...)
	same = same && maps.EqualFunc(next.extensions, s.extensions, func(a, b *extension) bool { return a.text.is(b.text) })
	if id := host.Primary; id != "" && !next.known.agent(string(id)) {
		errs = append(errs, &DefinitionError{File: hostFile, Err: fmt.Errorf("primary: no agent %q is defined: define it in %s/%s.md, or correct the name", id, agentsDir, id)})
	}
	for _, f := range files {
		made := &loaded{parsed: f}
		if old := s.files[f.id]; same && old != nil && f.text.is(old.text) {
			made.agent, made.err = old.agent, old.err
		} else {
			made.agent, made.err = next.agent(f)
		}
		next.files[f.id] = made
		agent := made.agent
		if made.err != nil {
			errs = append(errs, made.err)
			agent = s.Agents[f.id]
		}
		if agent != nil {
			next.Agents[f.id] = agent
		}
	}
	return next, errs
}

// Current reports whether Reload is certain to find nothing new about one agent.
// It costs the same however many agents there are.
func (s *Snapshot) Current(base string, id ID) bool {
	if s.dir == (dated{}) || !s.dir.stillIn(base, agentsDir) || !s.currentExtensions(base) {
		return false
	}
	skills, err := readSkills(base)
	if err != nil || !slices.Equal(skills, s.known.skills) {
		return false
	}
	f := s.files[id]
	if f == nil {
		return true // agents.d has no such file
	}
	if f.text == nil {
		return false
	}
	now, err := stampOf(unix.AT_FDCWD, filepath.Join(base, agentsDir, string(id)+".md"))
	return err == nil && f.text.still(now)
}

// agent completes one definition.
func (s *Snapshot) agent(f *parsed) (*Agent, error) {
	if f.err != nil {
		return nil, f.err
	}
	servers, err := visible(f.id, s.known.host.Servers, s.extensions)
	if err != nil {
		return nil, err
	}
	fail := func(line int, err error) (*Agent, error) {
		return nil, wrongAt(agentsDir+"/"+string(f.id)+".md", line, f.id, err)
	}
	for _, r := range f.refs {
		if other, ok := servers[r.text]; ok && r.kind == ownServer {
			return fail(r.line, fmt.Errorf("mcp_servers: the agent would see two servers %q, the other of %s: rename one", r.text, other.From))
		}
	}
	maps.Copy(servers, f.def.Servers)
	for _, r := range f.refs {
		if err := r.check(s.known, f.id, servers); err != nil {
			return fail(r.line, err)
		}
	}
	return &Agent{f.def, compileGrants(f.def, s.known, servers)}, nil
}

// Check reads one file as if it stood in agents.d, or in extensions.d when its
// name ends in .yaml, and returns what is wrong with it there.
func (s *Snapshot) Check(file string, text []byte) error {
	name := filepath.Base(file)
	if strings.HasSuffix(name, ".yaml") {
		e, err := parseExtension(name, text, s.known)
		if err != nil {
			return err
		}
		return s.checkExtension(e)
	}
	f := &parsed{id: stem(name)}
	f.def, f.refs, f.err = parseDefinition(name, text)
	_, err := s.agent(f)
	return err
}

// checkExtension looks for servers that an agent would see twice.
func (s *Snapshot) checkExtension(e *extension) error {
	with := map[string]*extension{}
	maps.Copy(with, s.extensions)
	with[e.name] = e
	for _, name := range s.known.ids {
		servers, err := visible(ID(name), s.known.host.Servers, with)
		if err != nil {
			return err
		}
		agent := s.Agents[ID(name)]
		if agent == nil {
			continue
		}
		for own := range agent.Servers {
			if other, ok := servers[own]; ok && other.From == e.file() {
				return wrongAt(e.file(), e.servers[own].line, agent.Name, fmt.Errorf("mcp_servers: agent %q would see two servers %q, the other of %s/%s.md: rename one", name, own, agentsDir, name))
			}
		}
	}
	return nil
}

// check returns an error when the pattern matches nothing that the agent can
// see. It names only that.
func (r ref) check(k known, self ID, servers Servers) error {
	if r.text == everything {
		return nil
	}
	switch r.kind {
	case toolRef:
		return r.checkTool(servers)
	case skillRef:
		if !anyWild(r.text, k.skills) {
			return r.nothing("skill", k.skills, fmt.Sprintf("create %s/%s/SKILL.md", skillsDir, r.text))
		}
	case serverRef, trustRef:
		names := slices.Sorted(maps.Keys(servers))
		if r.kind == serverRef && !anyWild(r.text, names) || r.kind == trustRef && !slices.Contains(names, r.text) {
			return r.nothing("server that the agent can see", names, "define it in mcp_servers")
		}
	case memberRef:
		if r.text == string(self) {
			return fmt.Errorf("%s: %q is the agent itself, which is no member of its own: remove it", r.key, r.text)
		}
		if k.agent(r.text) {
			return nil // most name one, and there may be many
		}
		if others := k.others(self); !anyWild(r.text, others) {
			kind := "other agent"
			if self == "" {
				kind = "agent"
			}
			return r.nothing(kind, others, fmt.Sprintf("define it in %s/%s.md", agentsDir, r.text))
		}
	}
	return nil
}

func (r ref) checkTool(servers Servers) error {
	p, err := parseToolPattern(r.text)
	if err != nil || knownTool(p, servers) {
		return err
	}
	if p.server != "" {
		return r.nothing("server that the agent can see", slices.Sorted(maps.Keys(servers)), "define it in mcp_servers")
	}
	return fmt.Errorf("%s: %q matches no tool: correct it to mcp:SERVER:TOOL or one of %s", r.key, r.text, strings.Join(Builtins(), ", "))
}

// knownTool reports whether a pattern matches a tool there is, or may be: what
// tools a server has, only the server knows.
func knownTool(p toolPattern, servers Servers) bool {
	switch {
	case p.all:
		return true
	case p.server == "":
		return anyWild(p.name, Builtins())
	default:
		return anyWild(p.server, slices.Collect(maps.Keys(servers)))
	}
}

// nothing says that a pattern matches nothing of a kind, and what there is.
func (r ref) nothing(kind string, there []string, remedy string) error {
	list := "there is none"
	if len(there) > 0 {
		list = "there is " + strings.Join(there, ", ")
	}
	if strings.Contains(r.text, "*") {
		remedy = "remove it"
	}
	return fmt.Errorf("%s: %q matches no %s (%s): correct it, or %s", r.key, r.text, kind, list, remedy)
}

func (k known) equal(other known) bool {
	a, b := k.host, other.host
	if len(a.Servers) == 0 && len(b.Servers) == 0 {
		a.Servers, b.Servers = nil, nil
	}
	return slices.Equal(k.ids, other.ids) && slices.Equal(k.skills, other.skills) && reflect.DeepEqual(a, b)
}

// agent reports whether there is a file of that agent.
func (k known) agent(name string) bool {
	_, ok := slices.BinarySearch(k.ids, name)
	return ok
}

// others returns the agents beside one, sorted.
func (k known) others(self ID) []string {
	return slices.DeleteFunc(slices.Clone(k.ids), func(name string) bool { return name == string(self) })
}
