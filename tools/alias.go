package tools

import (
	"encoding/json"
	"fmt"
)

// face is another name and form of some tools.
type face struct {
	covers []string
	calls  func(json.RawMessage) ([]Inner, error)
	render func(json.RawMessage, []Result) Result
}

// Inner is a call that an alias stands for.
type Inner struct {
	Tool string
	Args any // becomes JSON

	// Optional: the calls after it are made although it fails. Its result is then
	// the error, for a model to read.
	Optional bool `json:",omitempty"`
}

// Alias returns a tool that is other tools under another name and form, as a
// model was taught them. What it does is what the covered tools do: each of the
// calls goes through the door under the covered tool's own name, one after the
// other, until one fails that is not optional. A covered tool is not offered under its own name.
// render makes one result of theirs; nil joins what they say.
func Alias[In any](name, about string, hints Hints, covers []string, calls func(In) ([]Inner, error), render func(In, []Result) Result) (Tool, error) {
	t := Tool{Name: name, About: about, Hints: hints}
	var err error
	if t.Input, err = schemaOf[In](); err == nil {
		t.input, err = t.Input.Resolve(nil)
	}
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	t.face = &face{
		covers: covers,
		calls: func(args json.RawMessage) ([]Inner, error) {
			in, err := decode[In](args)
			if err != nil {
				return nil, err
			}
			return calls(in)
		},
		render: func(args json.RawMessage, all []Result) Result {
			if in, err := decode[In](args); err == nil && render != nil {
				return render(in, all)
			}
			var joined Result
			for _, r := range all {
				joined.Content = append(joined.Content, r.Content...)
			}
			return joined
		},
	}
	return t, nil
}
