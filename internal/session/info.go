package session

import (
	"context"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// scopeInfo is the result of scope_info: what an agent may know of itself.
type scopeInfo struct {
	Agent       scope.ID       `json:"agent"`
	Description string         `json:"description,omitempty"`
	Root        string         `json:"root" jsonschema:"where the files are"`
	Access      string         `json:"access" jsonschema:"write or read"`
	Paths       []pathInfo     `json:"paths,omitempty" jsonschema:"what is more restricted than the rest"`
	Tools       []toolInfo     `json:"tools"`
	Scope       string         `json:"scope,omitempty" jsonschema:"skills, servers and members"`
	Rules       string         `json:"rules,omitempty" jsonschema:"what else restricts"`
	Network     string         `json:"network" jsonschema:"none, host, or rules: the hosts in scope"`
	Limits      map[string]any `json:"limits,omitempty"`
}

type pathInfo struct {
	Pattern string `json:"pattern"`
	Access  string `json:"access"`
}

type toolInfo struct {
	Name string `json:"name"`
	Ask  bool   `json:"ask,omitempty" jsonschema:"calls must be approved by the operator"`
}

// info returns the tool scope_info. It lists no hidden path.
func (c *client) info() ([]tools.Tool, error) {
	t, err := tools.New("scope_info", "Tells who you are, where your files are, which tools you have and what restricts you.",
		tools.Hints{Title: "Own scope", Idempotent: true},
		func(context.Context, tools.Env, struct{}) (scopeInfo, error) {
			def, err := c.agent.Definition()
			if err != nil {
				return scopeInfo{}, err
			}
			rules := c.rules()
			info := scopeInfo{
				Agent: c.agent.id, Description: def.Description, Root: sandbox.Workspace, Access: def.View.Access.String(),
				Tools: []toolInfo{}, Scope: rules.Block(), Rules: rules.Limits(), Network: string(rules.Hosts().Kind()), Limits: limitsInfo(def.Limits),
			}
			for _, r := range def.View.Paths {
				if r.Access != scope.Hide {
					info.Paths = append(info.Paths, pathInfo{r.Pattern, r.Access.String()})
				}
			}
			for _, t := range c.set.List() {
				info.Tools = append(info.Tools, toolInfo{t.Name, rules.Tool(t.Name).Ask})
			}
			return info, nil
		})
	return []tools.Tool{t}, err
}

func limitsInfo(l agents.Limits) map[string]any {
	all := map[string]any{}
	if l.Memory > 0 {
		all["memory_bytes"] = l.Memory
	}
	if l.PIDs > 0 {
		all["pids"] = l.PIDs
	}
	if l.CPU > 0 {
		all["cpu"] = l.CPU
	}
	if l.Timeout > 0 {
		all["timeout_seconds"] = l.Timeout.Seconds()
	}
	all["open_files"], all["links"], _ = l.View()
	return all
}
