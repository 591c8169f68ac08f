package bash

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/scopefs/scopefs/tools"
)

// Profile returns aliases of this package's tools under the names and arguments
// that a client's model was trained on: "claude" (Claude Code's Bash, BashOutput
// and KillShell), "anthropic-editor" (Anthropic's bash tool), "mcp-fs" (none). Any
// other name is an error.
func Profile(name string) ([]tools.Tool, error) {
	switch name {
	case "claude":
		return claude()
	case "anthropic-editor":
		t, err := tools.Alias("bash", "Run a command with bash. Each call starts a new shell.",
			tools.Hints{Title: "Run a command", Acts: true, Destructive: true},
			[]string{"bash"}, anthropicBash.calls, anthropicBash.render)
		return []tools.Tool{t}, err
	case "mcp-fs":
		return nil, nil
	}
	return nil, fmt.Errorf("unknown profile %q", name)
}

type anthropicBash struct {
	Command string `json:"command,omitempty" limit:"len=131072"`
	Restart bool   `json:"restart,omitempty" jsonschema:"restart the shell"`
}

func (in anthropicBash) calls() ([]tools.Inner, error) {
	switch {
	case in.Restart: // no state persists between calls: the command only shows that the sandbox works
		return []tools.Inner{{Tool: "bash", Args: runArgs{Command: ":"}}}, nil
	case in.Command == "":
		return nil, tools.Errorf(tools.Invalid, "neither command nor restart is given")
	}
	return []tools.Inner{{Tool: "bash", Args: runArgs{Command: in.Command}}}, nil
}

func (in anthropicBash) render(all []tools.Result) tools.Result {
	if in.Restart {
		return tools.Result{Content: textContent("tool has been restarted")}
	}
	return tools.Joined(all)
}

type claudeBash struct {
	Command     string `json:"command" limit:"len=131072"`
	Timeout     int    `json:"timeout,omitempty" jsonschema:"milliseconds; default 120000" limit:"min=1,max=600000"`
	Description string `json:"description,omitempty" jsonschema:"what the command does, in a few words"`
	Background  bool   `json:"run_in_background,omitempty" jsonschema:"return immediately; read the output with BashOutput"`
}

type claudeOutput struct {
	ID     string `json:"bash_id" limit:"len=32"`
	Filter string `json:"filter,omitempty" jsonschema:"regular expression: show only the lines that match" limit:"len=1000"`
}

type claudeKill struct {
	ID string `json:"shell_id" limit:"len=32"`
}

func claude() ([]tools.Tool, error) {
	run, err := tools.Alias("Bash", "Run a command with bash. Each call starts a new shell: cd and variables do not persist.",
		tools.Hints{Title: "Run a command", Acts: true, Destructive: true}, []string{"bash"},
		func(in claudeBash) ([]tools.Inner, error) {
			return []tools.Inner{{Tool: "bash", Args: runArgs{Command: in.Command, TimeoutMS: in.Timeout, Background: in.Background}}}, nil
		}, nil)
	read, readErr := tools.Alias("BashOutput", "Read the output of a background command since the last read.",
		tools.Hints{Title: "Read a command's output"}, []string{"process_read"}, claudeOutput.calls, claudeOutput.render)
	kill, killErr := tools.Alias("KillShell", "Stop a background command.",
		tools.Hints{Title: "Stop a command", Acts: true, Destructive: true, Idempotent: true}, []string{"process_stop"},
		func(in claudeKill) ([]tools.Inner, error) {
			return []tools.Inner{{Tool: "process_stop", Args: stopArgs{ID: in.ID}}}, nil
		}, nil)
	return []tools.Tool{run, read, kill}, errors.Join(err, readErr, killErr)
}

func (in claudeOutput) calls() ([]tools.Inner, error) {
	if _, err := regexp.Compile(in.Filter); err != nil {
		return nil, tools.Errorf(tools.Invalid, "filter: %v", err)
	}
	return []tools.Inner{{Tool: "process_read", Args: readArgs{ID: in.ID}}}, nil
}

// render returns the lines that match the filter. The other lines count as read.
func (in claudeOutput) render(all []tools.Result) tools.Result {
	filter, err := regexp.Compile(in.Filter)
	var r readResult
	if err != nil || in.Filter == "" || len(all) != 1 || json.Unmarshal(all[0].Structured, &r) != nil {
		return tools.Joined(all)
	}
	var b strings.Builder
	for line := range strings.Lines(r.Output) {
		if filter.MatchString(strings.TrimSuffix(line, "\n")) {
			b.WriteString(line)
		}
	}
	r.Output = b.String()
	return tools.Result{Content: r.Content()}
}
