package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// inHome returns a path with HOME in place of a ~ at its beginning.
func inHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path, fmt.Errorf("%q: %w: write the whole path in place of ~", path, err)
	}
	return filepath.Join(home, rest), nil
}

// Settings is all that scopefs.yaml says.
type Settings struct {
	agents.Host
	From    map[string]At     // where each key stands that is set, such as memory and sandbox.env
	Runner  []string          // a command; none: nothing is delegated
	Tasks   Tasks             // of runners
	Durable *bool             // of agents whose definition does not say; nil is true
	Expose  []string          // files and directories of the host that sandboxes show
	Sockets []string          // those of Expose whose sockets and FIFOs agents may use
	Env     map[string]string // of sandboxes
	Keep    agents.Keep       // of agents whose definition does not say
	Log     LogLimits
	Stores  Stores
	Approve Approve
	Console Console
	Fleet   Fleet
	Network Network
	Grace   time.Duration // how long views live on without a daemon of root; 0: they end with it. 60 s where nothing says
}

// Approve is how the operator approves calls: the key approvals.
type Approve struct {
	Wait    time.Duration // how long a call waits for it; 0: calls do not wait
	Notify  []string      // a command for each call that starts to need it; nil: none
	Desktop *bool         `json:",omitempty"` // show notifications of the desktop, where there is one; nil is true
}

// maxWait bounds how long a call waits: that long an approval waits for the operator.
const maxWait = 15 * time.Minute

// command reads a program, by its absolute path, and its arguments.
func command(out *[]string, key string) fields.Field {
	return func(n *yaml.Node) error {
		err := fields.Texts(out, key, func(word string) error {
			switch {
			case strings.ContainsRune(word, 0):
				return errors.New("holds a NUL: remove it")
			case len(*out) == 0 && !strings.HasPrefix(word, "/"):
				return fmt.Errorf("%q is relative: write an absolute path", word)
			}
			return nil
		})(n)
		if err == nil && len(*out) == 0 {
			err = errors.New(key + ": names no program: write one, then its arguments")
		}
		return err
	}
}

func (a *Approve) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"wait": func(n *yaml.Node) error {
			err := fields.Duration(&a.Wait)(n)
			if err == nil && a.Wait > maxWait {
				err = fmt.Errorf("%v is longer than an approval waits for the operator: want 15m or less", a.Wait)
			}
			return err
		},
		"notify":  command(&a.Notify, "notify"),
		"desktop": fields.Optional(&a.Desktop),
	}
}

// Tasks bounds what is delegated.
type Tasks struct {
	Depth    int               // tasks within each other; 4
	Parallel int               // at the same time, of each depth, of all agents; 8. An agent has half of it
	Network  hosts.Network     // of runners; none
	Env      map[string]string // of runners alone; it may hold secrets, which are not for logs
	Input    RunnerInput       // what a runner reads
}

// RunnerInput selects the form of what a runner reads on standard input.
type RunnerInput string

// The forms.
const (
	RunnerText RunnerInput = "text" // for a model; the default
	RunnerJSON RunnerInput = "json" // an object: see docs/delegation.md
)

// Checks check the values that only the caller of Parse can judge; a nil
// function accepts all. Their errors are "what: remedy".
type Checks struct {
	Tools  catalog.Tools                       // that there are without stores
	Stores func(Stores) (catalog.Tools, error) // the tools of the stores that are configured
	Expose func(path string, sockets bool) error
	Preset func(name string) error
	Runner func(Settings) error // of a file that has one
}

// Equal reports whether two settings say the same, wherever that stands.
func (h Settings) Equal(other Settings) bool {
	h.From, other.From = nil, nil
	return reflect.DeepEqual(h, other)
}

// At is a line of a scopefs.yaml.
type At struct {
	File string // relative to the base directory, absolute in a user's settings
	Line int
}

// text is the content of a scopefs.yaml.
type text struct {
	file string // as At.File
	data []byte
}

// Parse reads the text of scopefs.yaml, as strictly as a definition. Its
// errors are of type *FileError.
func Parse(data []byte, checks Checks) (Settings, error) {
	return parse([]text{{agents.HostFile, data}}, checks)
}

// parse is Parse for several texts. Each is valid by itself. A key of a later one replaces that of an earlier one. The keys of
// a mapping are merged, and what is under them is not: of delegation, log, approvals, console, sandbox and stores each key,
// of mcp_servers each server, and network, is whole from one text. So a text that does not say a limit does not lift it, and no server or
// store gets the address of one text and the secret of another.
func parse(texts []text, checks Checks) (h Settings, err error) {
	h.Tools, h.From, h.Grace = checks.Tools, map[string]At{}, usualGrace
	h.Tasks = Tasks{Depth: 4, Parallel: 8, Network: hosts.Network{Kind: hosts.None}, Input: RunnerText}
	var tools []catalog.Ref // of the base_tools that hold
	for _, t := range texts {
		if err := h.read(t, checks, &tools); err != nil {
			return Settings{}, err
		}
	}
	fail := func(at At, err error) (Settings, error) {
		return Settings{}, fields.ErrorAt(cmp.Or(at.File, agents.HostFile), cmp.Or(at.Line, 1), "", err)
	}
	stores := At{File: texts[len(texts)-1].file}
	if err := h.Stores.checkPaths(checks); err != nil {
		return fail(stores, fmt.Errorf("stores: %w", err))
	}
	if checks.Stores != nil {
		more, err := checks.Stores(h.Stores)
		if err == nil {
			err = h.Tools.Collision(more)
		}
		if err != nil {
			return fail(stores, fmt.Errorf("stores: %w", err))
		}
		h.Tools = append(h.Tools[:len(h.Tools):len(h.Tools)], more...)
	}
	for _, r := range tools {
		if p, err := h.Tools.ParsePattern(r.Text); err != nil || !h.Tools.Known(p, nil) {
			return fail(At{h.From["base_tools"].File, r.Line},
				fmt.Errorf("base_tools: %q matches no tool: want some of %s", r.Text, strings.Join(h.Tools.Names(), ", ")))
		}
	}
	if wrong := h.Tools.Twice(tools); wrong != nil {
		return fail(At{File: h.From["base_tools"].File}, wrong)
	}
	if h.Fleet.Name != "" && slices.ContainsFunc(h.Log.Streams, func(s Stream) bool { return s.Name == FleetStream }) {
		return fail(h.From["log.streams"], fmt.Errorf("streams: %s is the stream of the key fleet: rename it", FleetStream))
	}
	if len(h.Runner) > 0 && checks.Runner != nil {
		if err := checks.Runner(h); err != nil {
			return fail(h.From["runner"], fmt.Errorf("runner: %w", err))
		}
	}
	return h, nil
}

// read reads one text over what earlier ones say. tools are the entries of base_tools.
func (h *Settings) read(t text, checks Checks, tools *[]catalog.Ref) error {
	fail := func(line int, err error) error { return fields.ErrorAt(t.file, line, "", err) }
	if len(t.data) > frontmatter.MaxKeys {
		return fail(0, fmt.Errorf("is larger than %d bytes: shorten it", frontmatter.MaxKeys))
	}
	if !utf8.Valid(t.data) {
		return fail(0, errors.New("is not UTF-8: save it as UTF-8"))
	}
	var listed, presets []catalog.Ref
	if err := fields.Parse(t.data, h.fields(t.file, checks, &listed, &presets)); err != nil {
		return fail(1, err)
	}
	top, _ := frontmatter.Parse(t.data) // it is valid
	h.set(t.file, "", top)
	if at := h.From["base_tools"]; at.File == t.file {
		*tools = listed
	}
	if at := h.From["primary"]; filepath.IsAbs(at.File) {
		return fail(at.Line, errors.New("primary: names an agent of one base: write it into the scopefs.yaml there"))
	}
	for _, r := range presets {
		if checks.Preset == nil {
			break
		}
		if err := checks.Preset(r.Text); err != nil {
			return fail(r.Line, fmt.Errorf("%s: %w", r.Key, err))
		}
	}
	return nil
}

// set notes where the keys of a mapping stand, those of its mappings as well.
func (h *Settings) set(file, prefix string, n *yaml.Node) {
	for i := 0; n != nil && i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if prefix == "" && value.Kind == yaml.MappingNode {
			h.set(file, key.Value+".", value)
			continue
		}
		h.From[prefix+key.Value] = At{file, value.Line}
	}
}

func (h *Settings) fields(file string, checks Checks, tools, presets *[]catalog.Ref) map[string]fields.Field {
	return map[string]fields.Field{
		"primary":    fields.Named(&h.Primary),
		"base_tools": catalog.List(&h.BaseTools, "base_tools", catalog.ToolRef, tools),
		"memory":     fields.Switch(&h.Memory),
		"durable":    fields.Optional(&h.Durable),
		"mcp_servers": func(n *yaml.Node) error {
			if h.Servers == nil {
				h.Servers = agents.Servers{}
			}
			return agents.EachServer(n, func(name string, value *yaml.Node) error {
				s := agents.Server{From: file}
				err := fields.Mapping(s.Fields(nil, presets))(value)
				h.Servers[name] = s
				return err
			})
		},
		"runner": func(n *yaml.Node) error {
			return fields.Texts(&h.Runner, "runner", func(word string) error {
				if len(h.Runner) == 0 && word == "" {
					return errors.New("names no program: write one, then its arguments")
				}
				return nil
			})(n)
		},
		"delegation": fields.Mapping(map[string]fields.Field{
			"depth":    fields.Number(&h.Tasks.Depth, fields.CountTo(maxDepth), "!!int"),
			"parallel": fields.Number(&h.Tasks.Parallel, fields.CountTo(maxParallel), "!!int"),
			"network":  hosts.Field(&h.Tasks.Network, presets),
			"env":      fields.Env(&h.Tasks.Env, nil),
			"input":    fields.OneOf(&h.Tasks.Input, RunnerText, RunnerJSON),
		}),
		"log":       fields.Mapping(h.Log.fields()),
		"stores":    h.Stores.field,
		"approvals": fields.Mapping(h.Approve.fields()),
		"console":   fields.Mapping(h.Console.fields()),
		"fleet":     h.Fleet.field(file),
		"network":   h.Network.field,
		"sandbox":   fields.Mapping(h.sandboxFields(checks)),
		"grace":     h.graceField,
	}
}

// How long views decide by the rules of a daemon that has ended.
const (
	usualGrace = time.Minute
	maxGrace   = 10 * time.Minute
)

func (h *Settings) graceField(n *yaml.Node) error {
	s, err := fields.Scalar(n, "a duration like 60s, or 0s", "!!str")
	if err == nil {
		h.Grace, err = fields.ParseDuration(s)
	}
	if err == nil && (h.Grace < 0 || h.Grace > maxGrace) {
		err = fmt.Errorf("%q is not between 0s and %v: 0s ends views with their daemon", s, maxGrace)
	}
	return err
}

func (h *Settings) sandboxFields(checks Checks) map[string]fields.Field {
	all := h.Keep.Fields()
	all["expose"] = func(n *yaml.Node) error {
		h.Expose, h.Sockets = []string{}, nil
		return fields.EachItem(n, func(item *yaml.Node) error {
			var name string
			var sockets bool
			read := fields.Text(&name)
			if item.Kind == yaml.MappingNode {
				read = fields.Mapping(map[string]fields.Field{"path": fields.Text(&name), "sockets": fields.Switch(&sockets)})
			}
			err := read(item)
			if err == nil && name == "" {
				err = errors.New(`"" is no path: write path: /PATH`)
			}
			if err == nil {
				name, err = inHome(name)
			}
			if err == nil && checks.Expose != nil {
				err = checks.Expose(name, sockets)
			}
			if err != nil {
				return fmt.Errorf("expose: %w", err)
			}
			if h.Expose = append(h.Expose, name); sockets {
				h.Sockets = append(h.Sockets, name)
			}
			return nil
		})
	}
	all["env"] = fields.Env(&h.Env, nil)
	return all
}

// The most that delegation can be set to: each task has a sandbox.
const (
	maxDepth    = 16
	maxParallel = 256
)
