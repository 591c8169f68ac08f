package tools

import (
	"encoding/json"
	"fmt"
)

// face is another name and form of some tools.
type face struct {
	covers []string
	read   func(json.RawMessage) ([]Inner, func([]Result) Result, error) // returns the calls, and the function that joins their results
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
// render joins their results; nil joins their contents.
func Alias[In any](name, about string, hints Hints, covers []string, calls func(In) ([]Inner, error), render func(In, []Result) Result) (Tool, error) {
	t := Tool{Name: name, About: about, Hints: hints}
	var err error
	if t.Input, err = schemaOf[In](); err == nil {
		t.input, err = t.Input.Resolve(nil)
	}
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	t.face = &face{covers, func(args json.RawMessage) ([]Inner, func([]Result) Result, error) {
		in, err := decode[In](args)
		if err != nil {
			return nil, nil, err
		}
		inner, err := calls(in)
		if render == nil {
			return inner, joined, err
		}
		return inner, func(all []Result) Result { return render(in, all) }, err
	}}
	return t, nil
}

func joined(all []Result) (one Result) {
	for _, r := range all {
		one.Content = append(one.Content, r.Content...)
	}
	return one
}
