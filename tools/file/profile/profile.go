// Package profile offers the file tools under the names and forms that models were
// taught by other programs.
//
// A profile is a list of aliases ([tools.Alias]). Each translates its arguments to calls
// of the native tools of package file and their results back to text. The door decides
// and records each native call by its own name, so a profile widens nothing.
//
//   - [Claude]: Read, Write, Edit, MultiEdit, Glob, Grep and LS of Claude Code
//   - [AnthropicEditor]: str_replace_based_edit_tool of Anthropic's API
//   - [MCPFS]: the tools of @modelcontextprotocol/server-filesystem
package profile

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// The profiles.
const (
	Claude          = "claude"
	AnthropicEditor = "anthropic-editor"
	MCPFS           = "mcp-fs"
)

// ErrUnknown is the error of an unknown profile.
var ErrUnknown = errors.New("unknown profile")

// New returns the aliases of a profile for the tools of package file. reached returns the directories that the tools reach, for the agent;
// nil: its own alone.
func New(name string, reached func() []string) ([]tools.Tool, error) {
	if reached == nil {
		reached = func() []string { return []string{sandbox.Workspace} }
	}
	l := aliases{reached: reached}
	switch name {
	case Claude:
		claude(&l)
	case AnthropicEditor:
		anthropicEditor(&l)
	case MCPFS:
		mcpReads(&l)
		mcpWrites(&l)
		mcpSearches(&l)
	default:
		return nil, fmt.Errorf("%w %q: want %s, %s or %s", ErrUnknown, name, Claude, AnthropicEditor, MCPFS)
	}
	return l.tools, l.err
}

// aliases collects the aliases of a profile, and the errors of those that could not be
// made.
type aliases struct {
	tools   []tools.Tool
	err     error
	reached func() []string // see New
}

// alias adds an alias that calls one native tool once.
func alias[In, Native any](l *aliases, name, about string, hints tools.Hints, native string, args func(In) (Native, error), render func(In, tools.Result) tools.Result) {
	aliasOf(l, name, about, hints, []string{native}, func(in In) ([]tools.Inner, error) {
		a, err := args(in)
		return []tools.Inner{{Tool: native, Args: a}}, err
	}, func(in In, all []tools.Result) tools.Result { return render(in, all[0]) })
}

// aliasOf adds an alias that calls several native tools.
func aliasOf[In any](l *aliases, name, about string, hints tools.Hints, covers []string, calls func(In) ([]tools.Inner, error), render func(In, []tools.Result) tools.Result) {
	t, err := tools.Alias(name, about, hints, covers, calls, render)
	l.tools, l.err = append(l.tools, t), errors.Join(l.err, err)
}

// out returns the structured result of a native tool.
func out[Out any](r tools.Result) (o Out) {
	_ = json.Unmarshal(r.Structured, &o) // it has the native tool's schema
	return o
}

func say(format string, args ...any) tools.Result {
	return tools.Result{Content: []tools.Content{{Text: fmt.Sprintf(format, args...)}}}
}

// numberedText returns a text with line numbers as cat -n prints them. Long lines are
// cut.
func numberedText(r file.ReadResult) string {
	const longest = 2000 // bytes of a line
	var b strings.Builder
	n := 1
	if r.Lines != nil {
		n = r.Lines.Start
	}
	for line := range strings.Lines(r.Text) {
		line = strings.TrimRight(line, "\r\n")
		if len(line) > longest {
			line = strings.ToValidUTF8(line[:longest], "") + "…"
		}
		fmt.Fprintf(&b, "%6d\t%s\n", n, line)
		n++
	}
	if r.NextOffset > 0 {
		fmt.Fprintf(&b, "[there is more; go on at line %d]\n", r.NextOffset)
	}
	return b.String()
}
