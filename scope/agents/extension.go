package agents

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// extension is servers for several agents, and agents of its own. It is one of
//
//	{base}/extensions.d/<name>.yaml
//	{base}/extensions.d/<name>/<name>.yaml
//	{base}/extensions.d/<name>/extension.yaml
//	{base}/extensions.d/<name>/gemini-extension.json
//
// with .yml or .yaml, and .json too for the last.
type extension struct {
	file        string // relative to the base directory
	name        string
	description string
	agents      IDs // ids and wildcards of other agents that see its servers
	brings      []broughtAgent
	servers     map[string]extensionServer
	exclude     []catalog.Pattern       // tools that agents of the extension do not have
	ask         []catalog.Pattern       // tools whose calls need approval for them
	settings    []string                // variables that the operator sets in settingsFile
	context     []string                // files whose text agents of the extension have in their prompts
	beside      map[string]*folder.Text // other files of its directory that were read, by name; nil: not there
	refs        []catalog.Ref
	text        *folder.Text
	place       string // identifies the directory: another one has servers of its own
}

// Is reports whether two extensions have the same content.
func (e *extension) is(other *extension) bool {
	return e.text.Is(other.text) && e.place == other.place && maps.EqualFunc(e.beside, other.beside, func(a, b *folder.Text) bool { return a == b || a.Is(b) })
}

// extensionServer is a server and its line in the file.
type extensionServer struct {
	Server
	line int
}

// broughtAgent is an agent defined by an extension.
type broughtAgent struct {
	id     scope.ID
	path   string // the path of its definition, relative to the extension's directory
	public bool   // every agent may name it as a member; otherwise only agents of the extension
	line   int
}

const geminiManifest = "gemini-extension"

// manifestName returns the name of the extension in a file, relative to
// extensions.d. ok is false if the file is not an extension.
func manifestName(rel string) (name string, ok bool) {
	dir, base := path.Split(rel)
	dir = strings.TrimSuffix(dir, "/")
	ext := path.Ext(base)
	stem := strings.TrimSuffix(base, ext)
	yaml := ext == ".yaml" || ext == ".yml"
	switch {
	case strings.HasPrefix(base, ".") || strings.Contains(dir, "/"):
		return "", false
	case dir == "":
		return stem, yaml
	case stem == geminiManifest:
		return dir, yaml || ext == ".json"
	}
	return dir, yaml && (stem == "extension" || stem == dir)
}

// parseExtension parses the text of the extension in a file, relative to
// extensions.d. It is as strict as ParseDefinition. base is the base directory.
// read returns the content of another file of the directory.
func parseExtension(base, rel string, data []byte, read func(name string) (*folder.Text, error)) (*extension, error) {
	e := &extension{file: path.Join(extensionsDir, rel), servers: map[string]extensionServer{}, beside: map[string]*folder.Text{}}
	fail := func(line int, err error) (*extension, error) { return nil, fields.ErrorAt(e.file, line, "", err) }
	name, ok := manifestName(rel)
	e.name = name
	if !ok {
		return fail(0, errors.New("is no extension: name it <name>.yaml, or <name>/gemini-extension.json"))
	}
	if _, err := scope.ParseID(name); err != nil {
		return fail(0, fmt.Errorf("%q is no name of an extension: want 1 to 63 of a-z, 0-9 and '-', not starting with '-'", name))
	}
	if len(data) > frontmatter.MaxKeys {
		return fail(0, fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	if !utf8.Valid(data) {
		return fail(0, errors.New("is not UTF-8: save it as UTF-8"))
	}
	if strings.HasSuffix(rel, ".json") {
		var err error
		if data, err = fields.YAMLOfJSON(data); err != nil {
			return fail(1, err)
		}
	}
	var wrong fields.Problems
	named := false
	var servers []func() error // run after settings, wherever those are
	wrong.Add(1, fields.Parse(data, e.fields(base, rel, name, &named, read, &servers)))
	for _, f := range servers {
		wrong.Add(1, f())
	}
	if strings.HasPrefix(path.Base(rel), geminiManifest) && e.context == nil {
		wrong.Add(1, e.readContext(geminiContext, true, read))
	}
	if wrong == nil && !named {
		wrong.Add(1, fmt.Errorf("name is missing: add name: %s", name))
	}
	if wrong != nil {
		return fail(1, wrong)
	}
	return e, nil
}

// fields returns the keys of an extension. They set servers to a function that reads its servers.
func (e *extension) fields(base, rel, name string, named *bool, read func(string) (*folder.Text, error), servers *[]func() error) map[string]fields.Field {
	gemini := strings.HasPrefix(path.Base(rel), geminiManifest)
	all := map[string]fields.Field{
		"name": func(n *yaml.Node) error {
			*named = true
			var s string
			err := fields.Text(&s)(n)
			if err == nil && s != name {
				err = fmt.Errorf("%q is not what the file is named after: write %s, or rename the file", s, name)
				if strings.Contains(rel, "/") {
					err = fmt.Errorf("%q is not what its directory is named: write %s, or rename the directory", s, name)
				}
			}
			return err
		},
		"description": fields.Prose(&e.description),
		"agents":      func(n *yaml.Node) error { return e.agentsField(n, defaultVisibility(gemini)) },
	}
	for _, key := range []string{"mcp_servers", "mcpServers"} {
		all[key] = func(n *yaml.Node) error {
			*servers = append(*servers, func() error {
				if err := e.readServers(n, base, rel, gemini); err != nil {
					return fields.AtLine(n.Line, fmt.Errorf("%s: %w", key, err))
				}
				return nil
			})
			return nil
		}
	}
	if !gemini {
		delete(all, "mcpServers")
		return all
	}
	all["excludeTools"] = e.excludeField
	all["settings"] = func(n *yaml.Node) error { return e.settingsField(n, read) }
	all["contextFileName"] = func(n *yaml.Node) error { return e.contextField(n, read) }
	for _, key := range geminiIgnored {
		all[key] = func(*yaml.Node) error { return nil }
	}
	return all
}

// agentsField reads a list of agents. A name is an agent that sees the servers.
// A mapping with a path is an agent that the extension defines.
func (e *extension) agentsField(n *yaml.Node, visibility string) error {
	names := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: n.Line}
	var wrong fields.Problems
	wrong.Add(n.Line, fields.EachItem(n, func(item *yaml.Node) error {
		if item.Kind != yaml.MappingNode {
			names.Content = append(names.Content, item)
			return nil
		}
		b := broughtAgent{line: item.Line}
		visible := visibility
		read := fields.Mapping(map[string]fields.Field{
			"name":       fields.Named(&b.id),
			"path":       fields.Text(&b.path),
			"visibility": visibilityField(&visible),
		})
		if err := read(item); err != nil {
			return err
		}
		b.public = visible == visibilityPublic
		switch {
		case b.id == "" || b.path == "":
			return errors.New("agents: an agent has no name or no path: add it, as in {name: auditor, path: agents/auditor.md}")
		case !filepath.IsLocal(b.path) || path.Clean(b.path) != b.path && "./"+path.Clean(b.path) != b.path || !strings.HasSuffix(b.path, ".md"):
			return fmt.Errorf("agents: %q is no file of the extension: write a path to an .md file, relative to %s", b.path, path.Dir(e.file))
		}
		b.path = path.Clean(b.path)
		e.brings = append(e.brings, b)
		return nil
	}))
	wrong.Add(n.Line, catalog.List((*[]string)(&e.agents), "agents", catalog.MemberRef, &e.refs)(names))
	return wrong.Err()
}

func visibilityField(out *string) fields.Field {
	return fields.OneOf(out, visibilityPublic, visibilityPrivate, visibilityInternal)
}

// defaultVisibility returns the visibility of what has none. gemini-cli's is public.
func defaultVisibility(gemini bool) string {
	if gemini {
		return visibilityPublic
	}
	return visibilityPrivate
}

func (e *extension) readServers(n *yaml.Node, base, rel string, gemini bool) error {
	return EachServer(n, func(name string, value *yaml.Node) error {
		s := Server{From: e.file}
		visibility := defaultVisibility(gemini)
		var keys map[string]fields.Field
		if dir := path.Dir(rel); dir != "." {
			s.Dir = path.Join(base, extensionsDir, dir)
			if abs, err := filepath.Abs(s.Dir); err == nil {
				s.Dir = abs
			}
		}
		if gemini {
			keys = s.geminiFields(e.set(), e.settings, &e.refs)
		} else {
			keys = s.Fields(nil, &e.refs)
		}
		keys["visibility"] = visibilityField(&visibility)
		err := fields.Mapping(keys)(value)
		s.Private = visibility != visibilityPublic
		if s.URL == "" {
			for name, value := range e.set() {
				if _, own := s.Env[name]; !own {
					if s.Env == nil {
						s.Env = map[string]string{}
					}
					s.Env[name] = value
				}
			}
		}
		if other, twice := e.servers[name]; twice && err == nil {
			err = fmt.Errorf("is here twice, first in line %d: remove one", other.line)
		}
		e.servers[name] = extensionServer{s, value.Line}
		return err
	})
}

// The visibility of a server of an extension and of an agent that it defines.
const (
	visibilityPublic   = "public"   // every agent
	visibilityPrivate  = "private"  // only agents that the extension names or defines
	visibilityInternal = "internal" // likewise
)

// Reaches reports whether the extension names or defines the agent.
func (e *extension) reaches(p scope.Principal) bool {
	return e.agents.Holds(p) || p.Origin == scope.FromExtension && p.Extension == e.name
}

// audience is the set of agents that see a private agent of an extension.
type audience struct {
	patterns  IDs
	extension string
}

func (e *extension) audience() audience { return audience{e.agents, e.name} }

func (a audience) holds(p scope.Principal) bool {
	return p.ID == "" || p.Origin == scope.FromExtension && p.Extension == a.extension || a.patterns.Holds(p)
}

// visible returns the servers that an agent sees: its own, those of the host,
// and those of extensions that are public or reach it. Its own servers take
// precedence over others with the same name.
func visible(p scope.Principal, own, host Servers, extensions map[string]*extension) (Servers, error) {
	all := Servers{}
	for name, s := range host {
		s.Private, s.From = false, cmp.Or(s.From, HostFile)
		all[name] = s
	}
	for _, file := range slices.Sorted(maps.Keys(extensions)) {
		e := extensions[file]
		for _, name := range slices.Sorted(maps.Keys(e.servers)) {
			s := e.servers[name]
			if _, hidden := own[name]; hidden || s.Private && !e.reaches(p) {
				continue
			}
			if other, ok := all[name]; ok {
				return nil, fields.ErrorAt(file, s.line, p.ID, fmt.Errorf("mcp_servers: agent %q would see two servers %q, the other of %s: rename one", p.ID, name, other.From))
			}
			if s.Dir != "" {
				s.Edition = e.place
			}
			all[name] = s.Server
		}
	}
	maps.Copy(all, own)
	return all, nil
}

// unseen returns the private servers that do not reach an agent, with the file
// of the extension (the first by name). servers are those that the agent sees.
func unseen(p scope.Principal, servers Servers, extensions map[string]*extension) map[string]string {
	all := map[string]string{}
	for _, file := range slices.Backward(slices.Sorted(maps.Keys(extensions))) {
		e := extensions[file]
		for name, s := range e.servers {
			if _, seen := servers[name]; !seen && s.Private && !e.reaches(p) {
				all[name] = file
			}
		}
	}
	return all
}

// Unseen returns the file of the extension that has a private server of that
// name which does not reach the agent, or "". It is for the operator. To the
// agent, such a server does not exist.
func (g *Grants) Unseen(server string) (file string) { return g.orZero().unseen[server] }
