package imports

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// patterns returns scopefs patterns that match at least the imported tools matched by a pattern of the manifest
// (Python's fnmatch).
func (m *manifest) patterns(glob string) (out []string) {
	// The manifest's documentation also uses MODULE.TOOL and the name of a type.
	matches := func(name string) bool {
		return fnmatch(glob, name) || fnmatch(strings.Replace(glob, ".", "_", 1), name)
	}
	for name, tool := range m.files {
		if matches(name) {
			out = addTo(out, tool)
		}
	}
	for _, s := range m.servers {
		kind := strings.HasPrefix(glob, "mcp_proxy.")
		switch {
		case slices.Contains(m.open, s.name) && (kind || mayMatch(glob, s.name+"_")):
			out = addTo(out, m.ofOpen(glob, s.name))
		case !slices.Contains(m.open, s.name):
			for _, t := range m.tools {
				tool, ok := strings.CutPrefix(t, "mcp:"+s.name+":")
				safe := regexp.MustCompile(`\W`).ReplaceAllString(tool, "_")
				if ok && (kind || matches(s.name+"_"+tool) || matches(s.name+"_"+safe)) {
					out = addTo(out, t)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// ofOpen returns a pattern for the tools that a glob may match on a server with unknown tools.
func (m *manifest) ofOpen(glob, name string) string {
	tool, ok := strings.CutPrefix(glob, name+"_")
	if !ok {
		tool, ok = strings.CutPrefix(glob, name+".")
	}
	if !ok || !regexp.MustCompile(`^[\w*?]+$`).MatchString(tool) || regexp.MustCompile(`^tool_\d`).MatchString(tool) {
		return mcpTool(name, "*")
	}
	// The manifest replaces any other character of a tool's name with '_'.
	return mcpTool(name, regexp.MustCompile(`[_?*]+`).ReplaceAllString(tool, "*"))
}

// mayMatch reports whether a glob may match a name with the prefix.
func mayMatch(glob, prefix string) bool {
	at := strings.IndexAny(glob, "*?[")
	head := glob
	if at >= 0 {
		head = glob[:at]
	}
	for _, head := range []string{head, strings.Replace(head, ".", "_", 1)} {
		if strings.HasPrefix(head, prefix) || at >= 0 && strings.HasPrefix(prefix, head) {
			return true
		}
	}
	return false
}

// fnmatch is Python's fnmatch.fnmatchcase for * and ?. A set matches any character.
func fnmatch(glob, name string) bool {
	re := regexp.QuoteMeta(regexp.MustCompile(`\[[^\]]+\]`).ReplaceAllString(glob, "?"))
	re = strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(re)
	ok, _ := regexp.MatchString("^(?s:"+re+")$", name)
	return ok
}

func (m *manifest) limits(n *yaml.Node) error {
	add := func(at, pattern string, v *yaml.Node) error {
		digits, unit, _ := strings.Cut(v.Value, "/")
		calls, err := strconv.Atoi(digits)
		if err != nil || calls < 0 || !slices.Contains([]string{"second", "minute", "hour"}, unit) {
			return fmt.Errorf("line %d: %q is not a limit: want N/second, N/minute or N/hour", v.Line, v.Value)
		}
		if calls == 0 {
			m.exclude = addTo(m.exclude, pattern)
			m.lose(at, "a limit must be at least 1", "policy.tools.exclude has "+pattern)
			return nil
		}
		m.limit(at, rate{pattern, calls, unit})
		return nil
	}
	f := fields{"global": func(v *yaml.Node) error { return add("rate_limits.global", "*", v) }}
	f["global_limit"] = f["global"]
	f["per_tool"] = func(n *yaml.Node) error {
		return eachKey(n, func(glob string, v *yaml.Node) error {
			at := "rate_limits.per_tool." + glob
			switch list := m.patterns(glob); len(list) {
			case 0:
				m.lose(at, "it matches no tool that was imported", "left out")
				return nil
			case 1:
				return add(at, list[0], v)
			default:
				// One counter for all of them: separate counters would allow more calls.
				m.lose(at, "one limit for "+strings.Join(list, " and ")+" has no pattern", "the limit is for all tools together")
				return add(at, "*", v)
			}
		})
	}
	return f.read(m.draft, "rate_limits.", n)
}

func (m *manifest) filter(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode {
		return fmt.Errorf("line %d: want a list", n.Line)
	}
	for _, c := range n.Content {
		var name, pattern, action string
		fold := false
		scope := []string{"*"}
		f := fields{
			"name": textField(&name), "pattern": textField(&pattern), "action": textField(&action),
			"fields":           listField(&scope),
			"decode":           func(*yaml.Node) error { return nil }, // always done here
			"case_insensitive": into(&fold, boolOf),
		}
		if err := f.read(m.draft, "argument_filters.", c); err != nil {
			return err
		}
		at := "argument_filters." + name
		if action == "warn" {
			m.lose(at, "a filter here refuses, it does not warn", "left out")
			continue
		}
		if pattern == "" {
			pattern = "(?:)" // which matches everything
		}
		re, err := goPattern(pattern, fold)
		if err != nil {
			m.ask = addTo(m.ask, "*")
			m.lose(at, "its pattern has no equal in Go's regexp", "every call is asked about (policy.tools.ask)")
			continue
		}
		if !slices.Contains(scope, "*") {
			m.lose(at+".fields", "a filter here is for all texts of a call", "also applied beyond "+strings.Join(scope, ", "))
		}
		m.filters = addTo(m.filters, re)
	}
	return nil
}

func (m *manifest) approvals(n *yaml.Node) error {
	var ask, shadow []string
	f := fields{"approval_required": listField(&ask), "shadow": listField(&shadow)}
	m.loseKeys(f, "hitl.", "scopefs approvals answers, in its own time", "timeout_seconds", "notify")
	if err := f.read(m.draft, "hitl.", n); err != nil {
		return err
	}
	known := func(at, glob string) []string {
		list := m.patterns(glob)
		if len(list) == 0 {
			m.lose(at+glob, "it matches no tool that was imported", "left out")
		}
		return list
	}
	for _, glob := range ask {
		m.ask = addTo(m.ask, known("hitl.approval_required: ", glob)...)
	}
	for _, glob := range shadow {
		if list := known("hitl.shadow: ", glob); len(list) > 0 {
			m.exclude = addTo(m.exclude, list...)
			m.lose("hitl.shadow: "+glob, "a call here is not pretended", "policy.tools.exclude has "+strings.Join(list, ", "))
		}
	}
	return nil
}
