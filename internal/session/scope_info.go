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
	Paths       []scopePath    `json:"paths,omitempty" jsonschema:"what is more restricted than the rest"`
	Roots       []scopeRoot    `json:"roots,omitempty" jsonschema:"further directories, at their paths"`
	Tools       []scopeTool    `json:"tools"`
	Scope       string         `json:"scope,omitempty" jsonschema:"skills, servers and members"`
	Rules       string         `json:"rules,omitempty" jsonschema:"what else restricts"`
	Network     string         `json:"network" jsonschema:"none, host, or rules: the hosts in scope"`
	Limits      map[string]any `json:"limits,omitempty"`
}

// scopePath is a restricted path.
type scopePath struct {
	Pattern string `json:"pattern"`
	Access  string `json:"access"`
}

// scopeRoot is a further directory.
type scopeRoot struct {
	Dir    string `json:"dir" limit:"len=8192"`
	Access string `json:"access" jsonschema:"write, hold, read or ask"`
}

// scopeTool is a tool that the agent may call.
type scopeTool struct {
	Name string `json:"name"`
	Ask  bool   `json:"ask,omitempty" jsonschema:"calls must be approved by the operator"`
}

// newScopeInfo returns the tool scope_info, by which an agent learns what it may do. now returns the agent's definition, its rules and its tools at each call,
// roots the further directories.
func newScopeInfo(id scope.ID, now func() (*agents.Agent, *agents.Grants, []tools.Tool, error), roots func() []scopeRoot) ([]tools.Tool, error) {
	t, err := tools.New("scope_info",
		"Tell who you are, where your files are, which tools you have and what restricts you. Use it before you try what may be refused.",
		tools.Hints{Title: "Own scope", Idempotent: true},
		func(context.Context, tools.Env, struct{}) (scopeInfo, error) {
			def, rules, list, err := now()
			if err != nil {
				return scopeInfo{}, err
			}
			info := infoOf(id, def.Definition, rules, list)
			info.Roots = roots()
			return info, nil
		})
	return []tools.Tool{t}, err
}

// infoOf returns the scopeInfo of an agent. It lists no hidden path.
func infoOf(id scope.ID, def *agents.Definition, rules *agents.Grants, list []tools.Tool) scopeInfo {
	access := def.View.Access
	if rules.ReadOnly() { // of a member, its callers'
		access = scope.Read
	}
	info := scopeInfo{
		Agent: id, Description: def.Description, Root: sandbox.Workspace, Access: access.String(),
		Tools: []scopeTool{}, Scope: rules.Block(), Rules: rules.Limits(), Network: string(rules.Hosts().Kind()), Limits: limits(def.Limits),
	}
	for _, r := range agents.Distinct(def.View.Paths) {
		if r.Access != scope.Hide {
			info.Paths = append(info.Paths, scopePath{r.Pattern, r.Access.String()})
		}
	}
	for _, t := range list {
		info.Tools = append(info.Tools, scopeTool{t.Name, rules.Tool(t.Name).Ask})
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
