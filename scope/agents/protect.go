package agents

import (
	"embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope"
)

//go:embed protect/*.yaml
var protectFiles embed.FS

// protection is an entry of protect: files that the host would execute later.
type protection struct {
	name, description string
	paths             []string
	hooks             bool     // scope.GitRules.Hooks
	config            []string // scope.GitRules.Config
}

// protections returns the lists of this package, by name. Nobody changes them.
var protections = sync.OnceValue(func() (all []protection) {
	entries, _ := protectFiles.ReadDir("protect") // cannot fail: it is in the program
	for _, entry := range entries {
		data, _ := protectFiles.ReadFile("protect/" + entry.Name())
		p := protection{name: strings.TrimSuffix(entry.Name(), ".yaml")}
		err := parseYAML(data, map[string]field{
			"description": textField(&p.description),
			"paths":       textsField(&p.paths, "paths", nil),
			"git_hooks":   switchField(&p.hooks),
			"git_config":  textsField(&p.config, "git_config", nil),
		})
		if err != nil {
			panic(err) // a test reads each of them
		}
		all = append(all, p)
	}
	return all
})

// protectField reads a list of names of protections; "*" is all.
func protectField(view *ViewSpec) field {
	return func(n *yaml.Node) error {
		var wanted []string
		names := []string{"*"}
		for _, p := range protections() {
			names = append(names, p.name)
		}
		err := textsField(&wanted, "protect", func(name string) error {
			if !slices.Contains(names, name) {
				return fmt.Errorf("%q is nothing to protect: want some of %s", name, strings.Join(names, ", "))
			}
			return nil
		})(n)
		for _, p := range protections() {
			if err == nil && (slices.Contains(wanted, p.name) || slices.Contains(wanted, "*")) {
				view.protect(p)
			}
		}
		return err
	}
}

func (v *ViewSpec) protect(p protection) {
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
