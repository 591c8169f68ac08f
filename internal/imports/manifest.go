package imports

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/catalog"
)

// manifest is the state of converting a manifest, in which tools are named MODULE_TOOL.
type manifest struct {
	*draft
	files map[string]string // names of file tools to scopefs tools
	open  []string          // proxied servers without a tool allow-list
	stdio bool

	changes bool // a store's tool needs a view that may change
	secrets secrets
	env     func(string) (string, bool) // see Source.Env
}

// manifestDraft converts a manifest of scoped-mcp: docs/manifest-schema.md and manifest.py of
// github.com/TadMSTR/scoped-mcp.
func manifestDraft(doc *document) (*draft, error) {
	m := &manifest{draft: &draft{ours: doc.ours, tools: []string{}, skills: []string{}, mcps: []string{},
		access: "read"}, files: map[string]string{}, env: doc.env}
	var rates, filters, hitl *yaml.Node
	modules := false
	f := fields{
		"agent_type":  textField(&m.name),
		"description": textField(&m.description),
		"modules": func(n *yaml.Node) error {
			modules = true
			return eachKey(n, m.module)
		},
		"credentials":      func(*yaml.Node) error { return nil }, // they were read before the modules
		"rate_limits":      nodeField(&rates),
		"argument_filters": nodeField(&filters),
		"hitl":             nodeField(&hitl),
	}
	m.loseKeys(f, "", "the daemon stores counters and approvals", "state_backend")
	if doc.top.Kind == yaml.MappingNode {
		if err := m.readCredentials(frontmatter.Value(doc.top, "credentials")); err != nil {
			return nil, err
		}
	}
	if err := f.read(m.draft, "", doc.top); err != nil {
		return nil, err
	}
	if m.name == "" || !modules {
		return nil, errors.New("is not a manifest: it needs agent_type and modules")
	}
	if !m.secrets.used && frontmatter.Value(doc.top, "credentials") != nil {
		m.lose("credentials", "no credentials are read", "left out; give a server its own in mcp_servers.X.env, as ${VAR}")
	}
	if m.changes && m.access == "read" { // of the files, which the stores' tools do not change
		m.access, m.readFiles = "write", true
	}
	if m.stdio {
		m.lose("network", "proxied servers ran on the host", "none; network: host would give the sandbox one")
	}
	for _, part := range []struct {
		key  string
		n    *yaml.Node
		read func(*yaml.Node) error
	}{{"rate_limits", rates, m.limits}, {"argument_filters", filters, m.filter}, {"hitl", hitl, m.approvals}} {
		if part.n == nil || isNull(part.n) {
			continue
		}
		if err := part.read(part.n); err != nil {
			return nil, fmt.Errorf("%s: %w", part.key, err)
		}
	}
	return m.draft, nil
}

func (m *manifest) module(name string, n *yaml.Node) error {
	kind, mode := name, ""
	config := &yaml.Node{Kind: yaml.MappingNode}
	optional := func(out *string) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			if isNull(n) {
				return nil
			}
			return textField(out)(n)
		}
	}
	at := "modules." + name
	if !isNull(n) {
		f := fields{"type": optional(&kind), "mode": optional(&mode), "config": nodeField(&config)}
		if value := frontmatter.Value(n, "type"); value != nil { // before the keys whose tools depend on it
			if err := f["type"](value); err != nil {
				return fmt.Errorf("type: %w", err)
			}
		}
		if err := f.readFor(m.draft, at+".", n, toolsOf(name, kind)...); err != nil {
			return err
		}
	}
	switch kind {
	case "filesystem":
		return m.filesystem(at, name, mode, config)
	case "mcp_proxy":
		return m.proxy(at, name, config)
	}
	return m.use(at, name, kind, mode, config)
}

// toolsOf returns patterns of the tools that a module of a kind may have; none for a module that scopefs does not have.
func toolsOf(name, kind string) (all []string) {
	mod, _ := moduleOf(kind)
	for _, t := range slices.Concat(mod.reads, mod.writes) {
		all = addTo(all, t[1])
	}
	switch kind {
	case "filesystem":
		return []string{"read_file", "list_dir", "write_file", "delete_file"}
	case "mcp_proxy":
		return []string{cover(name, "*")}
	}
	return all
}

func (m *manifest) filesystem(at, name, mode string, config *yaml.Node) error {
	tools := []string{"read_file", "list_dir"}
	switch mode {
	case "read":
	case "write", "":
		tools = append(tools, "write_file", "delete_file")
		m.access = "write"
	default:
		return fmt.Errorf("mode is %q: want read or write", mode)
	}
	m.tools = addTo(m.tools, tools...)
	for _, t := range tools {
		m.files[name+"_"+t] = t
	}
	f := fields{"base_path": func(n *yaml.Node) error {
		switch {
		case !filepath.IsAbs(n.Value):
			m.lose(at+".config.base_path", "it is no absolute path", "left out: the files are those of agents/ID in the base directory")
		case m.filesBase != "" && m.filesBase != filepath.Clean(n.Value):
			m.lose(at+".config.base_path", "an agent has one directory", "left out; a root shows another one")
		default:
			m.filesBase = filepath.Clean(n.Value)
		}
		return nil
	}}
	return f.readFor(m.draft, at+".config.", config, tools...)
}

func (m *manifest) proxy(at, name string, config *yaml.Node) error {
	s := &server{name: name}
	var allow, deny []string
	f := fields{
		"url":            textField(&s.url),
		"command":        textField(&s.command),
		"cwd":            textField(&s.cwd),
		"args":           listField(&s.args),
		"env":            func(n *yaml.Node) error { return m.readEnv(at+".config.env", s, n) },
		"tool_allowlist": listField(&allow),
		"tool_denylist":  listField(&deny),
	}
	m.loseKeys(f, at+".config.", "the daemon sets the limit of a server", "discovery_timeout_seconds")
	if err := f.readFor(m.draft, at+".config.", config, cover(name, "*")); err != nil {
		return err
	}
	switch {
	case !catalog.IsServerName(name):
		m.lose(at, "its name would be a pattern", "left out, with its tools")
		return nil
	case (s.url != "") == (s.command != ""):
		m.lose(at, "it has neither a command nor a url, or both", "left out, with its tools")
		return nil
	}
	m.variables(at+".config", s, true)
	if why := m.confineAddress(at+".config", s); why != "" {
		m.lose(at, why, "left out, with its tools")
		return nil
	}
	m.servers, m.mcps, m.stdio = append(m.servers, s), append(m.mcps, name), m.stdio || s.url == ""
	if len(allow) == 0 { // in a manifest, every tool is allowed
		m.open = append(m.open, name)
		m.tools = addTo(m.tools, mcpTool(name, "*"))
	}
	for _, t := range allow {
		if p := mcpTool(name, t); p == "" || strings.Contains(t, "*") {
			m.lose(at+".config.tool_allowlist: "+t, "it would be a pattern", "left out")
		} else if !slices.Contains(deny, t) {
			m.tools = addTo(m.tools, p)
		}
	}
	for _, t := range deny {
		m.excludeTool(at+".config.tool_denylist", name, t)
	}
	return nil
}
