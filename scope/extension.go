package scope

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// extension is {base}/extensions.d/<name>.yaml: servers for several agents.
type extension struct {
	name        string
	description string
	agents      []string // ids and wildcards
	servers     map[string]extensionServer
	refs        []ref
	text        *text
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
// from last, where it is as it was, and so is what has not changed when what
// there is to match is the same.
func (s *Snapshot) readExtensions(base string, last *Snapshot, same bool) []error {
	fail := func(err error) []error {
		s.extensions = last.extensions
		return []error{&DefinitionError{File: extensionsDir, Err: err}}
	}
	dir, err := openFolder(base, extensionsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	if s.extendDir, err = stampOf(int(dir.Fd()), ""); err != nil {
		return fail(err)
	}
	names, err := dir.names(".yaml")
	if err != nil {
		return fail(err)
	}
	s.extensions = map[string]*extension{}
	var errs []error
	for _, name := range names {
		stem := strings.TrimSuffix(name, ".yaml")
		old := last.extensions[stem]
		e, err := readExtension(dir, name, s.known, old, same)
		if err != nil {
			errs = append(errs, err)
			e = old
			s.extendDir.taken = time.Time{} // proves nothing of this file
		}
		if e != nil {
			s.extensions[stem] = e
		}
	}
	return errs
}

func readExtension(dir folder, name string, k known, old *extension, same bool) (*extension, error) {
	var was *text
	if old != nil {
		was = old.text
	}
	now, err := dir.read(name, was)
	if err != nil {
		return nil, wrongAt(path.Join(extensionsDir, name), 0, "", err)
	}
	if same && now.is(was) {
		e := *old
		e.text = now
		return &e, nil
	}
	e, err := parseExtension(name, now.data, k)
	if err == nil {
		e.text = now
	}
	return e, err
}

// currentExtensions reports whether readExtensions is certain to find nothing
// new.
func (s *Snapshot) currentExtensions(base string) bool {
	if !s.extendDir.stillIn(base, extensionsDir) {
		return false
	}
	for stem, e := range s.extensions {
		now, err := stampOf(unix.AT_FDCWD, filepath.Join(base, extensionsDir, stem+".yaml"))
		if err != nil || !e.text.still(now) {
			return false
		}
	}
	return true
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
