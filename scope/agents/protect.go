package agents

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
)

// protectDir is the directory of a base directory that has the operator's lists for protect.
const protectDir = "protect.d"

//go:embed protect/*.yaml
var protectFiles embed.FS

// protection is an entry of protect: files that the host would execute later. It is one file:
// {base}/protect.d/<name>.yaml, or one of this package.
type protection struct {
	name, description string
	paths             []string // of the list itself and of its tools
	tools             []hostTool
	hooks             bool     // scope.GitRules.Hooks
	config            []string // scope.GitRules.Config: the keys that may be set
}

// hostTool is a program of the host, with the names of the files that it executes or that
// name what it executes.
type hostTool struct {
	name    string
	source  string // the page of its documentation
	checked string // when a person last compared paths with it, as 2006-01-02, or ""
	paths   []string
}

// protections returns the lists of this package, by name. Nobody changes them.
var protections = sync.OnceValue(func() (all []*protection) {
	entries, _ := protectFiles.ReadDir("protect") // cannot fail: it is in the program
	for _, entry := range entries {
		data, _ := protectFiles.ReadFile("protect/" + entry.Name())
		p, err := parseProtection(entry.Name(), data, func(p *protection) map[string]fields.Field {
			return map[string]fields.Field{"git_hooks": fields.Switch(&p.hooks), "git_config": fields.Texts(&p.config, "git_config", nil)}
		})
		if err != nil {
			panic(err) // a test reads each of them
		}
		all = append(all, p)
	}
	return all
})

// builtinProtection reports whether a name is of a list of this package, or all lists.
func builtinProtection(name string) bool {
	return name == everything || slices.ContainsFunc(protections(), func(p *protection) bool { return p.name == name })
}

// parseProtection reads the text of a list. more has keys beside description and paths.
func parseProtection(file string, data []byte, more func(*protection) map[string]fields.Field) (*protection, error) {
	p := &protection{name: strings.TrimSuffix(path.Base(file), ".yaml")}
	keys := more(p)
	keys["description"], keys["paths"] = fields.Text(&p.description), fields.Texts(&p.paths, "paths", nil)
	keys["tools"] = toolsField(&p.tools)
	if err := fields.Parse(data, keys); err != nil {
		return nil, fields.ErrorAt(file, 1, "", err)
	}
	for _, tool := range p.tools {
		p.paths = append(p.paths, tool.paths...)
	}
	return p, nil
}

// toolsField reads hostTools by name.
func toolsField(out *[]hostTool) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			t := hostTool{name: name}
			err := fields.Mapping(map[string]fields.Field{
				"source": fields.Text(&t.source), "checked": dayField(&t.checked), "paths": fields.Texts(&t.paths, "paths", nil),
			})(value)
			*out = append(*out, t)
			return err
		})
	}
}

// dayField reads a date as 2006-01-02.
func dayField(out *string) fields.Field {
	return func(n *yaml.Node) error {
		if _, err := time.Parse(time.DateOnly, n.Value); err != nil {
			return fmt.Errorf("is %q: want a date like 2026-11-23", n.Value)
		}
		*out = n.Value
		return nil
	}
}

// parseOwnProtection reads the text of an operator's list. It has paths and tools: git_config names
// what may be set, and would take from the lists of this package.
func parseOwnProtection(file string, data []byte) (*protection, error) {
	fail := func(err error) (*protection, error) { return nil, fields.ErrorAt(file, 1, "", err) }
	if len(data) > frontmatter.MaxKeys {
		return fail(fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	p, err := parseProtection(file, data, func(*protection) map[string]fields.Field { return map[string]fields.Field{} })
	switch {
	case err != nil:
		return nil, err
	case !isPlainName(p.name, maxPresetName):
		return fail(fmt.Errorf("%q is no name of a list: write letters, digits, '-', '_' and '.'", p.name))
	case builtinProtection(p.name):
		return fail(errors.New("has the name of a list of scopefs: give it another one"))
	case len(p.paths) == 0:
		return fail(errors.New("protects nothing: add paths"))
	}
	if _, err := scope.Compile(scope.PolicySpec{Protect: []scope.Protect{{Name: p.name, Paths: p.paths}}}); err != nil {
		return fail(err)
	}
	return p, nil
}

// readProtections reads the operator's lists, which add to those of this package and replace
// none of them. It keeps the last good list of a file that does not load; lost reports whether
// there is a file without one.
func readProtections(base string, last map[string]*protection) (own map[string]*protection, lost bool, errs []error) {
	own, errs = readOwn(base, protectDir, parseOwnProtection, last)
	for _, err := range errs {
		bad, ok := errors.AsType[*fields.FileError](err)
		lost = lost || !ok || own[strings.TrimSuffix(path.Base(bad.File), ".yaml")] == nil
	}
	return own, lost, errs
}

// protectField reads a list of names of protections; "*" is all. It adds those of this package
// to the view, and appends the operator's to refs.
func protectField(view *ViewSpec, refs *[]Ref) fields.Field {
	return func(n *yaml.Node) error {
		if err := ListField(&view.lists, "protect", protectRef, refs)(n); err != nil {
			return err
		}
		for _, p := range protections() {
			if view.wants(p.name) {
				view.protect(p)
			}
		}
		return nil
	}
}

// wants reports whether the key protect has a list, or all.
func (v *ViewSpec) wants(name string) bool {
	return slices.Contains(v.lists, name) || slices.Contains(v.lists, everything)
}

// protectOwn returns a copy of the definition with the operator's lists that it wants. The copy
// has no names of lists, so that definitions with equal rules are equal.
func (d *Definition) protectOwn(own map[string]*protection) (*Definition, error) {
	if len(d.View.lists) == 0 {
		return d, nil
	}
	all := *d
	all.View.Protect = slices.Clone(d.View.Protect)
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if all.View.wants(name) {
			all.View.protect(own[name])
		}
	}
	all.View.lists = nil
	_, err := scope.Compile(all.View.PolicySpec())
	return &all, err
}

func (v *ViewSpec) protect(p *protection) {
	if p.paths != nil {
		v.Protect = append(v.Protect, scope.Protect{Name: p.name, Paths: p.paths})
	}
	if p.hooks || p.config != nil {
		if v.Git == nil {
			v.Git = &scope.GitRules{}
		}
		v.Git.Hooks = v.Git.Hooks || p.hooks
		v.Git.Config = append(v.Git.Config, p.config...)
	}
}
