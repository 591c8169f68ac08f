// Package protect has lists of files that programs of the host would execute later, such as
// hooks and shell profiles. Definitions name the lists under the key protect.
package protect

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// Dir is the directory of a base directory that has the operator's lists for protect.
const Dir = "protect.d"

//go:embed lists/*.yaml
var files embed.FS

// List is an entry of protect: files that the host would execute later. It is one file: protect.d/<name>.yaml of a base
// directory or of a user's settings, or one of this package.
type List struct {
	Name, Description string
	File              string   // relative to the base directory, absolute in a user's settings; "": of this package
	Paths             []string // of the list itself and of its tools
	Tools             []Tool
	Packages          bool     // installed packages may have these names, but for those of tools that are Everywhere
	Hooks             bool     // scope.GitRules.Hooks
	Config            []string // scope.GitRules.Config: the keys that may be set
}

// Tool is a program of the host, with the names of the files that it executes or that
// name what it executes.
type Tool struct {
	Name       string
	Source     string // the page of its documentation
	checked    string // when a person last compared paths with it, as 2006-01-02, or ""
	Paths      []string
	Everywhere bool // see List.Packages
}

// Rules returns the patterns of the list, for a policy.
func (l *List) Rules() (rules []scope.Protect) {
	everywhere := scope.Protect{Name: l.Name, Paths: l.Paths}
	if l.Packages {
		free := scope.Protect{Name: l.Name, Packages: true}
		everywhere.Paths = nil
		for _, tool := range l.Tools {
			to := &free
			if tool.Everywhere {
				to = &everywhere
			}
			to.Paths = append(to.Paths, tool.Paths...)
		}
		rules = append(rules, free)
	}
	if everywhere.Paths != nil {
		rules = append(rules, everywhere)
	}
	return rules
}

// Builtin returns the lists of this package, by name. Nobody changes them.
var Builtin = sync.OnceValue(func() (all []*List) {
	entries, _ := files.ReadDir("lists") // cannot fail: it is in the program
	for _, entry := range entries {
		data, _ := files.ReadFile("lists/" + entry.Name())
		p, err := parse(entry.Name(), data, func(p *List) map[string]fields.Field {
			return map[string]fields.Field{
				"packages": fields.Switch(&p.Packages), "git_hooks": fields.Switch(&p.Hooks),
				"git_config": fields.Texts(&p.Config, "git_config", nil),
			}
		})
		if err != nil {
			panic(err) // a test reads each of them
		}
		all = append(all, p)
	}
	return all
})

// IsBuiltin reports whether a name is of a list of this package, or all lists.
func IsBuiltin(name string) bool {
	return name == catalog.Everything || slices.ContainsFunc(Builtin(), func(p *List) bool { return p.Name == name })
}

// parse reads the text of a list. more has keys beside description and paths.
func parse(file string, data []byte, more func(*List) map[string]fields.Field) (*List, error) {
	p := &List{Name: strings.TrimSuffix(path.Base(file), ".yaml")}
	keys := more(p)
	keys["description"], keys["paths"] = fields.Text(&p.Description), fields.Texts(&p.Paths, "paths", nil)
	keys["tools"] = toolsField(&p.Tools)
	if err := fields.Parse(data, keys); err != nil {
		return nil, fields.ErrorAt(file, 1, "", err)
	}
	for _, tool := range p.Tools {
		p.Paths = append(p.Paths, tool.Paths...)
	}
	return p, nil
}

// toolsField reads tools by name.
func toolsField(out *[]Tool) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			t := Tool{Name: name}
			err := fields.Mapping(map[string]fields.Field{
				"everywhere": fields.Switch(&t.Everywhere),
				"source":     fields.Text(&t.Source), "checked": dayField(&t.checked), "paths": fields.Texts(&t.Paths, "paths", nil),
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

// parseOwn reads the text of an operator's list. It has paths and tools: git_config names
// what may be set, and would take from the lists of this package.
func parseOwn(file string, data []byte) (*List, error) {
	fail := func(err error) (*List, error) { return nil, fields.ErrorAt(file, 1, "", err) }
	if len(data) > frontmatter.MaxKeys {
		return fail(fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	p, err := parse(file, data, func(*List) map[string]fields.Field { return map[string]fields.Field{} })
	switch {
	case err != nil:
		return nil, err
	case !fields.IsPlainName(p.Name, folder.MaxName):
		return fail(fmt.Errorf("%q is no name of a list: write letters, digits, '-', '_' and '.'", p.Name))
	case IsBuiltin(p.Name):
		return fail(errors.New("has the name of a list of scopefs: give it another one"))
	case len(p.Paths) == 0:
		return fail(errors.New("protects nothing: add paths"))
	}
	p.File = file
	if _, err := scope.Compile(scope.PolicySpec{Protect: []scope.Protect{{Name: p.Name, Paths: p.Paths}}}); err != nil {
		return fail(err)
	}
	return p, nil
}

// Read reads the lists of a base directory and of a user's settings, by file. They add to those of this package and to one
// another: of two with one name both hold. Read keeps the last good list of a file that does not load; lost reports whether
// there is a file without one.
func Read(base, user string, last map[string]*List) (own map[string]*List, lost bool, errs []error) {
	own, errs = folder.ReadFiles(base, user, Dir, parseOwn, last)
	for _, err := range errs {
		bad, ok := errors.AsType[*fields.FileError](err)
		lost = lost || !ok || own[bad.File] == nil
	}
	return own, lost, errs
}
