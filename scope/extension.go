package scope

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// extension is {base}/extensions.d/<name>.yaml: servers for several agents.
type extension struct {
	name        string
	description string
	agents      []string // ids and wildcards
	servers     map[string]extensionServer
	refs        []ref
}

// extensionServer is a server, and the line it starts at.
type extensionServer struct {
	Server
	line int
}

// file is where the extension stands, relative to the base directory.
func (e *extension) file() string { return path.Join(extensionsDir, e.name+".yaml") }

// parseExtension reads the text of the extension in file, a name in
// extensions.d. It is as strict as a definition.
func parseExtension(file string, text []byte, k known) (*extension, error) {
	stem := strings.TrimSuffix(file, ".yaml")
	fail := func(line int, err error) (*extension, error) {
		return nil, wrongAt(path.Join(extensionsDir, file), line, "", err)
	}
	if _, err := ParseID(stem); err != nil {
		return fail(0, fmt.Errorf("%q is no name of an extension: want 1 to 63 of a-z, 0-9 and '-', not starting with '-'", stem))
	}
	if len(text) > maxFrontmatter {
		return fail(0, fmt.Errorf("is larger than %d bytes: shorten it", maxFrontmatter))
	}
	if !utf8.Valid(text) {
		return fail(0, errors.New("is not UTF-8: save it as UTF-8"))
	}
	e := &extension{servers: map[string]extensionServer{}}
	if err := parseYAML(text, e.fields(stem)); err != nil {
		return fail(1, err)
	}
	if e.name == "" {
		return fail(1, fmt.Errorf("name is missing: add name: %s", stem))
	}
	for _, r := range e.refs {
		if err := r.check(k, "", nil); err != nil {
			return fail(r.line, err)
		}
	}
	return e, nil
}

func (e *extension) fields(stem string) map[string]field {
	return map[string]field{
		"name": func(n *yaml.Node) error {
			err := textField(&e.name)(n)
			if err == nil && e.name != stem {
				err = fmt.Errorf("%q is not what the file is named after: write %s, or rename the file", e.name, stem)
			}
			return err
		},
		"description": textField(&e.description),
		"agents":      listField(&e.agents, "agents", memberRef, &e.refs),
		"mcp_servers": func(n *yaml.Node) error {
			return eachServer(n, func(name string, value *yaml.Node) error {
				s := Server{From: path.Join(extensionsDir, stem+".yaml")}
				visibility := visibilityPrivate
				fields := s.fields()
				fields["visibility"] = oneOfField(&visibility, visibilityPublic, visibilityPrivate)
				err := mappingField(fields)(value)
				s.Private = visibility == visibilityPrivate
				e.servers[name] = extensionServer{s, value.Line}
				return err
			})
		},
	}
}

// Whom a server of an extension reaches.
const (
	visibilityPublic  = "public"  // every agent
	visibilityPrivate = "private" // those that the extension names, the default
)

// reaches reports whether the extension names the agent.
func (e *extension) reaches(id ID) bool {
	return slices.ContainsFunc(e.agents, func(pattern string) bool { return wild(pattern, string(id)) })
}

// readExtensions reads {base}/extensions.d/*.yaml. What does not load is taken
// from last, where it is as it was.
func readExtensions(base string, k known, last map[string]*extension) (map[string]*extension, []error) {
	dir, err := openFolder(base, extensionsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return last, []error{&DefinitionError{File: extensionsDir, Err: err}}
	}
	defer dir.Close()
	names, err := dir.names(".yaml")
	if err != nil {
		return last, []error{&DefinitionError{File: extensionsDir, Err: err}}
	}
	all := map[string]*extension{}
	var errs []error
	for _, name := range names {
		stem := strings.TrimSuffix(name, ".yaml")
		text, err := dir.read(name)
		if err != nil {
			err = wrongAt(path.Join(extensionsDir, name), 0, "", err)
		}
		var e *extension
		if err == nil {
			e, err = parseExtension(name, text, k)
		}
		if err != nil {
			errs = append(errs, err)
			e = last[stem]
		}
		if e != nil {
			all[stem] = e
		}
	}
	return all, errs
}

// visible returns the servers that an agent can see beside its own: those of
// the host, and of extensions what is public or reaches it.
func visible(id ID, host Servers, extensions map[string]*extension) (Servers, error) {
	all := Servers{}
	for name, s := range host {
		s.Private, s.From = false, hostFile
		all[name] = s
	}
	for _, stem := range slices.Sorted(maps.Keys(extensions)) {
		e := extensions[stem]
		for _, name := range slices.Sorted(maps.Keys(e.servers)) {
			s := e.servers[name]
			if s.Private && !e.reaches(id) {
				continue
			}
			if other, ok := all[name]; ok {
				return nil, wrongAt(e.file(), s.line, id, fmt.Errorf("mcp_servers: agent %q would see two servers %q, the other of %s: rename one", id, name, other.From))
			}
			all[name] = s.Server
		}
	}
	return all, nil
}
