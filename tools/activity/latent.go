package activity

import (
	"encoding/json"
	"fmt"

	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

// Guidance says what the material of a latent call is.
const guidance = "No program does this call: do it yourself, by the material above alone. This is guidance and no boundary."

// Latent returns the material for the caller's own model: what the call is about,
// its parameters and its context, and nothing else.
func Latent(name, about string, env tools.Env, params json.RawMessage) (tools.Result, error) {
	out := struct {
		Type     string          `json:"type"`
		Mode     string          `json:"mode"`
		Guidance string          `json:"guidance"`
		Call     json.RawMessage `json:"call"`
		Context  json.RawMessage `json:"context"`
	}{name, "latent", guidance, params, env.Context.JSON()}
	text, err := json.Marshal(out)
	if err != nil {
		return tools.Result{}, err
	}
	call := fmt.Sprintf("%s: %s\n%s", name, about, params)
	material := env.Context.Text(string(env.Agent)) + scoped.Block("call", string(env.Agent), call) + guidance
	return tools.Result{Structured: text, Content: []tools.Content{{Text: material}}}, nil
}
