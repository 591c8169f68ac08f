package agents

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/protect"
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
		read := func(string) (*folder.Text, error) { return nil, fs.ErrNotExist }
		if f, err := os.Open(filepath.Dir(file)); err == nil {
			defer f.Close()
			read = func(name string) (*folder.Text, error) { return folder.Folder{File: f}.Read(name, nil) }
		}
		e, err := parseExtension(s.base, rel, data, read)
		if err != nil {
			return fields.EachError(err), nil
		}
		return fields.EachError(s.checkExtension(e)), e.unset()
	}
	_, errs, warnings = s.Try(file, data)
	return errs, warnings
}

// Try returns the agent that a definition in agents.d or of an extension would define, nil if it would not load.
func (s *Snapshot) Try(file string, data []byte) (agent *Agent, errs, warnings []error) {
	name := filepath.Base(file)
	f := &parsed{id: stem(name), file: path.Join(agentsDir, name)}
	if abs, err := filepath.Abs(file); err == nil {
		rel, _ := filepath.Rel(s.base, abs)
		for _, known := range s.files { // a definition of an extension keeps its place
			if known.file == rel {
				f.id, f.file = known.id, known.file
			}
		}
	}
	f.def, f.refs, f.err = parseDefinition(f.file, f.id, data)
	f.text = folder.TextOf(data)
	if known := s.files[f.id]; known != nil && known.file == f.file {
		f.trusted = known.trusted
		if f.def != nil && known.def != nil {
			f.def.Extension = known.def.Extension
		}
	}
	agent, errs, warnings = s.agent(f, s.seen)
	return agent, errs, append(warnings, s.emptied(agent, f.refs)...)
}

// checkExtension returns an error for a name that does not exist, and for two
// servers of one name that an agent would see.
func (s *Snapshot) checkExtension(e *extension) error {
	var wrong fields.Problems
	for _, r := range e.refs {
		wrong.Add(r.Line, checkRef(r, s.known, "", nil))
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
		if _, err := visible(s.known.principal(scope.ID(name)), own, s.known.host.Servers, with); err != nil {
			return err
		}
	}
	return nil
}

// checkRef returns an error if the pattern matches nothing that the agent sees.
// The error names only what the agent sees.
func checkRef(r catalog.Ref, k known, self scope.ID, servers Servers) error {
	if r.Text == catalog.Everything && r.Kind != catalog.PresetRef {
		return nil
	}
	switch r.Kind {
	case catalog.ToolRef:
		return checkToolRef(r, k.host.Tools, servers)
	case catalog.SkillRef:
		if !catalog.AnyWild(r.Text, k.skills) {
			return r.Nothing("skill", k.skills, fmt.Sprintf("create %s/%s/SKILL.md", skillsDir, r.Text))
		}
	case catalog.ServerRef, catalog.TrustRef:
		names := slices.Sorted(maps.Keys(servers))
		if r.Kind == catalog.ServerRef && !catalog.AnyWild(r.Text, names) || r.Kind == catalog.TrustRef && !slices.Contains(names, r.Text) {
			return r.Nothing("server that the agent can see", names, "define it in mcp_servers")
		}
	case catalog.PresetRef:
		if k.presets[r.Text] == nil {
			return r.Nothing("preset", slices.Sorted(maps.Keys(k.presets)), fmt.Sprintf("create %s/%s.yaml", hosts.PresetsDir, r.Text))
		}
	case catalog.ProtectRef:
		var names []string
		for _, p := range slices.AppendSeq(slices.Clone(protect.Builtin()), maps.Values(k.protect)) {
			names = append(names, p.Name)
		}
		if r.Text != catalog.Everything && !slices.Contains(names, r.Text) {
			slices.Sort(names)
			return r.Nothing("list", slices.Compact(names), fmt.Sprintf("create %s/%s.yaml", protect.Dir, r.Text))
		}
	case catalog.MemberRef:
		if self == "" { // an extension's list of agents
			var listed []string
			for _, id := range k.ids {
				p := k.principal(scope.ID(id))
				if (IDs{r.Text}).Holds(p) {
					return nil
				}
				listed = append(listed, p.Listed())
			}
			return r.Nothing("agent", listed, fmt.Sprintf("define it in %s/%s.md", agentsDir, r.Text))
		}
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
		if others := k.others(self); !catalog.AnyWild(r.Text, others) {
			return r.Nothing("other agent", others, fmt.Sprintf("define it in %s/%s.md", agentsDir, r.Text))
		}
	}
	return nil
}

func checkToolRef(r catalog.Ref, tools catalog.Tools, servers Servers) error {
	p, err := tools.ParsePattern(r.Text)
	if err != nil || tools.Known(p, slices.Collect(maps.Keys(servers))) {
		return err
	}
	if p.Server != "" {
		return r.Nothing("server that the agent can see", slices.Sorted(maps.Keys(servers)), "define it in mcp_servers")
	}
	if hint := catalog.GeminiHint(r.Text); hint != "" {
		return fmt.Errorf("%s: %q is a name of gemini-cli: %s", r.Key, r.Text, hint)
	}
	if like := tools.Like(r.Text); like != "" {
		return fmt.Errorf("%s: %q matches no tool: did you mean %s", r.Key, r.Text, like)
	}
	return fmt.Errorf("%s: %q matches no tool: correct it to mcp:SERVER:TOOL or one of %s", r.Key, r.Text, strings.Join(tools.Names(), ", "))
}
