package tools

import (
	"encoding/json"
	"fmt"

	"github.com/scopefs/scopefs/scope/effect"
)

// maxResult bounds a result, in bytes.
const maxResult = 8 << 20

// Result is the result of a call.
type Result struct {
	Structured json.RawMessage // an object after the tool's output schema, or nil
	Content    []Content       // for a model to read

	value any  // the value whose JSON is Structured, or nil
	exit  *int // see Exiter

	of      Begun           // see Of
	effects *effect.Effects // of the call; nil: not known
	text    string          // of them, which is the last of Content; "": there is none
	inside  bool            // Structured has them
}

// Value returns a value whose JSON is Structured: the tool's own value, which encodes
// faster, or Structured itself. It returns nil if there is none.
func (r Result) Value() any {
	if r.value == nil && r.Structured != nil {
		return r.Structured
	}
	return r.value
}

// Content is a piece of a result: text, or data of a MIME type.
type Content struct {
	Text string
	Data []byte
	MIME string // "" is text

	Effects bool // it says what the call has changed: see Result.Effects
}

// Contenter is implemented by an Out with better text than its JSON.
type Contenter interface{ Content() []Content }

// Exiter is implemented by an Out that reports the exit status of a command. The record
// of the call's end has the status: 128+N after signal N, nil while the command runs.
type Exiter interface{ Exit() *int }

func newResult(out any) (Result, error) {
	text, err := json.Marshal(out)
	if err != nil {
		return Result{}, fmt.Errorf("result: %w", err)
	}
	r := Result{Structured: text, value: out}
	if e, ok := out.(Exiter); ok {
		r.exit = e.Exit()
	}
	if o, ok := out.(Of); ok {
		r.of = o.Of()
	}
	if c, ok := out.(Contenter); ok {
		r.Content = c.Content()
	} else {
		r.Content = []Content{{Text: string(PlainJSON(text))}}
	}
	return r, nil
}

// size returns the bytes of a result, for the log.
func (r Result) size() int64 {
	n := len(r.Structured)
	for _, c := range r.Content {
		n += len(c.Text) + len(c.Data)
	}
	return int64(n)
}
