package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

// The profiles: names and forms of the same tools that models were taught.
const (
	ProfileClaude          = "claude"
	ProfileAnthropicEditor = "anthropic-editor"
	ProfileMCPFS           = "mcp-fs"
)

// ErrProfile is the error of a profile that is not known.
var ErrProfile = errors.New("unknown profile")

// Profile returns the aliases of a profile, as far as they are for files.
func Profile(name string) ([]tools.Tool, error) {
	var l kit
	switch name {
	case ProfileClaude:
		claude(&l)
	case ProfileAnthropicEditor:
		anthropicEditor(&l)
	case ProfileMCPFS:
		mcpReads(&l)
		mcpWrites(&l)
		mcpSearches(&l)
	default:
		return nil, fmt.Errorf("%w %q: want %s, %s or %s", ErrProfile, name, ProfileClaude, ProfileAnthropicEditor, ProfileMCPFS)
	}
	return l.tools, l.err
}

// alias adds an alias of one native tool that is called once.
func alias[In, Native any](l *kit, name, about string, hints tools.Hints, native string, args func(In) (Native, error), render func(In, tools.Result) tools.Result) {
	aliasOf(l, name, about, hints, []string{native}, func(in In) ([]tools.Inner, error) {
		a, err := args(in)
		return []tools.Inner{{Tool: native, Args: a}}, err
	}, func(in In, all []tools.Result) tools.Result { return render(in, all[0]) })
}

func aliasOf[In any](l *kit, name, about string, hints tools.Hints, covers []string, calls func(In) ([]tools.Inner, error), render func(In, []tools.Result) tools.Result) {
	l.take(tools.Alias(name, about, hints, covers, calls, render))
}

// out is the structured part of a native tool's result.
func out[Out any](r tools.Result) (o Out) {
	json.Unmarshal(r.Structured, &o) // of a schema of ours: it is one
	return o
}

func say(format string, args ...any) tools.Result {
	return tools.Result{Content: []tools.Content{{Text: fmt.Sprintf(format, args...)}}}
}

// numberedText is what cat -n prints, with long lines cut.
func numberedText(r readResult) string {
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
