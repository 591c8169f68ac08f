package imports

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// geminiDraft reads an agent of gemini-cli, as its docs/core/subagents.md and
// agents/agentLoader.ts describe one.
func geminiDraft(doc *document) (*draft, error) {
	d := &draft{prompt: doc.body, gemini: true}
	if kind := child(doc.top, "kind"); doc.top.Kind == yaml.SequenceNode || kind != nil && kind.Value == "remote" {
		return nil, errors.New("is a remote agent, of which nothing runs here: import a local one")
	}
	var words *yaml.Node
	var policy *yaml.Node
	servers := func(n *yaml.Node) error {
		return eachKey(n, func(name string, v *yaml.Node) error { return d.addServer("mcpServers", name, v) })
	}
	f := fields{
		"name":         textField(&d.name),
		"description":  textField(&d.description),
		"kind":         func(*yaml.Node) error { return nil },
		"tools":        func(n *yaml.Node) error { words = n; return nil },
		"mcpServers":   servers,
		"mcp_servers":  servers,
		"policy":       func(n *yaml.Node) error { policy = n; return nil },
		"timeout_mins": d.minutes,
	}
	d.loseKeys(f, "", "scopefs calls no model", "model", "temperature", "max_turns")
	d.loseKeys(f, "", "an agent has one name", "display_name")
	if err := f.read(d, "", doc.top); err != nil {
		return nil, err
	}
	if words != nil {
		list, err := toolWords(words)
		if err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
		if len(list) == 0 {
			d.lose("tools", "is empty", "tools: [], which is none")
		}
		d.allow("tools", list, d.geminiGrant)
	}
	if policy != nil {
		if err := d.geminiPolicy(policy); err != nil {
			return nil, fmt.Errorf("policy: %w", err)
		}
	}
	d.dropGone()
	d.confine()
	d.mistrust()
	d.elsewhere()
	return d, nil
}

func (d *draft) minutes(n *yaml.Node) error {
	m, err := strconv.ParseFloat(n.Value, 64)
	if err != nil || !(m > 0 && m < 1e6) {
		return fmt.Errorf("line %d: want minutes", n.Line)
	}
	// Seconds, rounded down: no longer than it was.
	d.timeout = fmt.Sprintf("%ds", max(1, int(m*60)))
	if m == float64(int(m)) {
		d.timeout = fmt.Sprintf("%dm", int(m))
	}
	return nil
}

// geminiGrant reads a name of gemini-cli's: its own, mcp_SERVER_TOOL, or
// SERVER__TOOL as it once was.
func (d *draft) geminiGrant(word string) grant {
	name, argument := cutArgument(word)
	ours, known := geminiTools()[name]
	g := grant{tool: ours, argument: argument, why: "scopefs has no such tool"}
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

// geminiPolicy reads gemini-cli's PolicySettings. Its tools.allowed are those
// that run without being asked about, which is no allow-list.
func (d *draft) geminiPolicy(n *yaml.Node) error {
	var exclude, core []string
	f := fields{
		"tools": func(n *yaml.Node) error {
			return fields{
				"core":    listField(&core),
				"exclude": listField(&exclude),
				"allowed": func(*yaml.Node) error {
					d.lose("policy.tools.allowed", "it says what runs without being asked about", "left out: what is allowed runs, unless policy.tools.ask has it")
					return nil
				},
			}.read(d, "policy.tools.", n)
		},
		"mcp": func(n *yaml.Node) error {
			return fields{"allowed": listField(&d.mcpAllowed), "excluded": listField(&d.mcpExcluded)}.read(d, "policy.mcp.", n)
		},
		"policyPaths": func(*yaml.Node) error {
			d.ask = addTo(d.ask, "*")
			d.lose("policy.policyPaths", "rules in other files are not read", "every call is asked about (policy.tools.ask)")
			return nil
		},
	}
	trust := func(n *yaml.Node) error {
		return eachKey(n, func(name string, v *yaml.Node) error {
			if t := child(v, "trust"); t != nil && t.Value == "true" {
				d.trusted = addTo(d.trusted, name)
			}
			return nil
		})
	}
	f["mcpServers"], f["mcp_servers"] = trust, trust
	f["workspacePolicyPaths"] = f["policyPaths"]
	if err := f.read(d, "policy.", n); err != nil {
		return err
	}
	d.deny("policy.tools.exclude", exclude, geminiTools(), d.geminiGrant)
	if core != nil {
		within := &draft{named: d.named}
		within.allow("policy.tools.core", core, within.geminiGrant)
		d.lost = append(d.lost, within.lost...)
		d.allowed, d.ask = within.tools, addTo(d.ask, within.ask...)
	}
	return nil
}
