package agents

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// Check parses a file as if it were in agents.d, or in extensions.d if its name
// ends in .yaml, .yml or .json. It returns the errors and warnings that loading
// it would give.
func (s *Snapshot) Check(file string, data []byte) (errs, warnings []error) {
	name := filepath.Base(file)
	if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
		rel := name
		if abs, err := filepath.Abs(file); err == nil && (strings.HasPrefix(name, geminiManifest+".") || strings.HasPrefix(name, "extension.")) {
			rel = filepath.Base(filepath.Dir(abs)) + "/" + name
		}
		read := func(string) (*text, error) { return nil, fs.ErrNotExist }
		if f, err := os.Open(filepath.Dir(file)); err == nil {
			defer f.Close()
			read = func(name string) (*text, error) { return folder{f, ""}.read(name, nil) }
		}
		e, err := parseExtension(s.base, rel, data, read)
		if err != nil {
			return fields.EachError(err), nil
		}
		return fields.EachError(s.checkExtension(e)), e.unset()
	}
	f := &parsed{id: stem(name), file: path.Join(agentsDir, name)}
	for _, known := range s.files { // a definition of an extension keeps its place
		if abs, err := filepath.Abs(file); err == nil && abs == filepath.Join(s.base, known.file) {
			f.id, f.file = known.id, known.file
		}
	}
	f.def, f.refs, f.err = parseDefinition(f.file, f.id, data)
	sum := sha256.Sum256(data)
	agent, errs, warnings := s.agent(f, s.seen[f.file] == hex.EncodeToString(sum[:]))
	return errs, append(warnings, s.emptied(agent, f.refs)...)
}

// checkExtension returns an error for a name that does not exist, and for two
// servers of one name that an agent would see.
func (s *Snapshot) checkExtension(e *extension) error {
	var wrong fields.Problems
	for _, r := range e.refs {
		wrong.Add(r.Line, r.check(s.known, "", nil))
	}
	if wrong != nil {
		return fields.ErrorAt(e.file, 1, "", wrong)
	}
	with := map[string]*extension{}
	maps.Copy(with, s.extensions)
	with[e.file] = e
	for _, name := range s.known.ids {
		var own Servers
		if agent := s.Agents[scope.ID(name)]; agent != nil {
			own = agent.Servers
		}
		if _, err := visible(scope.ID(name), own, s.known.host.Servers, with); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if the pattern matches nothing that the agent sees.
// The error names only what the agent sees.
func (r Ref) check(k known, self scope.ID, servers Servers) error {
	if r.Text == everything && r.kind != presetRef {
		return nil
	}
	switch r.kind {
	case ToolRef:
		return r.checkTool(k.host.Tools, servers)
	case skillRef:
		if !anyWild(r.Text, k.skills) {
			return r.nothing("skill", k.skills, fmt.Sprintf("create %s/%s/SKILL.md", skillsDir, r.Text))
		}
	case serverRef, trustRef:
		names := slices.Sorted(maps.Keys(servers))
		if r.kind == serverRef && !anyWild(r.Text, names) || r.kind == trustRef && !slices.Contains(names, r.Text) {
			return r.nothing("server that the agent can see", names, "define it in mcp_servers")
		}
	case presetRef:
		if k.presets[r.Text] == nil {
			return r.nothing("preset", slices.Sorted(maps.Keys(k.presets)), fmt.Sprintf("create %s/%s.yaml", presetsDir, r.Text))
		}
	case protectRef:
		if k.protect[r.Text] == nil && !builtinProtection(r.Text) {
			names := slices.Collect(maps.Keys(k.protect))
			for _, p := range protections() {
				names = append(names, p.name)
			}
			return r.nothing("list", slices.Sorted(slices.Values(names)), fmt.Sprintf("create %s/%s.yaml", protectDir, r.Text))
		}
	case memberRef:
		if r.Text == string(self) {
			return fmt.Errorf("%s: %q is the agent itself, which is no member of its own: remove it", r.Key, r.Text)
		}
		switch ids := k.named(self, r.Text); {
		case len(ids) > 1:
			return fmt.Errorf("%s: %q is the display name of %s: write the id", r.Key, r.Text, strings.Join(ids, " and "))
		case len(ids) == 1 && ids[0] == string(self):
			return fmt.Errorf("%s: %q is the agent itself, which is no member of its own: remove it", r.Key, r.Text)
		case len(ids) == 1 && k.sees(self, ids[0]):
			return nil // fast path: most patterns are a name, and there may be many agents
		}
		if others := k.others(self); !anyWild(r.Text, others) {
			kind := "other agent"
			if self == "" {
				kind = "agent"
			}
			return r.nothing(kind, others, fmt.Sprintf("define it in %s/%s.md", agentsDir, r.Text))
		}
	}
	return nil
}

func (r Ref) checkTool(tools Tools, servers Servers) error {
	p, err := tools.ParsePattern(r.Text)
	if err != nil || tools.Known(p, servers) {
		return err
	}
	if p.server != "" {
		return r.nothing("server that the agent can see", slices.Sorted(maps.Keys(servers)), "define it in mcp_servers")
	}
	return fmt.Errorf("%s: %q matches no tool: correct it to mcp:SERVER:TOOL or one of %s", r.Key, r.Text, strings.Join(tools.Names(), ", "))
}

// Known reports whether a pattern matches a tool there is, or may be: what
// tools a server has, only the server knows.
func (t Tools) Known(p toolPattern, servers Servers) bool {
	switch {
	case p.all:
		return true
	case p.server == "":
		return anyWild(p.name, t.Names())
	default:
		return anyWild(p.server, slices.Collect(maps.Keys(servers)))
	}
}

// Twice returns an error for each tool that a list names by its name and by an
// alias. Equal spellings were refused when the list was read.
func (t Tools) Twice(refs []Ref) (wrong fields.Problems) {
	lines := map[string]int{}
	for _, r := range refs {
		p, err := t.ParsePattern(r.Text)
		if r.kind != ToolRef || err != nil {
			continue
		}
		if first := lines[r.Key+" "+p.key()]; first > 0 {
			wrong.Add(r.Line, fmt.Errorf("%s: %q is here twice, first in line %d: remove one", r.Key, r.Text, first))
			continue
		}
		lines[r.Key+" "+p.key()] = r.Line
	}
	return wrong
}

// nothing returns an error that a pattern matches nothing of a kind. It lists
// the existing names.
func (r Ref) nothing(kind string, there []string, remedy string) error {
	list := "there is none"
	if len(there) > 0 {
		list = "there is " + strings.Join(there, ", ")
	}
	if strings.Contains(r.Text, "*") {
		remedy = "remove it"
	}
	return fmt.Errorf("%s: %q matches no %s (%s): correct it, or %s", r.Key, r.Text, kind, list, remedy)
}
