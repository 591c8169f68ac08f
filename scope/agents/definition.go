package agents

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope"
)

// Definition is what {base}/agents.d/<id>.md says about an agent.
type Definition struct {
	Name        scope.ID
	DisplayName string // for people; "" is the name
	Description string
	User        string // a name, a uid or uid:gid; "" is the owner of the prefix
	Identity    Identity
	View        ViewSpec
	Limits      Limits
	Network     Network
	Durable     *bool  // a change by a file tool is on the disk before its answer; nil is as the host says
	Prompt      string // the body, without the blank space around it
	Reach              // all that is not a file
}

// ViewSpec is how an agent sees its files.
type ViewSpec struct {
	Access    scope.Access
	Paths     []scope.PathRule // in the order of the file
	Hardlinks scope.Hardlinks
	Data      DataPath
	Record    scope.Record
	Cache     Cache

	// AllowOther lets others than the agent's user in, as far as the modes and
	// ACLs of the files allow. XAttrs gives files extended attributes.
	AllowOther, XAttrs bool
}

// PolicySpec returns the part that Compile takes.
func (v ViewSpec) PolicySpec() scope.PolicySpec {
	return scope.PolicySpec{Access: v.Access, Paths: v.Paths, Hardlinks: v.Hardlinks}
}

// Limits bounds what an agent may use. Zero is no limit for the first four, and the
// default for the others.
type Limits struct {
	Memory  int64         // bytes, of all sandboxes of the agent and its view
	PIDs    int           // of each sandbox
	CPU     float64       // processors, of all sandboxes of the agent and its view
	Timeout time.Duration // of a command

	OpenFiles  int   // files and directories that are open in the view at a time
	Links      int   // names of a file, when the agent adds one
	ViewMemory int64 // bytes of the view's tables
}

// The defaults of limits of a view.
const (
	DefaultOpenFiles  = 16_384
	DefaultLinks      = 4096
	DefaultViewMemory = 512 << 20
)

// View returns the limits of the agent's view, with defaults.
func (l Limits) View() (openFiles, links int, memory int64) {
	return cmp.Or(l.OpenFiles, DefaultOpenFiles), cmp.Or(l.Links, DefaultLinks), cmp.Or(l.ViewMemory, DefaultViewMemory)
}

// Identity says as whom file operations are done.
type Identity string

// The identities.
const (
	IdentityAgent  Identity = "agent"  // the agent's user, the default
	IdentityCaller Identity = "caller" // whoever makes the system call
)

// DataPath says how bytes get to and from an open file.
type DataPath string

// The data paths.
const (
	DataPassthrough DataPath = "passthrough" // by the kernel, the default
	DataMediated    DataPath = "mediated"    // through the view
)

// Cache says what the kernel may remember of a view's names and attributes.
type Cache string

// The caches.
const (
	CacheCoherent Cache = "coherent" // all, for as long as nobody changes it, the default
	CacheNone     Cache = "none"     // nothing
)

// Network is what a sandbox sees of the network.
type Network string

// The networks.
const (
	NetworkNone Network = "none" // the default
	NetworkHost Network = "host"
)

// Bounds, in bytes, on a definition and on the YAML it starts with.
const (
	maxDefinition  = 1 << 20
	maxFrontmatter = 64 << 10
)

// ParseDefinition reads the text of the definition in file, of which only the
// base name counts: it is the agent's id and ".md". Nothing is guessed or
// skipped: an unknown or repeated key, a value of the wrong type and a pattern
// that Compile refuses are errors, of type *DefinitionError, or DefinitionErrors
// for more than one.
//
// Whether a pattern of a list matches anything is for Load to find out. ${VAR}
// in mcp_servers is replaced from our own environment.
func ParseDefinition(file string, text []byte) (*Definition, error) {
	name := filepath.Base(file)
	def, _, err := parseDefinition(path.Join(agentsDir, name), stem(name), text)
	if err != nil {
		return nil, err
	}
	return def, nil
}

// parseDefinition reads the definition of an agent in a file, relative to the
// base directory. It also returns what has to match, and both as far as they
// could be read beside an error.
func parseDefinition(file string, id scope.ID, text []byte) (*Definition, []ref, error) {
	fail := func(line int, err error) (*Definition, []ref, error) {
		return nil, nil, wrongAt(file, line, id, err)
	}
	if !strings.HasSuffix(file, ".md") {
		return fail(0, errors.New("is no definition: name it <id>.md"))
	}
	if _, err := scope.ParseID(string(id)); err != nil {
		return fail(0, err)
	}
	if len(text) > maxDefinition {
		return fail(0, fmt.Errorf("is larger than %d bytes: shorten it", maxDefinition))
	}
	if !utf8.Valid(text) {
		return fail(0, errors.New("is not UTF-8: save it as UTF-8"))
	}
	front, body, err := Frontmatter(text)
	if err != nil {
		return fail(1, err)
	}
	def := &Definition{
		Identity: IdentityAgent,
		View:     ViewSpec{Hardlinks: scope.HardlinksAllow, Data: DataPassthrough, Cache: CacheCoherent},
		Network:  NetworkNone,
		Prompt:   string(bytes.TrimSpace(body)),
	}
	var refs []ref
	var wrong problems
	named := false
	wrong.add(1, parseYAML(front, def.fields(file, id, &named, &refs)))
	if wrong == nil && !named {
		wrong.add(1, fmt.Errorf("name is missing: add name: %s", id))
	}
	if wrong == nil {
		_, err := scope.Compile(def.View.PolicySpec())
		wrong.add(1, err)
	}
	if wrong != nil {
		return def, refs, wrongAt(file, 1, id, wrong)
	}
	return def, refs, nil
}

// Frontmatter cuts a text at its first two "---" lines. The first of them is left
// in front as an empty line, so that YAML counts lines as the file does. A byte
// order mark before it, as some editors write, is dropped. Its errors say "what:
// remedy".
func Frontmatter(text []byte) (front, body []byte, err error) {
	const mark = "---"
	at := 0
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil, errors.New("is empty: put the keys between two --- lines, name at least")
	}
	for line := range bytes.Lines(text) {
		switch isMark := string(bytes.TrimRight(line, " \t\r\n")) == mark; {
		case at == 0 && !isMark:
			return nil, nil, errors.New("does not start with a --- line: put the keys between two of them")
		case at > maxFrontmatter:
			return nil, nil, fmt.Errorf("has more than %d bytes of keys: shorten them, or add the second --- line", maxFrontmatter)
		case at > 0 && isMark:
			return text[len(mark):at], text[at+len(line):], nil
		}
		at += len(line)
	}
	return nil, nil, errors.New("has no second --- line: end the keys with one")
}
