// Package protect has lists of files that programs of the host would execute later, such as
// hooks and shell profiles. Definitions name the lists under the key protect.
package protect

import (
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
	for i := range lists {
		lists[i].addTools()
		all = append(all, &lists[i])
	}
	return all
})

// addTools adds the paths of the tools to those of the list.
func (l *List) addTools() {
	for _, tool := range l.Tools {
		l.Paths = append(l.Paths, tool.Paths...)
	}
}

// IsBuiltin reports whether a name is of a list of this package, or all lists.
func IsBuiltin(name string) bool {
	return name == catalog.Everything || slices.ContainsFunc(Builtin(), func(p *List) bool { return p.Name == name })
}

// toolsField reads tools by name.
func toolsField(out *[]Tool) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			t := Tool{Name: name}
			err := fields.Mapping(map[string]fields.Field{
				"everywhere": fields.Switch(&t.Everywhere),
				"source":     fields.Text(&t.Source), "checked": day, "paths": fields.Texts(&t.Paths, "paths", nil),
			})(value)
			*out = append(*out, t)
			return err
		})
	}
}

// day checks a date as 2006-01-02, when a person last compared paths with a source.
func day(n *yaml.Node) error {
	if _, err := time.Parse(time.DateOnly, n.Value); err != nil {
		return fmt.Errorf("is %q: want a date like 2026-11-23", n.Value)
	}
	return nil
}

// parseOwn reads the text of an operator's list. It has paths and tools: git_config names
// what may be set, and would take from the lists of this package.
func parseOwn(file string, data []byte) (*List, error) {
	fail := func(err error) (*List, error) { return nil, fields.ErrorAt(file, 1, "", err) }
	if len(data) > frontmatter.MaxKeys {
		return fail(fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	p := &List{Name: strings.TrimSuffix(path.Base(file), ".yaml")}
	err := fields.Parse(data, map[string]fields.Field{
		"description": fields.Text(&p.Description), "paths": fields.Texts(&p.Paths, "paths", nil), "tools": toolsField(&p.Tools),
	})
	if err != nil {
		return fail(err)
	}
	p.addTools()
	switch {
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
