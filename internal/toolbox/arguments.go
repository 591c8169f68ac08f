package toolbox

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

// Arguments returns the JSON object of --args and the NAME=TEXT and NAME:=JSON words. A text - stands for what in has.
func Arguments(in io.Reader, text string, words []string) (json.RawMessage, error) {
	object := map[string]json.RawMessage{}
	if text == "-" {
		all, err := bounded.Read(in, 16<<20)
		if err != nil {
			return nil, err
		}
		text = string(all)
	}
	if text != "" {
		canonical, err := tools.Canonical(json.RawMessage(text))
		if err == nil {
			err = json.Unmarshal(canonical, &object)
		}
		if err != nil {
			return nil, fmt.Errorf("--args: want a JSON object: %w", err)
		}
	}
	for _, word := range words {
		k, v, ok := strings.Cut(word, "=")
		value, err := json.Marshal(v)
		if name, raw := strings.CutSuffix(k, ":"); raw {
			k, value = name, json.RawMessage(v)
		}
		if !ok || k == "" || err != nil || !json.Valid(value) {
			return nil, fmt.Errorf("%q: want NAME=TEXT or NAME:=JSON", word)
		}
		if _, twice := object[k]; twice {
			return nil, fmt.Errorf("%s is given twice: give it once, also beside --args", k)
		}
		object[k] = value
	}
	return json.Marshal(object)
}

// Background returns the process id of a result of bash whose command is running; "" for other results.
func Background(r mcp.Result) string {
	var said struct {
		Running   bool   `json:"running"`
		ProcessID string `json:"process_id"`
	}
	if json.Unmarshal(r.Structured, &said) != nil || !said.Running {
		return ""
	}
	return said.ProcessID
}
