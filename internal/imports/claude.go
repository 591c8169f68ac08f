package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/frontmatter"
)

// claudeDraft converts a subagent of Claude Code: code.claude.com/docs/en/sub-agents.
func claudeDraft(doc *document) (*draft, error) {
	d := &draft{ours: doc.ours, prompt: doc.body}
	var words, denied, skills []string
	var hooks, mode *yaml.Node
	f := fields{
		"name":            textField(&d.name),
		"description":     textField(&d.description),
		"tools":           into(&words, wordsOf),
		"disallowedTools": into(&denied, wordsOf),
		"skills":          into(&skills, wordsOf),
		"hooks":           nodeField(&hooks),
		"permissionMode":  nodeField(&mode),
		"mcpServers":      d.claudeServers,
	}
	d.keepModel(f, map[string]string{"model": "model", "maxTurns": "max_turns"})
	d.loseKeys(f, "", "scopefs calls no model", "effort", "initialPrompt")
	d.loseKeys(f, "", "it is for a display", "color")
	d.loseKeys(f, "", "an agent here has its one view, in the foreground", "background", "isolation")
	d.loseKeys(f, "", "no directory is kept beside the view", "memory")
	if err := f.read(d, "", doc.top); err != nil {
		return nil, err
	}
	d.claudeTools(words, denied)
	if len(skills) > 0 {
		d.claudeSkills(skills)
	}
	if mode != nil {
		d.permissionMode(mode.Value)
	}
	if hooks != nil {
		d.claudeHooks(hooks)
	}
	d.dropLeftOut()
	d.confine()
	d.computed()
	d.loseUndefined()
	return d, nil
}

// claudeTools converts the tools, nil for all, and those that are denied, nil for none.
func (d *draft) claudeTools(words, denied []string) {
	d.allowTools(words, d.claudeGrant)
	d.claudeMembers(words)
	if words == nil {
		d.lose("members", "an agent that inherits all tools may call any other", "none, as members is absent")
	}
	if denied == nil {
		return
	}
	d.deny("disallowedTools", denied)
	for _, t := range d.exclude {
		if name, ok := strings.CutSuffix(strings.TrimPrefix(t, "mcp:"), ":*"); ok {
			d.mcpExcluded = addTo(d.mcpExcluded, name)
		}
	}
}

// claudeGrant converts a tool name of Claude Code, mcp__SERVER or mcp__SERVER__TOOL.
func (d *draft) claudeGrant(word string) grant {
	name, argument := cutArgument(word)
	w, _ := toolNamed(d.ours, Claude, name)
	g := grant{tool: w.ours, argument: argument, why: "scopefs has no such tool"}
	rest, isMCP := strings.CutPrefix(name, "mcp__")
	server, tool, one := strings.Cut(rest, "__")
	switch {
	case name == "*":
		g.tool = "*"
	case g.tool == "delegate":
		g.argument = "" // members has the argument
	case isMCP && rest == "*":
		g.tool = "mcp"
	case isMCP && !one:
		g.tool = mcpTool(server, "*")
	case isMCP:
		g.tool = mcpTool(server, tool)
	}
	return g
}

// claudeMembers adds the members in words such as Agent(worker, researcher).
func (d *draft) claudeMembers(words []string) {
	for _, w := range words {
		name, argument := cutArgument(w)
		if w, _ := toolNamed(d.ours, Claude, name); w.ours != "delegate" {
			continue
		}
		if argument == "" {
			d.lose("tools: "+w, "it may call any agent", "delegate, and none to call until members names them")
			continue
		}
		for m := range strings.SplitSeq(argument, ",") {
			if id, err := toID(strings.TrimSpace(m)); err == nil {
				d.members = addTo(d.members, string(id))
			} else {
				d.lose("tools: "+w, fmt.Sprintf("%q is not a valid id", strings.TrimSpace(m)), "left out of members")
			}
		}
	}
}

// claudeSkills converts skills, which Claude Code loads into an agent's context at start.
func (d *draft) claudeSkills(list []string) {
	d.skills = append([]string{}, list...)
	instead := "the agent reads them with the tool skill, and no others; copy them to BASE/skills: the definition does not load without them"
	if d.tools != nil && !slices.Contains(d.tools, "skill") && !slices.Contains(d.tools, "*") {
		instead = "the list alone; copy them to BASE/skills, and add skill to tools to let the agent read them"
	}
	d.lose("skills", "they are not put into the context when the agent starts", instead)
}

// permissionMode requires approval for the calls that the mode asks about.
func (d *draft) permissionMode(mode string) {
	before := len(d.ask)
	switch mode {
	case "bypassPermissions":
		return
	case "acceptEdits":
		d.requireApproval("bash", "delete_file", "delete", "mcp")
	case "plan":
		d.access = "read"
		d.requireApproval("bash", "mcp")
	default:
		d.requireApproval(slices.Concat([]string{"bash"}, fileWriters(), []string{"mcp"})...)
	}
	instead := d.asked(before)
	if mode == "plan" {
		instead = "view.access: read, and " + instead
	}
	d.lose("permissionMode", fmt.Sprintf("scopefs has no mode %q", mode), instead)
}

// claudeHooks requires approval for the calls that a hook may deny.
func (d *draft) claudeHooks(n *yaml.Node) {
	pre := frontmatter.Value(n, "PreToolUse")
	if pre == nil {
		d.lose("hooks", "scopefs runs no hooks", "left out")
		return
	}
	var ask []string
	for _, h := range pre.Content {
		matcher := "*"
		if m := frontmatter.Value(h, "matcher"); m != nil {
			matcher = m.Value
		}
		for name := range strings.SplitSeq(matcher, "|") {
			patterns, known := d.denied(name)
			if !known || regexp.MustCompile(`\W`).MatchString(name) { // a regular expression
				patterns = []string{"*"}
			}
			ask = addTo(ask, patterns...)
		}
	}
	before := len(d.ask)
	switch {
	case slices.Contains(ask, "*"):
		d.ask = addTo(d.ask, "*")
	case slices.Contains(ask, "write_file"):
		d.requireApproval(addTo(ask, fileWriters()...)...)
	default:
		d.requireApproval(ask...)
	}
	d.lose("hooks", "scopefs runs no hooks, and one before a tool may refuse it", d.asked(before))
}

// asked returns text about the patterns added to d.ask since its length was before.
func (d *draft) asked(before int) string {
	if len(d.ask) == before {
		return "policy.tools.ask is unchanged"
	}
	return "policy.tools.ask has " + strings.Join(d.ask[before:], ", ")
}

// claudeServers reads servers: a list of names and of mappings from a name to a server, or one mapping.
func (d *draft) claudeServers(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		return eachKey(n, d.addServer)
	}
	if n.Kind != yaml.SequenceNode {
		return fmt.Errorf("line %d: want a list", n.Line)
	}
	for _, c := range n.Content {
		if c.Kind == yaml.MappingNode {
			if err := eachKey(c, d.addServer); err != nil {
				return err
			}
			continue
		}
		d.mentioned = addTo(d.mentioned, c.Value)
	}
	return nil
}
