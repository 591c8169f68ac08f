package cli

import (
	"context"
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/toolbox"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/mcp"
)

// toolHelp prints a tool's description and arguments.
func (a *app) toolHelp(ctx context.Context, client *toolbox.Client, name string, asJSON bool) error {
	all, _, err := client.List(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(t mcp.Listed) bool { return t.Named(name) })
	if i < 0 {
		var names []string
		for _, t := range all {
			names = append(names, t.Name)
		}
		hint := "--list lists the tools"
		if near := tools.Nearest(name, names); near != "" {
			hint = fmt.Sprintf("did you mean %s?", near)
		}
		return &exitError{exitUsage, fmt.Errorf("there is no tool %q here: %s", name, hint)}
	}
	return a.print(report.Tool(all[i]), asJSON)
}
