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

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Definition is the content of {base}/agents.d/<id>.md.
type Definition struct {
	Name        scope.ID
	DisplayName string // for people; "" means Name
	Description string
	Dir         string   // the directory that the view is of, absolute and clean; "" means {base}/agents/<name>
	Branch      scope.ID // the agent of which this is a branch, with its directory and everything else; "" for none
	TeamOf      scope.ID // the agent of the directory whose repository defines this one; "": the operator does
	RootOf      scope.ID // the agent that has the directory beside its own: see Root; "" for none
	Lent        bool     // only sandboxes that a command names have the root
	Extension   string   // the extension that defines the agent; "": none
	Home        scope.ID // the agent whose HOME the view serves; "": it serves no HOME
	User        string   // a name, a uid or uid:gid; "" means the owner of the agent's directory
	Identity    Identity
	Placement   Placement
	View        ViewSpec
	History     History
	Limits      Limits
	Network     hosts.Network // without a Kind if the key is absent
	Keep        Keep
	SSHKeys     map[string]KeyUse `key:"ssh_keys"` // of the user's SSH agent, by fingerprint: what the agent's commands may use them for
	Devices     []string          // of the host, for the agent's sandboxes: names such as gpu, and paths below /dev
	Env         map[string]string // of the agent's sandboxes. It may hold secrets, which are not for logs
	Model       Model
	Durable     *bool  // file tools sync a change before they respond; nil means the host's setting
	Prompt      string // the body, without surrounding white space
	Reach              // everything except files
}

// Model is what a definition says of the model of its agent. scopefs calls no model: it gives these values to the
// runner of a task. The zero value says nothing.
type Model struct {
	Kind        string        // "local" or ""
	Name        string        // of the key model
	Temperature *float64      // from 0 to 2
	MaxTurns    int           // 0 means no limit
	Timeout     time.Duration // of a task, which ends then; 0 means no limit
}

// ViewSpec configures an agent's view of its files.
type ViewSpec struct {
	Access    scope.Access
	Paths     []scope.PathRule // in the order of the file
	Hardlinks scope.Hardlinks
	Protect   []scope.Protect // of the key protect
	Git       *scope.GitRules // likewise
	lists     []string        // the names of the key protect, until Load resolves them
	holds     bool            // the answer of the key protect, likewise
	Data      DataPath
	Record    scope.Record
	Cache     Cache
	Changes   Changes
	Roots     []Root // further directories, in the order of the file
	Closed    bool   // of a root alone: see scope.PolicySpec

	// AllowOther admits users other than the agent's, subject to the modes and
	// ACLs of the files. XAttrs enables extended attributes.
	AllowOther bool `key:"allow_other"`
	XAttrs     bool
}

// PolicySpec returns the part of the spec for scope.Compile.
func (v ViewSpec) PolicySpec() scope.PolicySpec {
	return scope.PolicySpec{Access: v.Access, Paths: v.Paths, Hardlinks: v.Hardlinks, Protect: v.Protect, Git: v.Git, Closed: v.Closed}
}

// Below returns an agent with the same grants whose view is the directory to below its own, dir; with a directory elsewhere it keeps
// its rules.
func (a *Agent) Below(dir, to string) *Agent {
	def := *a.Definition
	def.Dir = to
	if rel, err := filepath.Rel(dir, to); err == nil && filepath.IsLocal(rel) && rel != "." {
		def.View.setPolicy(specBelow(def.View.PolicySpec(), rel))
	}
	return &Agent{Definition: &def, Grants: a.Grants, File: a.File}
}

func (v *ViewSpec) setPolicy(s scope.PolicySpec) {
	v.Access, v.Paths, v.Hardlinks, v.Protect, v.Git, v.Closed = s.Access, s.Paths, s.Hardlinks, s.Protect, s.Git, s.Closed
}

// Limits bounds the resources of an agent. Zero means no limit for the first
// four, and the default for the others.
type Limits struct {
	Memory  int64         // bytes, of all sandboxes of the agent and its view
	PIDs    int           // of each sandbox
	CPU     float64       // processors, of all sandboxes of the agent and its view
	Timeout time.Duration // of a command

	OpenFiles  int   `key:"open_files"` // files and directories open in the view at one time
	Links      int   // names of a file, when the agent adds a name
	ViewMemory int64 `key:"view_memory"` // bytes of the view's tables

	Disk  int64 // bytes that the agent's files take together: see Limits.Quota; 0: no limit
	Files int   // objects; 0: one for each 4 KiB of Disk, or no limit
}

// The default limits of a view.
const (
	DefaultOpenFiles  = 16_384
	DefaultLinks      = 4096
	DefaultViewMemory = 512 << 20
)

// HomeOf returns the definition of the view that serves an agent's HOME, a directory of the host, and counts it.
func HomeOf(def *Definition, name scope.ID, dir string) *Definition {
	return &Definition{Name: name, Home: def.Name, Dir: dir, User: def.User, Identity: IdentityAgent, Limits: def.Limits,
		View: ViewSpec{Changes: ChangesDirect, XAttrs: true}}
}

// Quota returns how many bytes and objects the agent may have; 0 is no limit.
func (l Limits) Quota() (bytes, files int64) { return l.Disk, cmp.Or(int64(l.Files), l.Disk/4096) }

// View returns the limits of the agent's view, with defaults set.
func (l Limits) View() (openFiles, links int, memory int64) {
	return cmp.Or(l.OpenFiles, DefaultOpenFiles), cmp.Or(l.Links, DefaultLinks), cmp.Or(l.ViewMemory, DefaultViewMemory)
}

// Identity selects the user for file operations.
type Identity string

// The identities.
const (
	IdentityAgent  Identity = "agent"  // the agent's user, the default
	IdentityCaller Identity = "caller" // the user of the process that makes the system call
)

// Placement selects which hosts may change the agent's files at a time.
type Placement string

// The placements.
const (
	PlacementAny Placement = ""    // all that have them, the default
	PlacementOne Placement = "one" // the one that has the agent's lease in the fleet
)

// DataPath selects how file data is transferred.
type DataPath string

// The data paths.
const (
	DataPassthrough DataPath = "passthrough" // by the kernel, the default
	DataMediated    DataPath = "mediated"    // through the view
)

// Cache selects what the kernel may cache of a view's names and attributes.
type Cache string

// The caches.
const (
	CacheAuto     Cache = "auto"     // as none on a file system that other hosts may change, else as coherent; the default
	CacheCoherent Cache = "coherent" // everything, invalidated when this host changes it
	CacheNone     Cache = "none"     // nothing
)

// Changes selects whether a view keeps what a change destroys, or the change itself.
type Changes string

// The kinds of changes.
const (
	direct        Changes = "direct"
	ChangesDirect Changes = ""     // nothing is kept; the default, which a definition writes as direct
	ChangesKept   Changes = "kept" // the agent's history keeps it
	ChangesHeld   Changes = "held" // the agent's directory does not change until an operator commits
	ChangesAuto   Changes = "auto" // as kept where the history can be opened, else as direct
)

// ParseDefinition parses the text of the definition in file. Only the base name
// of file matters: it is the agent's id and ".md". An unknown or repeated key,
// a value of the wrong type and a pattern that Compile rejects are errors. The
// error is a *FileError, or FileErrors for more than one.
//
// ParseDefinition does not check whether a pattern of a list matches anything;
// Load does. ParseDefinition knows no list of {base}/protect.d and refuses its name. It expands
// ${VAR} in env and mcp_servers from the environment of this process.
func ParseDefinition(file string, text []byte) (*Definition, error) {
	name := filepath.Base(file)
	def, refs, err := parseDefinition(path.Join(agentsDir, name), stem(name), text)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		if r.Kind == catalog.ProtectRef { // without the list the agent could do more
			if err := checkRef(r, known{}, def.Name, nil); err != nil {
				return nil, fields.ErrorAt(path.Join(agentsDir, name), r.Line, def.Name, err)
			}
		}
	}
	return def, nil
}

// DirOf returns the key dir of the text of a definition, "" for none. Other keys may be wrong.
func DirOf(text []byte) (string, error) {
	front, _, err := frontmatter.Cut(text)
	if err != nil {
		return "", err
	}
	return frontmatter.Text(front, "dir")
}

// parseDefinition parses the definition of an agent in a file, relative to the
// base directory. It also returns the patterns that must match something.
// Beside an error it returns what it could parse.
func parseDefinition(file string, id scope.ID, text []byte) (*Definition, []catalog.Ref, error) {
	fail := func(line int, err error) (*Definition, []catalog.Ref, error) {
		return nil, nil, fields.ErrorAt(file, line, id, err)
	}
	if !strings.HasSuffix(file, ".md") {
		return fail(0, errors.New("is no definition: name it <id>.md"))
	}
	if _, err := scope.ParseID(string(id)); err != nil {
		return fail(0, err)
	}
	if len(text) > folder.MaxSize {
		return fail(0, fmt.Errorf("is larger than %d bytes: shorten it", folder.MaxSize))
	}
	if !utf8.Valid(text) {
		return fail(0, errors.New("is not UTF-8: save it as UTF-8"))
	}
	front, body, err := frontmatter.Cut(text)
	if err != nil {
		return fail(1, err)
	}
	def := &Definition{
		Identity: IdentityAgent,
		View:     ViewSpec{Hardlinks: scope.HardlinksAllow, Data: DataPassthrough, Cache: CacheAuto},
		History:  History{Percent: DefaultHistoryPercent, Age: DefaultHistoryAge},
		Prompt:   string(bytes.TrimSpace(body)),
	}
	var refs []catalog.Ref
	var wrong fields.Problems
	named, env := false, map[string]int{}
	wrong.Add(1, fields.Parse(front, def.fields(file, id, &named, env, &refs)))
	if wrong == nil && !named {
		wrong.Add(1, fmt.Errorf("name is missing: add name: %s", id))
	}
	if wrong == nil && def.Branch != "" {
		wrong.Add(1, checkBranch(front))
	}
	if wrong == nil {
		_, err := scope.Compile(def.View.PolicySpec())
		wrong.Add(1, err)
		wrong.Add(1, checkEnv(def.Env, env, def.Network))
		wrong.Add(1, def.checkChanges())
		wrong.Add(1, def.checkRoots())
	}
	if wrong != nil {
		return def, refs, fields.ErrorAt(file, 1, id, wrong)
	}
	return def, refs, nil
}
