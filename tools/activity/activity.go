// Package activity runs the program of a declared call. The program gets the call and
// its whole context as JSON on standard input, and what it writes to standard output is
// the result:
//
//	{"call":{"_tool":"logEvent","eventName":"login"},
//	 "context":{"state":[{"type":"state","userId":"u1"}]},
//	 "scopes":{"state":{"userId":"u1"}}}
//
// scopes has each scope's messages merged into one object, without type and _instance; of
// two members with one name the later message's counts.
// The members of call that begin with an underscore are those of the protocol, the
// others the parameters. A JSON object on standard output is a structured result;
// anything else is text. A program that exits with another status than 0 fails the call,
// and the end of its standard error is in the error.
package activity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	scoped "github.com/scopefs/scopefs/scope/context"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

const (
	// Timeout bounds a program. The limits of its sandbox may be lower.
	Timeout = 2 * time.Minute

	maxOutput = 1 << 20 // bytes of stdout
	maxErrors = 2 << 10 // bytes of the end of stderr in an error
)

// Run runs a command for a call of a tool, and returns its result. The end of ctx kills
// the command.
func Run(ctx context.Context, in sandbox.Starter, c sandbox.Command, tool string, params json.RawMessage,
	s scoped.Scoped) (tools.Result, error) {
	input, err := input(tool, params, s)
	if err != nil {
		return tools.Result{}, err
	}
	within, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	out, err := sandbox.Collect(within, in, c, input, maxOutput, 2*maxErrors)
	switch {
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return tools.Result{}, tools.Errorf(tools.Unavailable, "%s took longer than %v", tool, Timeout)
	case err != nil:
		return tools.Result{}, err
	case out.Exit.Code != 0 || out.Exit.Signal != 0:
		return tools.Result{}, failure(tool, out)
	case out.Cut:
		return tools.Result{}, tools.Errorf(tools.TooLarge, "%s wrote more than %d bytes", tool, maxOutput)
	}
	return result(out.Stdout), nil
}

// input returns what a program reads. params is an object.
func input(tool string, params json.RawMessage, s scoped.Scoped) (string, error) {
	head := scoped.Envelope{Tool: &tool}
	if !s.Empty() {
		head.Scopes = s.Names()
	}
	if instance := s.Instance(); instance != "" {
		head.Instance = &instance
	}
	call, err := head.With(params)
	return fmt.Sprintf(`{"call":%s,"context":%s,"scopes":%s}`, call, s.JSON(), s.Merged()) + "\n", err
}

// result returns the result of a program that wrote text.
func result(text string) tools.Result {
	r := tools.Result{Content: []tools.Content{{Text: text}}}
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "{") && json.Valid([]byte(trimmed)) {
		r.Structured = json.RawMessage(trimmed)
	}
	return r
}

// failure returns the error of a program that did not succeed.
func failure(tool string, out sandbox.Output) error {
	detail := strings.TrimSpace(tools.Clean(out.Stderr))
	if detail != "" {
		detail = ": " + strings.ToValidUTF8(detail[max(0, len(detail)-maxErrors):], "")
	}
	return tools.Errorf(tools.Internal, "%s ended %s%s", tool, out.Exit, detail)
}
