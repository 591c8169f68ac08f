package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/scope/hosts"
)

// StoreProgram is a store that is a program of the operator's: an MCP server in a sandbox
// of its own. Its sandbox has the read-only system and what is here, and nothing else.
type StoreProgram struct {
	Command     []string // absolute in its sandbox, or in the PATH there
	Tools       []string // that agents may be granted; what else it declares does not exist
	Dir         string   // its HOME, which it may write; "": an empty one that ends with it
	Expose      []string // files and directories of the host that it reads
	Env         map[string]string
	Credentials map[string]*credential.Source // by the variable that has the secret
	Network     hosts.Network
	Timeout     time.Duration // of a call; 0: the default
	Memory      int64         // bytes; 0: the default
	PIDs        int           // 0: the default
}

// programField reads a program by its store's name.
func (s *Stores) programField(name string, n *yaml.Node) error {
	if _, err := scope.ParseID(name); err != nil {
		return fmt.Errorf("%q is no name of a store: write lower-case letters, digits and '-'", name)
	}
	p := &StoreProgram{Network: hosts.Network{Kind: hosts.None}}
	if s.Programs == nil {
		s.Programs = map[string]*StoreProgram{}
	}
	s.Programs[name] = p
	var wrong fields.Problems
	wrong.Add(n.Line, fields.Mapping(map[string]fields.Field{
		"command": fields.Texts(&p.Command, "command", func(word string) error {
			if word == "" && len(p.Command) == 0 || strings.ContainsRune(word, 0) {
				return errors.New("an entry is empty or holds a NUL: write the program, then its arguments")
			}
			return nil
		}),
		"tools": fields.Texts(&p.Tools, "tools", func(name string) error {
			switch {
			case !scoped.IsName(name) || name == catalog.MCP:
				return fmt.Errorf("%q is no name of a tool: write a letter, then letters, digits, '_' and '-'", name)
			case slices.Contains(p.Tools, name):
				return fmt.Errorf("%q is here twice: remove one", name)
			}
			return nil
		}),
		"dir":    absoluteField(&p.Dir),
		"expose": fields.Texts(&p.Expose, "expose", nil),
		"env":    fields.Env(&p.Env, nil),
		"credentials": named(&p.Credentials, func(name string) error {
			if !fields.IsVariable(name) {
				return fmt.Errorf("%q is no name of a variable: want letters, digits and '_'", name)
			}
			return nil
		}, func(out **credential.Source, _ string, value *yaml.Node) error { return fields.Credential(out)(value) }),
		"network": hosts.Field(&p.Network, nil),
		"timeout": fields.Duration(&p.Timeout),
		"limits": fields.Mapping(map[string]fields.Field{
			"memory": fields.Number(&p.Memory, fields.ParseMemory, "!!int", "!!str"),
			"pids":   fields.Number(&p.PIDs, fields.ParseCount, "!!int"),
		}),
	})(n))
	if len(p.Command) == 0 {
		wrong.Add(n.Line, errors.New("command: names no program: write one, then its arguments"))
	}
	if len(p.Tools) == 0 {
		wrong.Add(n.Line, errors.New("tools: is missing: write the names of the program's tools"))
	}
	if p.Network.Rules.Others || len(p.Network.Rules.Ask) > 0 {
		wrong.Add(n.Line, errors.New("network: ask: nobody is asked about a store's connections: write the hosts in allow"))
	}
	return wrong.Err()
}

func absoluteField(out *string) fields.Field {
	return func(n *yaml.Node) error {
		err := fields.Text(out)(n)
		if err == nil && (!filepath.IsAbs(*out) || filepath.Clean(*out) != *out) {
			err = fmt.Errorf("%q is no absolute path without '.' and '..': write one", *out)
		}
		return err
	}
}

// programName reports whether a key of stores is the name of a program.
func programName(name string, value *yaml.Node, known map[string]fields.Field) bool {
	if known[name] != nil || value.Kind != yaml.MappingNode {
		return false
	}
	for i := 0; i+1 < len(value.Content); i += 2 {
		if value.Content[i].Value == "command" {
			return true
		}
	}
	return false
}

// Field reads the key stores.
func (s *Stores) field(n *yaml.Node) error {
	known := s.fields()
	all := maps.Clone(known)
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if name := n.Content[i].Value; programName(name, n.Content[i+1], known) {
			all[name] = func(value *yaml.Node) error { return s.programField(name, value) }
		}
	}
	return fields.Mapping(all)(n)
}

// checkPaths checks the paths of stores, which only the caller of Parse can judge.
func (s Stores) checkPaths(checks Checks) error {
	if s.SQL != nil && s.SQL.Dir != "" && checks.Expose != nil {
		if err := checks.Expose(s.SQL.Dir, false); err != nil {
			return fmt.Errorf("sql: dir: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Programs)) {
		p := s.Programs[name]
		for _, path := range append(slices.Clone(p.Expose), p.Dir) {
			if path == "" || checks.Expose == nil {
				continue
			}
			if err := checks.Expose(path, false); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// Hosts returns what the program may connect to.
func (p *StoreProgram) Hosts() *hosts.Policy { return hosts.Compile(p.Network, nil) }

// The defaults of a program's limits.
const (
	programMemory = 512 << 20
	programPIDs   = 128
)

// Limits returns the memory and the number of processes of the program's sandbox. An
// ordinary user's daemon, which may have no control group, has no defaults: 0 is no limit.
func (p *StoreProgram) Limits(root bool) (memory int64, pids int) {
	if !root {
		return p.Memory, p.PIDs
	}
	return cmp.Or(p.Memory, programMemory), cmp.Or(p.PIDs, programPIDs)
}
