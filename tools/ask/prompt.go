package ask

import (
	"context"
	"encoding/json"
	"regexp"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/scopefs/scopefs/tools"
)

// PromptName is the name of the tool of [Prompt].
const PromptName = "permission_prompt"

// Permission is the request of a client's program to use one of its own tools.
type Permission struct {
	Tool  string          `json:"tool_name"`
	Input json.RawMessage `json:"input"` // an object
}

// Verdict is the answer to a Permission. Why is for the model, if it is refused.
type Verdict struct {
	Granted bool
	Why     string
}

// Prompt returns the tool permission_prompt, for Claude Code's option
// --permission-prompt-tool. Claude Code calls it before it uses a tool of its own that its
// settings neither allow nor deny, with {tool_name, input, tool_use_id}, and expects a
// text: {"behavior": "allow", "updatedInput": {...}} or {"behavior": "deny", "message":
// "..."}. What decide does not grant is denied.
//
// It is Claude Code that obeys. What the tool's process can reach does not depend on it.
func Prompt(decide func(context.Context, tools.Env, Permission) Verdict) tools.Tool {
	text := &jsonschema.Schema{Type: "string"}
	schema := &jsonschema.Schema{Type: "object", Required: []string{"tool_name", "input"},
		Properties: map[string]*jsonschema.Schema{"tool_name": text, "input": {Type: "object"}, "tool_use_id": text}}
	return tools.Dynamic(PromptName, "Ask the operator for a permission. For a client's program, not for the model: use ask_user.",
		tools.Hints{Title: "Ask for a permission", Waits: true}, schema,
		func(ctx context.Context, env tools.Env, args json.RawMessage) (tools.Result, error) {
			var in Permission
			if err := json.Unmarshal(args, &in); err != nil || !toolName().MatchString(in.Tool) || len(in.Input) == 0 || in.Input[0] != '{' {
				return tools.Result{}, tools.Errorf(tools.Invalid, "want tool_name, a name of at most 128 characters, and input, an object")
			}
			said := decide(ctx, env, in)
			answer := map[string]any{"behavior": "deny", "message": said.Why}
			if said.Granted {
				answer = map[string]any{"behavior": "allow", "updatedInput": in.Input}
			}
			text, err := json.Marshal(answer)
			return tools.Result{Content: []tools.Content{{Text: string(text)}}}, err
		})
}

var toolName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`) })

// Shell returns the command of a request that runs one and says nothing else that matters
// to what runs.
func (r Permission) Shell() (command string, ok bool) {
	var in map[string]json.RawMessage
	if r.Tool != "Bash" || json.Unmarshal(r.Input, &in) != nil {
		return "", false
	}
	for name := range in {
		if name != "command" && name != "description" && name != "timeout" && name != "run_in_background" {
			return "", true
		}
	}
	if json.Unmarshal(in["command"], &command) != nil {
		return "", true
	}
	return command, true
}
