package agents

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/protect"
)

// Host is the operator's configuration for all agents, from
// scopefs.yaml.
type Host struct {
	Primary   scope.ID      // the agent that its lists do not restrict; "" for none
	BaseTools []string      // of a computed list of tools; nil: those with ListedBase
	Memory    bool          // whether that list holds those with ListedMemory
	Servers   Servers       // that every agent sees
	Tools     catalog.Tools // that definitions may name
	User      string        // the directory of the user's settings for all bases; "": none
	Flags     map[scope.ID]Flags
	Signed    string // the directory whose agents.d has what operators of a fleet have signed; "": none

	Lent map[scope.ID][]Root // roots for single sandboxes, by their agent

	Foreign Parser // of RepositoryFiles; nil: this process parses them
}

// Parser parses YAML that an agent may have written. Its result is that of [frontmatter.Parse], by a process that has nothing to lose.
type Parser interface {
	// Parse returns the top of the one document in a text, nil for a text that has none. An error of the text is of type
	// *[frontmatter.Error]. Any other means that the text was not parsed: the next load parses it again.
	Parse(text []byte) (*yaml.Node, error)
}

// parse parses YAML of a repository.
func (h Host) parse(text []byte) (*yaml.Node, error) {
	if h.Foreign == nil {
		return frontmatter.Parse(text)
	}
	return h.Foreign.Parse(text)
}

// further returns the directories whose agents.d follow the base's, the first first.
func (h Host) further() [2]string { return [2]string{h.User, h.Signed} }

// Agent is a defined agent and its grants.
type Agent struct {
	*Definition
	Grants *Grants
	File   string // the definition's, relative to the base directory; absolute in a further directory
}

// Path returns the path of the definition.
func (a *Agent) Path(base string) string { return pathIn(base, a.File) }

func pathIn(base, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(base, file)
}

// Snapshot is the state of all definitions at one time. It is immutable.
type Snapshot struct {
	Agents map[scope.ID]*Agent

	// Warnings are of type *FileError: entries that load and have no
	// effect.
	Warnings []error

	base       string // absolute
	known      known
	lent       map[scope.ID][]Root   // see Host.Lent
	extensions map[string]*extension // by file

	// The sources of the snapshot, so that Reload can reuse what has not
	// changed.
	files      map[scope.ID]*loaded
	seen       map[string]string       // the SHA-256 of what has loaded, by file
	dirs       [3]folder.Dated         // stamps of agents.d of the base and of the further directories before they were read
	extendDirs map[string]folder.Dated // stamps of extensions.d and its directories; nil if unknown
}

// loaded is a definition and the result of loading it.
type loaded struct {
	*parsed
	agent    *Agent // nil if there are errs
	errs     []error
	warnings []error
}

// Load reads the definitions of a base directory: agents.d, extensions.d and
// the names of skills. For an agent that does not load it returns an error,
// usually a *FileError, and the snapshot does not have the agent.
func Load(base string, host Host) (*Snapshot, []error) {
	return (&Snapshot{}).Reload(base, host)
}

// Resume returns an empty snapshot for Reload. seen is Seen of an earlier
// snapshot.
func Resume(seen map[string]string) *Snapshot { return &Snapshot{seen: maps.Clone(seen)} }

// Sources is Resume with the files that s has parsed: Reload loads those again that have changed, and keeps nothing of a file
// that no longer loads.
func (s *Snapshot) Sources(seen map[string]string) *Snapshot {
	if len(s.extensions) > 0 { // whose last good state is all that s has of them
		return Resume(seen)
	}
	next := Resume(seen)
	next.files, next.known = s.files, s.known
	return next
}

// Seen returns the SHA-256 of each file that has loaded, by name. The names in
// such a file existed when it first loaded.
func (s *Snapshot) Seen() map[string]string { return maps.Clone(s.seen) }

// New returns the snapshot of a base that is not there yet: definitions may name what the program and the user's settings have.
func New(base string, host Host) (*Snapshot, []error) {
	s := &Snapshot{base: base, known: known{host: host}}
	var errs []error
	s.known.presets, errs = hosts.ReadPresets(base, host.User, nil)
	var wrong []error
	s.known.protect, s.known.lost, wrong = protect.Read(base, host.User, nil)
	return s, append(errs, wrong...)
}

// Reload is Load, except that it keeps the last good state in s of a file that no
// longer loads. It parses only files that have changed since s. An unchanged
// agent keeps its *Agent. Reload does not change s.
//
// A pattern that matches nothing is an error in a new or changed file. In a
// file that has loaded before with the same content, the name was removed
// later: that is a warning, and the pattern grants nothing.
func (s *Snapshot) Reload(base string, host Host) (*Snapshot, []error) {
	lent := host.Lent
	host.Lent = nil // names do not depend on it
	next := &Snapshot{base: base, lent: lent, Agents: map[scope.ID]*Agent{}, files: map[scope.ID]*loaded{}, seen: map[string]string{}}
	if abs, err := filepath.Abs(base); err == nil {
		next.base = abs
	}
	files, dirs, odd, err := readAgents(base, host, s.files)
	if err != nil { // agents.d could not be read: keep everything
		next.Agents, next.known, next.extensions, next.files, next.seen = s.Agents, s.known, s.extensions, s.files, s.seen
		if next.Agents == nil {
			next.Agents = map[scope.ID]*Agent{}
		}
		return next, []error{err}
	}
	next.dirs, next.Warnings = dirs, odd
	brought, errs := next.readExtensions(base, s)
	files, wrong := next.identify(files, brought)
	errs = append(errs, wrong...)
	if next.known.skills, err = readSkills(base); err != nil {
		errs = append(errs, err)
		next.known.skills = s.known.skills
	}
	next.known.presets, wrong = hosts.ReadPresets(base, host.User, s.known.presets)
	errs = append(errs, wrong...)
	next.known.protect, next.known.lost, wrong = protect.Read(base, host.User, s.known.protect)
	errs = append(errs, wrong...)
	next.known.host = host
	same := next.known.equal(s.known)
	if same {
		next.known = s.known
	} else {
		next.known.host.BaseTools, next.known.host.Servers = slices.Clone(host.BaseTools), host.Servers.clone()
		next.known.host.Tools, next.known.host.Flags = slices.Clone(host.Tools), maps.Clone(host.Flags)
	}
	errs = append(errs, next.checkExtensions(s)...)
	same = same && maps.EqualFunc(next.extensions, s.extensions, (*extension).is)
	if id := host.Primary; id != "" && !next.known.agent(string(id)) {
		errs = append(errs, &fields.FileError{File: HostFile, Err: fmt.Errorf("primary: no agent %q is defined: define it in %s/%s.md, or correct the name", id, agentsDir, id)})
	}
	for _, f := range files {
		old := s.files[f.id]
		made := &loaded{parsed: f}
		if same && old != nil && old.file == f.file && (f.text.Is(old.text) || f.trusted.ofTeam()) && (f.of == nil || f.of.Is(old.of)) && f.trusted.is(old.trusted) {
			made.agent, made.errs, made.warnings = old.agent, old.errs, old.warnings
		} else {
			made.agent, made.errs, made.warnings = next.agent(f, s.seen)
		}
		next.files[f.id] = made
		next.Warnings = append(next.Warnings, made.warnings...)
		if f.text != nil && (made.agent != nil || s.seen[f.file] == f.text.Sum) {
			next.seen[f.file] = f.text.Sum
		}
		if t := f.trusted; t != nil && t.text != nil && !t.member && (made.agent != nil || s.seen[t.file] == t.text.Sum) {
			next.seen[t.file] = t.text.Sum
		}
		agent := made.agent
		if agent == nil {
			errs = append(errs, made.errs...)
			if agent = s.Agents[f.id]; agent != nil && s.known.flagsOf(agent.Definition) != next.known.flagsOf(agent.Definition) {
				agent = nil // it is by flags that do not hold any more, or not yet
			}
		}
		if agent != nil {
			next.Agents[f.id] = agent
		}
	}
	errs = append(errs, next.addRoots(s)...)
	for _, f := range files {
		next.Warnings = append(next.Warnings, next.emptied(next.Agents[f.id], f.refs)...)
	}
	return next, errs
}

// identify records the agents of agents.d and of extensions. It returns the
// files of both, without duplicates of an id.
func (s *Snapshot) identify(files, brought []*parsed) (all []*parsed, errs []error) {
	by := map[scope.ID]string{}
	for _, f := range files {
		by[f.id] = f.file
		if f.def != nil && f.def.TeamOf != "" {
			if s.known.team == nil {
				s.known.team = map[string]scope.ID{}
			}
			s.known.team[string(f.id)] = f.def.TeamOf
			continue
		}
		if _, err := scope.ParseID(string(f.id)); err == nil {
			s.known.ids = append(s.known.ids, string(f.id))
		}
	}
	for _, file := range slices.Sorted(maps.Keys(s.extensions)) {
		e := s.extensions[file]
		for _, b := range e.brings {
			own := path.Join(path.Dir(file), b.path)
			if other, twice := by[b.id]; twice {
				errs = append(errs, fields.ErrorAt(file, b.line, "", fmt.Errorf("agents: agent %q is in %s already: rename one", b.id, other)))
				continue
			}
			by[b.id] = own
			s.known.ids = append(s.known.ids, string(b.id))
			if s.known.brought == nil {
				s.known.brought = map[string]string{}
			}
			s.known.brought[string(b.id)] = e.name
			if !b.public {
				if s.known.hidden == nil {
					s.known.hidden = map[string]audience{}
				}
				s.known.hidden[string(b.id)] = e.audience()
			}
		}
	}
	slices.Sort(s.known.ids) // the files were, and '-' is before '.'
	s.known.shown = map[string][]string{}
	for _, f := range slices.Concat(files, brought) {
		if f.def != nil && f.def.DisplayName != "" && by[f.id] == f.file && !slices.Contains(s.known.shown[f.def.DisplayName], string(f.id)) {
			s.known.shown[f.def.DisplayName] = append(s.known.shown[f.def.DisplayName], string(f.id))
		}
	}
	for _, f := range brought {
		if by[f.id] == f.file {
			delete(by, f.id) // an extension may name it twice
			files = append(files, f)
		}
	}
	return files, errs
}

// checkExtensions checks the names in extensions.
func (s *Snapshot) checkExtensions(last *Snapshot) (errs []error) {
	for _, file := range slices.Sorted(maps.Keys(s.extensions)) {
		e := s.extensions[file]
		wrong := fields.Problems{}
		for _, r := range e.refs {
			wrong.Add(r.Line, checkRef(r, s.known, "", nil))
		}
		loaded := last.seen[file] == e.text.Sum
		if len(wrong) > 0 && loaded {
			s.Warnings = append(s.Warnings, fields.EachError(fields.ErrorAt(file, 1, "", removed(wrong)))...)
		} else if len(wrong) > 0 {
			errs = append(errs, fields.EachError(fields.ErrorAt(file, 1, "", wrong))...)
			if delete(s.extensions, file); last.extensions[file] != nil {
				s.extensions[file] = last.extensions[file]
			}
			s.extendDirs = nil
			continue
		}
		s.seen[file] = e.text.Sum
		s.Warnings = append(s.Warnings, e.unset()...)
	}
	return errs
}

// Current reports whether Reload would certainly find nothing new about one
// agent. Its cost does not depend on the number of agents.
func (s *Snapshot) Current(base string, id scope.ID) bool {
	if s.dirs[0] == (folder.Dated{}) || !s.dirs[0].StillIn(base, agentsDir) || !s.currentExtensions(base) {
		return false
	}
	for i, name := range s.known.host.further() {
		if name != "" && !s.dirs[1+i].StillIn(name, agentsDir) {
			return false
		}
	}
	skills, err := readSkills(base)
	if err != nil || !slices.Equal(skills, s.known.skills) {
		return false
	}
	presets, errs := hosts.ReadPresets(base, s.known.host.User, s.known.presets)
	if errs != nil || !reflect.DeepEqual(presets, s.known.presets) {
		return false
	}
	lists, lost, errs := protect.Read(base, s.known.host.User, s.known.protect)
	if errs != nil || lost != s.known.lost || !maps.EqualFunc(lists, s.known.protect, func(a, b *protect.List) bool { return reflect.DeepEqual(a, b) }) {
		return false
	}
	if a := s.Agents[id]; a != nil && a.RootOf != "" {
		id = a.RootOf
	}
	f := s.files[id]
	if f == nil {
		return true // there is no such file
	}
	if f.text == nil || f.def == nil {
		return false
	}
	if f.def.Branch != "" && !s.Current(base, f.def.Branch) {
		return false
	}
	if t := f.trusted; t != nil && (t.text == nil || !stillAt(t.text, base, t.file)) {
		return false
	}
	return stillAt(f.text, base, f.file)
}

// stillAt reports whether a file of the base directory has not changed since text was read.
func stillAt(text *folder.Text, base, file string) bool {
	now, err := folder.StampOf(unix.AT_FDCWD, pathIn(base, file))
	return err == nil && text.Still(now)
}

// agent compiles one definition, with the keys of a trusted RepositoryFile. seen is as in Resume: in a file with content
// that has loaded before, names that no longer exist are warnings.
func (s *Snapshot) agent(f *parsed, seen map[string]string) (agent *Agent, errs, warnings []error) {
	if f.def == nil {
		return nil, fields.EachError(f.err), nil
	}
	errs = fields.EachError(f.err)
	t := f.trusted
	if t != nil && t.err != nil {
		return nil, append(errs, fields.EachError(t.err)...), nil
	}
	servers, err := visible(f.def.Principal(), f.def.Servers, s.known.host.Servers, s.extensions)
	if err != nil {
		return nil, append(errs, fields.EachError(err)...), nil
	}
	proposed := Servers{}
	if t != nil {
		proposed = t.def.Servers.beside(servers)
		maps.Copy(servers, proposed)
	}
	check := func(file string, text *folder.Text, def *Definition, refs []catalog.Ref, k known) *Definition {
		def, wrong, odd := s.resolve(def, f, refs, k, servers, file, text != nil && seen[file] == text.Sum)
		errs, warnings = append(errs, wrong...), append(warnings, odd...)
		return def
	}
	own, err := s.known.flagged(f.def)
	if err != nil {
		return nil, append(errs, fields.ErrorAt(f.file, 1, f.id, err)), nil
	}
	def := check(f.file, f.text, own, f.refs, s.known)
	if t != nil {
		if add := check(t.file, t.text, t.def, t.refs, s.known.with(s.known.teamOf(f.def))); errs == nil {
			if def, err = def.join(t, add, s.known, proposed); err != nil {
				errs = fields.EachError(fields.ErrorAt(t.file, 1, f.id, err))
			}
		}
	}
	if errs != nil {
		return nil, errs, nil
	}
	def, more := s.extend(def)
	g := compileGrants(def, s.known, servers, more...)
	g.unseen = unseen(f.def.Principal(), servers, s.extensions)
	for _, at := range g.idle() {
		warnings = append(warnings, fields.ErrorAt(f.file, catalog.LineOf(f.refs, at.key), f.id, at.err))
	}
	for _, r := range def.View.Paths {
		if name := literally(r); name != "" {
			warnings = append(warnings, fields.ErrorAt(f.file, 1, f.id, fmt.Errorf(
				"view.paths: %q stands for a name of one letter: for one in brackets write '%s'", r.Pattern, name)))
		}
	}
	slices.SortStableFunc(warnings, byLine)
	return &Agent{def, g, f.file}, nil, warnings
}

// resolve returns a definition of the agent of f with the operator's lists that it protects, and checks the names in file
// against k.
func (s *Snapshot) resolve(def *Definition, f *parsed, refs []catalog.Ref, k known, servers Servers, file string, before bool) (own *Definition, errs, warnings []error) {
	var wrong, unprotected fields.Problems
	for _, r := range refs {
		err := checkRef(r, k, f.id, servers)
		if r.Kind == catalog.ProtectRef {
			unprotected.Add(r.Line, err)
		} else {
			wrong.Add(r.Line, err)
		}
	}
	for _, r := range refs {
		if err := f.def.checkKept(r, s.known.host.Tools); err != nil {
			errs = append(errs, fields.EachError(fields.ErrorAt(file, r.Line, f.id, err))...)
		}
	}
	own, err := def.protectOwn(s.known.protect)
	if err == nil && s.known.lost && def.View.wants(catalog.Everything) {
		err = fmt.Errorf("protect: a list in %s does not load, and \"*\" is all of them: correct what scopefs agents check names", protect.Dir)
	}
	unprotected.Add(catalog.LineOf(refs, "protect"), err)
	if len(unprotected) > 0 { // also if it was there once: without the list the agent could do more
		errs = append(errs, fields.EachError(fields.ErrorAt(file, 1, f.id, unprotected))...)
	}
	wrong = append(wrong, s.known.host.Tools.Twice(refs)...)
	switch {
	case len(wrong) > 0 && before:
		warnings = fields.EachError(fields.ErrorAt(file, 1, f.id, removed(wrong)))
	case len(wrong) > 0:
		errs = append(errs, fields.EachError(fields.ErrorAt(file, 1, f.id, wrong))...)
		slices.SortStableFunc(errs, byLine)
	}
	return own, errs, warnings
}

// literally returns the pattern of a rule with the names in brackets quoted that are whole components of it, such as app/[id]:
// unquoted they stand for one letter. It returns "" if there is none.
func literally(r scope.PathRule) string {
	parts, found := strings.Split(r.Pattern, "/"), false
	for i, part := range parts {
		if bracketed().MatchString(part) {
			parts[i], found = scope.QuotePattern(part), true
		}
	}
	if !found {
		return ""
	}
	return strings.Join(parts, "/")
}

// bracketed matches names that frameworks give directories for a part of an address: [id], [...path] and
// [[...path]].
var bracketed = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\[{1,2}[\w.]{2,}\]{1,2}$`) })
