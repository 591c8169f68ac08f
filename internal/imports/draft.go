package imports

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// The limits of a definition and of its keys, in bytes.
const (
	maxDefinition = 1 << 20
	maxKeys       = 64 << 10
)

// draft is a definition under construction. A nil list is absent (inherited). An empty list allows nothing.
type draft struct {
	ours catalog.Tools // that a definition may name

	id          scope.ID
	name        string // the name in the source
	description string
	access      string // view.access
	readFiles   bool   // no file may be changed, whatever access is
	prompt      string
	timeout     string

	tools, skills, mcps, members []string
	allowed, exclude, ask        []string // policy.tools
	mcpAllowed, mcpExcluded      []string // policy.mcp
	trusted, untrusted           []string
	servers                      []*server
	named, gone, mentioned       []string // servers of the source, servers left out, servers defined in other files
	rates                        []rate
	filters                      []string              // filters for every tool
	kept                         map[string]*yaml.Node // keys copied unchanged
	filesBase                    string                // the directory of the host above agents/ID; "": the base directory
	stores                       []storeEntry

	gemini bool // the source expands $NAME and has trusted servers
	lost   []Loss
}

// rate is a limit of the calls that match a pattern.
type rate struct {
	pattern string
	calls   int
	unit    string // second, minute or hour
}

func (r rate) node() (pattern string, n *yaml.Node) {
	return r.pattern, text(fmt.Sprintf("%d/%s", r.calls, r.unit))
}

func (d *draft) lose(what, why, instead string) {
	if l := (Loss{what, why, instead}); !slices.Contains(d.lost, l) {
		d.lost = append(d.lost, l)
	}
}

// loseKeys adds fields that are lost for the same reason.
func (d *draft) loseKeys(f fields, at, why string, keys ...string) {
	for _, key := range keys {
		f[key] = func(*yaml.Node) error {
			d.lose(at+key, why, "left out")
			return nil
		}
	}
}

// keep copies a key of the source unchanged.
func (d *draft) keep(key string, n *yaml.Node) {
	if d.kept == nil {
		d.kept = map[string]*yaml.Node{}
	}
	d.kept[key] = n
}

// keepModel adds fields that a definition has under the names in keys. A value that no definition has is lost.
func (d *draft) keepModel(f fields, keys map[string]string) {
	for key, ours := range keys {
		f[key] = func(n *yaml.Node) error {
			value, kept := n.Value, n
			if n.Tag == "!!str" {
				value, kept = strconv.Quote(value), text(value)
			}
			_, err := agents.ParseDefinition("x.md", []byte("---\nname: x\n"+ours+": "+value+"\n---\n"))
			if n.Kind != yaml.ScalarNode || err != nil {
				d.lose(key, "is no "+ours+" of a definition", "left out")
				return nil
			}
			d.keep(ours, kept)
			return nil
		}
	}
}

// computed records a loss if tools is absent beside other lists: it then no longer means all tools.
func (d *draft) computed() {
	if d.tools == nil && (d.skills != nil || d.mcps != nil || d.members != nil) {
		d.lose("tools", "absent they were all tools",
			"absent, which beside skills, mcps or members is the computed list; write tools: [\"*\"] for all")
	}
}

// render returns the definition.
func (d *draft) render() ([]byte, error) {
	top := &yaml.Node{Kind: yaml.MappingNode}
	put(top, "name", text(string(d.id)))
	put(top, "description", textUnlessEmpty(d.description))
	if d.filesBase != "" {
		put(top, "dir", text(d.dir()))
	}
	var paths *yaml.Node
	if d.readFiles {
		paths = mapping("**", text("read"))
	}
	put(top, "view", mapping("access", textUnlessEmpty(d.access), "paths", paths))
	put(top, "tools", list(d.tools))
	put(top, "skills", list(d.skills))
	put(top, "mcps", list(d.mcps))
	put(top, "members", list(d.members))
	put(top, "policy", d.policy())
	put(top, "mcp_servers", d.serversNode())
	put(top, "limits", mapping("timeout", textUnlessEmpty(d.timeout)))
	put(top, "rate_limits", mappingOf(d.rates, rate.node))
	put(top, "argument_filters", mapping("*", blockList(d.filters)))
	for _, key := range keptKeys() {
		put(top, key, d.kept[key])
	}
	const mark = "---\n"
	keys, err := encode(top)
	if err != nil {
		return nil, fmt.Errorf("write the definition: %w", err)
	}
	if len(mark)+len(keys) > maxKeys {
		return nil, fmt.Errorf("makes a definition of more than %d bytes of keys: shorten them", maxKeys)
	}
	text := mark + string(keys) + mark
	if d.prompt != "" {
		text += d.prompt + "\n"
	}
	if len(text) > maxDefinition {
		return nil, fmt.Errorf("makes a definition larger than %d bytes: shorten it", maxDefinition)
	}
	return []byte(text), nil
}

// dir returns the directory of the agent's files below filesBase.
func (d *draft) dir() string { return filepath.Join(d.filesBase, "agents", string(d.id)) }

func encode(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(n), enc.Close())
	return b.Bytes(), err
}

func (d *draft) policy() *yaml.Node {
	trust := mappingOf(d.trusted, func(name string) (string, *yaml.Node) { return name, mapping("trust", literal("true")) })
	return mapping(
		"tools", mapping("allowed", list(d.allowed), "exclude", list(d.exclude), "ask", list(d.ask)),
		"mcp", mapping("allowed", list(d.mcpAllowed), "excluded", list(d.mcpExcluded), "mcp_servers", trust),
	)
}

func (d *draft) serversNode() *yaml.Node {
	return mappingOf(d.servers, func(s *server) (string, *yaml.Node) {
		command := text(s.command)
		if s.url != "" {
			command = nil
		}
		return s.name, mapping("command", command, "args", list(s.args),
			"env", mappingOf(s.env, variable.node), "cwd", textUnlessEmpty(s.cwd),
			"url", textUnlessEmpty(s.url), "headers", mappingOf(s.headers, variable.node), "timeout", textUnlessEmpty(s.timeout))
	})
}

// limit adds a rate limit. It merges two limits on one pattern into one that satisfies both.
func (d *draft) limit(what string, add rate) {
	i := slices.IndexFunc(d.rates, func(r rate) bool { return r.pattern == add.pattern })
	if i < 0 {
		d.rates = append(d.rates, add)
		return
	}
	units := []string{"second", "minute", "hour"}
	r := &d.rates[i]
	r.calls = min(r.calls, add.calls)
	r.unit = units[max(slices.Index(units, r.unit), slices.Index(units, add.unit))]
	d.lose(what, fmt.Sprintf("%q has a limit already", add.pattern), fmt.Sprintf("one of %d/%s, within both", r.calls, r.unit))
}

// put adds a key if value is not nil.
func put(to *yaml.Node, key string, value *yaml.Node) {
	if value != nil {
		to.Content = append(to.Content, text(key), value)
	}
}

// mapping returns a mapping of keys and nodes, or nil if no node has a value.
func mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i+1 < len(pairs); i += 2 {
		put(m, pairs[i].(string), pairs[i+1].(*yaml.Node))
	}
	if len(m.Content) == 0 {
		return nil
	}
	return m
}

// mappingOf is mapping for a key and a node of each item.
func mappingOf[T any](items []T, pair func(T) (string, *yaml.Node)) *yaml.Node {
	var all []any
	for _, item := range items {
		key, value := pair(item)
		all = append(all, key, value)
	}
	return mapping(all...)
}

// literal returns a scalar that is not a string.
func literal(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: s} }

// text returns a node that decodes to s, quoted if necessary.
func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || strings.ContainsRune("*:${}", r) }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func textUnlessEmpty(s string) *yaml.Node {
	if s == "" {
		return nil
	}
	return text(s)
}

// list returns a list in flow style, or nil for a nil list.
func list(items []string) *yaml.Node {
	n := blockList(items)
	if n == nil && items != nil {
		n = &yaml.Node{Kind: yaml.SequenceNode}
	}
	if n != nil {
		n.Style = yaml.FlowStyle
	}
	return n
}

func blockList(items []string) *yaml.Node {
	if len(items) == 0 {
		return nil
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	for _, s := range items {
		n.Content = append(n.Content, text(s))
	}
	return n
}
