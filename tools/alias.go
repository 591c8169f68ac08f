package tools

import (
	"encoding/json"
	"fmt"
)

// face translates the calls of an alias. It is immutable.
type face struct {
	covers []string
	read   func(json.RawMessage) ([]Inner, func([]Result) Result, error) // returns the calls, and the function that joins their results
}

// Inner is a call that an alias makes.
type Inner struct {
	Tool string
	Args any // becomes JSON

	// Optional reports that the following calls are made even if this one fails. Its
	// result is then the error.
	Optional bool `json:",omitempty"`
}

// Alias returns a tool that offers the covered tools under another name and form, which
// a model was trained on. Each of its calls passes the door under the covered tool's own
// name, one after the other, until one fails that is not optional. The set does not list
// covered tools by their own names. render joins the results; nil joins their contents.
func Alias[In any](name, about string, hints Hints, covers []string, calls func(In) ([]Inner, error), render func(In, []Result) Result) (Tool, error) {
	schema, err := schemaOf[In]()
	if err != nil {
		return Tool{}, fmt.Errorf("tool %q: %w", name, err)
	}
	t := Tool{Name: name, About: about, Hints: hints, Input: schema.schema, input: schema.valid}
	t.face = &face{covers, func(args json.RawMessage) ([]Inner, func([]Result) Result, error) {
		in, err := decode[In](args)
		if err != nil {
			return nil, nil, err
		}
		inner, err := calls(in)
		if render == nil {
			return inner, Joined, err
		}
		return inner, func(all []Result) Result { return render(in, all) }, err
	}}
	return t, nil
}

// Joined returns the contents of results as one result.
func Joined(all []Result) (one Result) {
	for _, r := range all {
		one.Content = append(one.Content, r.Content...)
	}
	return one
}
