package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/catalog"
)

// geminiIgnored are the keys of a gemini-extension.json that do not affect what agents may do.
var geminiIgnored = []string{"version", "themes", "plan", "migratedTo", "author", "license",
	"homepage", "repository", "keywords", "displayName", "display_name", "commands", "$schema"}

const (
	settingsFile  = ".env"      // values of an extension's settings, which the operator writes
	geminiContext = "GEMINI.md" // read without contextFileName, if it is there
	maxContext    = 64 << 10    // bytes of a context file
)

// geminiFields returns fields that also accept gemini-cli's spelling and
// variables. They ignore trust: only the operator may set it, as in gemini-cli.
func (s *Server) geminiFields(set map[string]string, settings []string, refs *[]catalog.Ref) map[string]fields.Field {
	vars := map[string]string{"extensionPath": s.Dir, "workspacePath": beneath.Alias, "/": "/", "pathSeparator": "/"}
	for _, name := range settings {
		vars[name] = set[name] // "" until the operator sets it
	}
	all := s.Fields(vars, refs)
	all["includeTools"], all["excludeTools"] = all["include_tools"], all["exclude_tools"]
	all["httpUrl"] = all["url"]
	for _, key := range []string{"env", "headers", "url", "httpUrl"} {
		read := all[key]
		all[key] = func(n *yaml.Node) error { return read(braced(n)) }
	}
	all["timeout"] = func(n *yaml.Node) error {
		ms, err := fields.Scalar(n, "milliseconds", "!!int")
		if err == nil {
			s.Timeout, err = fields.ParseDuration(ms + "ms")
		}
		if err == nil && s.Timeout <= 0 {
			err = fmt.Errorf("%q is not above zero: drop the key for the default", ms)
		}
		return err
	}
	all["trust"] = func(*yaml.Node) error { return nil }
	all["description"] = all["trust"]
	return all
}

// braced returns n with $NAME written as ${NAME} in its values.
func braced(n *yaml.Node) *yaml.Node {
	out := *n
	if out.Content = nil; n.Kind == yaml.ScalarNode {
		out.Value = regexp.MustCompile(`\$([A-Za-z_]\w*)`).ReplaceAllString(n.Value, "$${$1}")
	}
	for i, c := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			c = braced(c)
		}
		out.Content = append(out.Content, c)
	}
	return &out
}

// settingsField reads the names of variables that every server of the extension gets, and their
// values from settingsFile. A variable without a value is not set.
func (e *extension) settingsField(n *yaml.Node, read func(string) (*folder.Text, error)) error {
	ignored := func(*yaml.Node) error { return nil }
	err := fields.EachItem(n, func(item *yaml.Node) error {
		var name string
		err := fields.Mapping(map[string]fields.Field{"envVar": fields.Text(&name), "name": ignored, "description": ignored, "sensitive": ignored})(item)
		if err == nil && !fields.IsVariable(name) {
			err = fmt.Errorf("settings: envVar: %q is no name of a variable: want letters, digits and '_'", name)
		}
		e.settings = append(e.settings, name)
		return fields.AtLine(item.Line, err)
	})
	if err != nil {
		return err
	}
	values, err := read(settingsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", settingsFile, err)
	}
	e.beside[settingsFile] = values
	return nil
}

// unset returns a warning for each setting without a value.
func (e *extension) unset() (warnings []error) {
	set := e.set()
	for _, name := range e.settings {
		if _, ok := set[name]; !ok {
			warnings = append(warnings, fields.ErrorAt(e.file, 1, "", fmt.Errorf("settings: %s has no value: write %s=VALUE into %s", name, name, path.Join(path.Dir(e.file), settingsFile))))
		}
	}
	return warnings
}

// set returns the values that the operator has given to settings.
func (e *extension) set() map[string]string {
	all := map[string]string{}
	file := e.beside[settingsFile]
	if file == nil {
		return all
	}
	for line := range strings.Lines(string(file.Data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if name = strings.TrimSpace(strings.TrimPrefix(name, "export ")); !ok || !slices.Contains(e.settings, name) || strings.ContainsRune(value, 0) {
			continue
		}
		value = strings.TrimSpace(value)
		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		all[name] = value
	}
	return all
}

// contextField reads the names of the files that are added to the prompts of the extension's agents.
func (e *extension) contextField(n *yaml.Node, read func(string) (*folder.Text, error)) error {
	if n.Kind != yaml.SequenceNode {
		n = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: n.Line, Content: []*yaml.Node{n}}
	}
	e.context = []string{}
	return fields.EachItem(n, func(item *yaml.Node) error {
		var name string
		if err := fields.Text(&name)(item); err != nil {
			return err
		}
		return e.readContext(name, false, read)
	})
}

func (e *extension) readContext(name string, optional bool, read func(string) (*folder.Text, error)) error {
	if name == "" || name != path.Base(name) || name[0] == '.' {
		return fmt.Errorf("contextFileName: %q is no file of the extension: write a name without directories", name)
	}
	file, err := read(name)
	if missing := errors.Is(err, fs.ErrNotExist); missing && optional {
		e.beside[name] = nil
		return nil
	} else if err == nil && (len(file.Data) > maxContext || !utf8.Valid(file.Data)) {
		err = fmt.Errorf("is larger than %d bytes or not UTF-8: correct it", maxContext)
	}
	if err != nil {
		return fmt.Errorf("contextFileName: %s: %w", name, err)
	}
	e.context, e.beside[name] = append(e.context, name), file
	return nil
}

// excludeField reads the tools that the extension denies to its agents, by their names in
// scopefs or gemini-cli. For one that is denied for some arguments, each call needs approval.
func (e *extension) excludeField(n *yaml.Node) error {
	return fields.EachItem(n, func(item *yaml.Node) error {
		s, err := fields.Scalar(item, "a name, in quotes where need be", "!!str")
		if err != nil {
			return err
		}
		word, _, some := strings.Cut(s, "(")
		names, ours := []string{word}, !strings.HasPrefix(word, catalog.MCPPrefix)
		for _, w := range catalog.GeminiTools() {
			if slices.Contains(strings.Fields(w.Names), strings.TrimPrefix(word, catalog.BuiltinPrefix)) {
				if names, ours = w.Does, false; w.Ours != "" {
					names = append([]string{w.Ours}, w.Does...)
				}
			}
		}
		for _, name := range names {
			p, err := catalog.ParsePattern(name)
			if err != nil {
				return fmt.Errorf("excludeTools: %q %w", name, err)
			}
			p.From = e.file
			if ours {
				e.refs = append(e.refs, catalog.Ref{Line: item.Line, Key: "excludeTools", Kind: catalog.ToolRef, Text: name})
			}
			if some {
				e.ask = append(e.ask, p)
			} else {
				e.exclude = append(e.exclude, p)
			}
		}
		return nil
	})
}

// extend returns a definition with what extensions add to its prompt, and the extensions that
// restrict it: those that name or define the agent, and for the primary all.
func (s *Snapshot) extend(def *Definition) (*Definition, []*extension) {
	var with []*extension
	var prompt string
	for _, file := range slices.Sorted(maps.Keys(s.extensions)) {
		e := s.extensions[file]
		// What narrows the agent of a directory narrows the team of its repository, too. The rest is not for the team.
		of := def.Principal()
		if def.TeamOf != "" {
			of = scope.Principal{ID: def.TeamOf, Origin: scope.FromOperator}
		}
		if !e.reaches(of) && (s.known.host.Primary != of.ID || of.Origin != scope.FromOperator) {
			continue
		}
		if with = append(with, e); def.TeamOf != "" {
			continue
		}
		for _, name := range e.context {
			prompt += "\n\n" + strings.TrimSpace(string(e.beside[name].Data))
		}
	}
	if prompt == "" {
		return def, with
	}
	out := *def
	out.Prompt = strings.TrimSpace(out.Prompt + prompt)
	return &out, with
}
