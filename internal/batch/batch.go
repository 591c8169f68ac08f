// Package batch makes the calls of a file.
package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/caller"
	"github.com/scopefs/scopefs/internal/report"
	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
)

// The bounds of a file of calls.
const (
	maxCallsFile = 64 << 20 // bytes
	MaxParallel  = 32       // calls that run at the same time: a session's
)

// Batch is the calls of a file, and the context that the file has for them.
type Batch struct {
	calls []json.RawMessage

	Context []byte // an array of messages; nil: the file has none
}

// outcome is the line of one call. It has a result or an error.
type outcome struct {
	Call   int             `json:"call"` // its place in the file, from 0
	Tool   string          `json:"tool,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"` // code, message, path
}

// Is reports whether the words of call name a file of calls.
func Is(words []string) bool {
	return len(words) == 1 && (words[0] == "-" || strings.HasSuffix(words[0], ".json") && !ofServer(words[0]))
}

// ofServer reports whether a tool is an MCP server's.
func ofServer(tool string) bool {
	return strings.HasPrefix(tool, "mcp:") || strings.HasPrefix(tool, "mcp__")
}

// Read reads a file with a call, {"_tool": ...}, with {"calls": [...]}, or with an
// array of context messages and such objects; "-" is in.
func Read(name string, in io.Reader) (b Batch, err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return b, err
		}
		defer f.Close()
		in = f
	}
	text, err := bounded.Read(in, maxCallsFile)
	if errors.Is(err, bounded.ErrTooLong) {
		return b, fmt.Errorf("%s: more than %d bytes: divide it", name, maxCallsFile)
	}
	if err != nil {
		return b, err
	}
	if strings.HasPrefix(strings.TrimSpace(string(text)), "[") {
		return mixedBatch(name, text)
	}
	b.calls, err = callsOf(name, text)
	return b, err
}

// mixedBatch reads an array in which objects with _tool or calls are calls, and the
// others messages of their context.
func mixedBatch(name string, text []byte) (b Batch, err error) {
	var all, messages []json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return b, fmt.Errorf("%s: %w", name, err)
	}
	for _, item := range all {
		var head struct {
			Tool  json.RawMessage `json:"_tool"`
			Calls json.RawMessage `json:"calls"`
			Type  json.RawMessage `json:"type"`
		}
		if err := json.Unmarshal(item, &head); err != nil || head.Type != nil || head.Tool == nil && head.Calls == nil {
			messages = append(messages, item) // Parse reports what is no message
			continue
		}
		calls, err := callsOf(name, item)
		if err != nil {
			return b, err
		}
		b.calls = append(b.calls, calls...)
	}
	if len(b.calls) == 0 {
		return b, fmt.Errorf("%s: the array has no call: add an object with _tool", name)
	}
	if b.Context, err = json.Marshal(append([]json.RawMessage{}, messages...)); err != nil {
		return b, err
	}
	if _, bad := scoped.Parse(b.Context); bad != nil {
		return b, fmt.Errorf("%s: %w", name, errors.New(bad.Error()))
	}
	return b, nil
}

// callsOf returns the calls of an object: itself, or those in its member calls.
func callsOf(name string, text []byte) (calls []json.RawMessage, err error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("%s: want a call, {\"calls\": [...]}, or an array of both and messages: %w", name, err)
	}
	all, many := object["calls"]
	if _, one := object["_tool"]; one || !many {
		return []json.RawMessage{text}, nil
	}
	if err := json.Unmarshal(all, &calls); err != nil {
		return nil, fmt.Errorf("%s: calls: want an array: %w", name, err)
	}
	if len(object) > 1 {
		return nil, fmt.Errorf("%s: beside calls there is more: remove it", name)
	}
	return calls, nil
}

// Run makes the calls, parallel of them at the same time, and prints a line for each, in their
// order. A call that fails does not stop the others. Lines wait for earlier ones: so
// no call begins that is far ahead of the first that has not ended.
func (b Batch) Run(ctx context.Context, client *caller.Client, parallel int, out io.Writer) error {
	lines := make([]chan outcome, len(b.calls))
	for i := range lines {
		lines[i] = make(chan outcome, 1)
	}
	ahead := make(chan struct{}, 4*parallel)
	next := make(chan int)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for i := range next {
				lines[i] <- call(ctx, client, i, b.calls[i])
			}
		})
	}
	go func() {
		defer close(next)
		for i := range b.calls {
			ahead <- struct{}{}
			next <- i
		}
	}()
	defer workers.Wait()
	failed := 0
	var wrong error
	for _, line := range lines {
		o := <-line
		<-ahead
		if o.Error != nil {
			failed++
		}
		if err := report.Line(out, o); err != nil && wrong == nil {
			wrong = err
		}
	}
	if wrong == nil && failed > 0 {
		wrong = fmt.Errorf("%d of %d calls failed", failed, len(b.calls))
	}
	return wrong
}

// call makes one call of a batch.
func call(ctx context.Context, client *caller.Client, i int, args json.RawMessage) outcome {
	o := outcome{Call: i}
	fail := func(e *tools.Error) outcome {
		o.Error, _ = json.Marshal(e) // cannot fail
		return o
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(args, &members); err != nil || members == nil {
		return fail(tools.Errorf(tools.Invalid, "a call is an object"))
	}
	if err := json.Unmarshal(members["_tool"], &o.Tool); err != nil || o.Tool == "" {
		return fail(&tools.Error{Code: tools.Invalid, Message: "want the name of a tool", Path: "/_tool"})
	}
	if ofServer(o.Tool) { // all its arguments are the server's
		delete(members, "_tool")
		var err error
		if args, err = json.Marshal(members); err != nil {
			return fail(tools.Errorf(tools.Invalid, "%v", err))
		}
	}
	r, err := client.Call(ctx, o.Tool, args)
	switch {
	case err != nil:
		return fail(tools.Errorf(tools.Unavailable, "%v; whether the call had an effect is unknown", err))
	case r.Failed && json.Valid([]byte(r.Text)):
		o.Error = json.RawMessage(r.Text)
	case r.Failed:
		return fail(tools.Errorf(tools.Internal, "%s", r.Text))
	case r.Structured != nil:
		o.Result = r.Structured
	default:
		o.Result, _ = json.Marshal(map[string]string{"text": r.Text}) // cannot fail
	}
	return o
}
