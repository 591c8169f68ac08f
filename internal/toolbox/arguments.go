package toolbox

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/tools"
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
	return command.Arguments(object, words)
}
