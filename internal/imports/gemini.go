package imports

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope/catalog"
)

// OfGemini reports whether an agent's file names tools as gemini-cli does, and scopefs does not.
func OfGemini(text []byte, ours catalog.Tools) bool {
	doc, err := readDocument(string(text))
	if err != nil || len(text) > MaxSource || !doc.markdown {
		return false
	}
	at := func(keys ...string) (words []string) {
		n := doc.top
		for _, key := range keys {
			if n = frontmatter.Value(n, key); n == nil {
				return nil
			}
		}
		words, _ = wordsOf(n)
		return words
	}
	words := slices.Concat(at("tools"), at("policy", "tools", "allowed"), at("policy", "tools", "exclude"))
	return slices.ContainsFunc(words, func(word string) bool {
		name, argument := cutArgument(word)
		bare, prefixed := strings.CutPrefix(name, catalog.BuiltinPrefix)
		if ours.Named(bare).Name != "" || prefixed && ours.Named(ours.Resolve(bare)).Name != "" {
			return argument != ""
		}
		w, known := toolNamed(ours, Gemini, bare)
		return known && w.from == Gemini || strings.HasPrefix(name, "mcp_")
	})
}

// geminiDraft converts an agent of gemini-cli: docs/core/subagents.md and agents/agentLoader.ts.
func geminiDraft(doc *document) (*draft, error) {
	d := &draft{ours: doc.ours, prompt: doc.body, gemini: true}
	if kind := frontmatter.Value(doc.top, "kind"); doc.top.Kind == yaml.SequenceNode || kind != nil && kind.Value == "remote" {
		return nil, errors.New("is a remote agent, which scopefs cannot run: import a local one")
	}
	var words []string
	var policy *yaml.Node
	servers := func(n *yaml.Node) error { return eachKey(n, d.addServer) }
	f := fields{
		"name":         textField(&d.name),
		"description":  textField(&d.description),
		"tools":        into(&words, wordsOf),
		"mcpServers":   servers,
		"mcp_servers":  servers,
		"policy":       nodeField(&policy),
		"timeout_mins": d.minutes,
	}
	d.keepModel(f, map[string]string{"kind": "kind", "model": "model", "temperature": "temperature",
		"max_turns": "max_turns", "display_name": "display_name"})
	if err := f.read(d, "", doc.top); err != nil {
		return nil, err
	}
	d.allowTools(words, d.geminiGrant)
	if policy != nil {
		if err := d.geminiPolicy(policy); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	d.dropLeftOut()
	d.confine()
	d.removeTrust()
	d.loseUndefined()
	return d, nil
}

func (d *draft) minutes(n *yaml.Node) error {
	m, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || !(m > 0 && m < 1e6) {
		return fmt.Errorf("line %d: want minutes", n.Line)
	}
	// Round down to seconds, so that the timeout is not longer than in the source.
	d.timeout = fmt.Sprintf("%ds", max(1, int(m*60)))
	if m == float64(int(m)) {
		d.timeout = fmt.Sprintf("%dm", int(m))
	}
	d.keep("timeout", text(d.timeout))
	return nil
}

// geminiGrant converts a tool name: one of gemini-cli or scopefs, optionally after builtin:; mcp_SERVER_TOOL;
// SERVER__TOOL of older versions; or mcp:SERVER:TOOL.
func (d *draft) geminiGrant(word string) grant {
	name, argument := cutArgument(word)
	if rest, ok := strings.CutPrefix(name, "mcp:"); ok {
		server, tool, _ := strings.Cut(rest, ":")
		return grant{tool: mcpTool(server, tool), argument: argument, why: "it is not mcp:SERVER:TOOL"}
	}
	w, known := toolNamed(d.ours, Gemini, strings.TrimPrefix(name, "builtin:"))
	g := grant{tool: w.ours, argument: argument, why: "scopefs has no such tool"}
	rest, isMCP := strings.CutPrefix(name, "mcp_")
	server, tool, old := strings.Cut(name, "__")
	switch {
	case known:
	case name == "*":
		g.tool = "*"
	case name == "mcp_*":
		g.tool = "mcp"
	case isMCP && !strings.HasPrefix(rest, "_"):
		server, tool, _ := strings.Cut(rest, "_")
		var fits []string
		for _, s := range d.named {
			if strings.HasPrefix(rest, s+"_") {
				fits = append(fits, s)
			}
		}
		if len(fits) > 1 {
			g.why = fmt.Sprintf("it may be a tool of %s", strings.Join(fits, " or of "))
			return g
		}
		if len(fits) == 1 {
			server, tool = fits[0], strings.TrimPrefix(rest, fits[0]+"_")
		}
		g.tool = mcpTool(server, tool)
	case old && !isMCP:
		g.tool = mcpTool(server, tool)
	}
	return g
}

// geminiPolicy converts gemini-cli's PolicySettings. It treats each of tools.core and tools.allowed as an allow-list.
func (d *draft) geminiPolicy(n *yaml.Node) error {
	var exclude, core, allowed []string
	f := fields{
		"tools": func(n *yaml.Node) error {
			return fields{"core": listField(&core), "exclude": listField(&exclude), "allowed": listField(&allowed)}.read(d, "policy.tools.", n)
		},
		"mcp": func(n *yaml.Node) error {
			return fields{
				"allowed": listField(&d.mcpAllowed), "excluded": listField(&d.mcpExcluded),
				"mcp_servers": d.readTrust, "mcpServers": d.readTrust,
			}.read(d, "policy.mcp.", n)
		},
		"policyPaths": func(*yaml.Node) error {
			d.ask = addTo(d.ask, "*")
			d.lose("policy.policyPaths", "rules in other files are not read", "every call is asked about (policy.tools.ask)")
			return nil
		},
		"mcpServers": d.readTrust, "mcp_servers": d.readTrust,
	}
	f["workspacePolicyPaths"] = f["policyPaths"]
	if err := f.read(d, "policy.", n); err != nil {
		return err
	}
	d.deny("policy.tools.exclude", exclude)
	for _, l := range []struct {
		key   string
		words []string
	}{{"policy.tools.core", core}, {"policy.tools.allowed", allowed}} {
		if l.words == nil {
			continue
		}
		within := &draft{ours: d.ours, named: d.named}
		within.allow(l.key, l.words, within.geminiGrant)
		d.lost, d.ask = append(d.lost, within.lost...), addTo(d.ask, within.ask...)
		if d.allowed == nil {
			d.allowed = within.tools
		} else {
			d.allowed = d.both(d.allowed, within.tools)
		}
	}
	return nil
}

// both returns the patterns that both lists allow. The result is never nil.
func (d *draft) both(a, b []string) []string {
	all := []string{}
	for _, lists := range [][2][]string{{a, b}, {b, a}} {
		for _, t := range lists[0] {
			if slices.Contains(lists[1], t) || slices.ContainsFunc(lists[1], func(p string) bool { return d.ours.Match(p, t) }) {
				all = addTo(all, t)
			}
		}
	}
	return all
}

// readTrust reads which servers are trusted.
func (d *draft) readTrust(n *yaml.Node) error {
	return eachKey(n, func(name string, v *yaml.Node) error {
		at := "policy.mcp_servers." + name
		return fields{"trust": d.trustField(name, at)}.readFor(d, at+".", v, cover(name, "*"))
	})
}
