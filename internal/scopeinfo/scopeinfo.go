// Package scopeinfo has the tool scope_info, by which an agent learns what it may do.
package scopeinfo

import (
	"context"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Info is the result of scope_info: what an agent may know of itself.
type Info struct {
	Agent       scope.ID       `json:"agent"`
	Description string         `json:"description,omitempty"`
	Root        string         `json:"root" jsonschema:"where the files are"`
	Access      string         `json:"access" jsonschema:"write or read"`
	Paths       []Path         `json:"paths,omitempty" jsonschema:"what is more restricted than the rest"`
	Tools       []Tool         `json:"tools"`
	Scope       string         `json:"scope,omitempty" jsonschema:"skills, servers and members"`
	Rules       string         `json:"rules,omitempty" jsonschema:"what else restricts"`
	Network     string         `json:"network" jsonschema:"none, host, or rules: the hosts in scope"`
	Limits      map[string]any `json:"limits,omitempty"`
}

// Path is a restricted path.
type Path struct {
	Pattern string `json:"pattern"`
	Access  string `json:"access"`
}

// Tool is a tool that the agent may call.
type Tool struct {
	Name string `json:"name"`
	Ask  bool   `json:"ask,omitempty" jsonschema:"calls must be approved by the operator"`
}

// New returns the tool. now returns the agent's definition, its rules and its tools at each call.
func New(id scope.ID, now func() (*agents.Agent, *agents.Grants, []tools.Tool, error)) ([]tools.Tool, error) {
	t, err := tools.New("scope_info", "Tells who you are, where your files are, which tools you have and what restricts you.",
		tools.Hints{Title: "Own scope", Idempotent: true},
		func(context.Context, tools.Env, struct{}) (Info, error) {
			def, rules, list, err := now()
			if err != nil {
				return Info{}, err
			}
			return of(id, def.Definition, rules, list), nil
		})
	return []tools.Tool{t}, err
}

// of returns the Info of an agent. It lists no hidden path.
func of(id scope.ID, def *agents.Definition, rules *agents.Grants, list []tools.Tool) Info {
	info := Info{
		Agent: id, Description: def.Description, Root: sandbox.Workspace, Access: def.View.Access.String(),
		Tools: []Tool{}, Scope: rules.Block(), Rules: rules.Limits(), Network: string(rules.Hosts().Kind()), Limits: limits(def.Limits),
	}
	for _, r := range def.View.Paths {
		if r.Access != scope.Hide {
			info.Paths = append(info.Paths, Path{r.Pattern, r.Access.String()})
		}
	}
	for _, t := range list {
		info.Tools = append(info.Tools, Tool{t.Name, rules.Tool(t.Name).Ask})
	}
	return info
}

func limits(l agents.Limits) map[string]any {
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
