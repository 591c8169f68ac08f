package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/printable"
)

// The log of a day, as far as it is read in a second, completes events and sessions.
const (
	completedLog  = 24 * time.Hour
	completedTime = time.Second
	completedMost = 50
)

// completePaths returns the names of agents; in a project, and after a name, the shell completes paths.
func (a *app) completePaths(c *cobra.Command, words []string, begun string) ([]string, cobra.ShellCompDirective) {
	if _, project, err := a.where(); len(words) > 0 || err == nil && project != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.complete(c, words, begun)
}

// completeTools returns the tools that the agent of the flags may call.
func (a *app) completeTools(c *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(words) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // its arguments may be files
	}
	return a.toolNames(c), cobra.ShellCompDirectiveNoFileComp
}

func (a *app) toolNames(c *cobra.Command) (names []string) {
	agent, _ := c.Flags().GetString("agent")
	p, id, err := a.agentOf(agent)
	if err != nil {
		return nil
	}
	def, err := definitions.Agent(p, id)
	if err != nil {
		return nil
	}
	for _, name := range def.Grants.ToolNames() {
		if d := def.Grants.Tool(name); d.Allow || d.Ask {
			names = append(names, name)
		}
	}
	return names
}

// completeRules returns what allow and deny take: presets, their hosts, and tools. Paths are the shell's.
func (a *app) completeRules(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	all, _ := a.presets() // those that load
	names := slices.Sorted(maps.Keys(all))
	for _, name := range slices.Clone(names) {
		for _, rule := range all[name].Allow {
			names = append(names, rule.Host)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(append(names, a.toolNames(c)...)))), cobra.ShellCompDirectiveDefault
}

// completeEvents returns the last denials, with what they are about.
func (a *app) completeEvents(c *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	var all []string
	if len(words) == 0 {
		a.recent(c.Context(), func(e audit.Event) {
			if e.Verdict == audit.Deny || e.Verdict == audit.Violation {
				about := printable.Text(e.Op + " " + e.Path + e.Target)
				all = append(all, strconv.FormatUint(e.Seq, 10)+fmt.Sprintf("\t%.60s", about))
			}
		})
	}
	slices.Reverse(all)
	return all[:min(len(all), completedMost)], cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// completeSession completes the flag --session by the sessions of the log, the latest first, after words of the flag's own.
func (a *app) completeSession(c *cobra.Command, own ...string) {
	_ = c.RegisterFlagCompletionFunc("session", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return append(own, a.loggedSessions(c)...), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	})
}

func (a *app) loggedSessions(c *cobra.Command) (ids []string) {
	a.recent(c.Context(), func(e audit.Event) {
		if e.Session != "" && (len(ids) == 0 || ids[len(ids)-1] != e.Session) {
			ids = append(slices.DeleteFunc(ids, func(id string) bool { return id == e.Session }), e.Session)
		}
	})
	slices.Reverse(ids)
	return ids[:min(len(ids), completedMost)]
}

// recent calls each for the events of the last time.
func (a *app) recent(ctx context.Context, each func(audit.Event)) {
	p, err := a.paths()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, completedTime)
	defer cancel()
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{Since: time.Now().Add(-completedLog), Rising: true}, false) {
		if err != nil {
			return
		}
		each(e)
	}
}
