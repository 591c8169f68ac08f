package session

import (
	"errors"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/ask"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/changes"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/profile"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/memory"
	"github.com/scopefs/scopefs/tools/skill"
)

// ownTool is a tool of scopefs itself, and when a computed list of tools holds it.
type ownTool struct {
	tools.Tool
	listed catalog.Listed
}

// now returns the agent's present definition, rules and tools.
func (c *client) now() (*agents.Agent, *agents.Grants, []tools.Tool, error) {
	def, err := c.agent.Definition()
	if err != nil {
		return nil, nil, nil, err
	}
	return def, c.rules(), c.set.List(), nil
}

// ownTools returns the tools of scopefs itself. This is the one list of them.
func (c *client) ownTools(files *file.Files, shell *bash.Shell) ([]ownTool, error) {
	var all []ownTool
	var errs []error
	add := func(listed catalog.Listed, list []tools.Tool, err error) {
		for _, t := range list {
			all = append(all, ownTool{t, listed})
		}
		errs = append(errs, err)
	}
	list, err := files.Tools()
	add(catalog.ListedNever, list, err)
	list, err = shell.Tools()
	add(catalog.ListedNever, list, err)
	list, err = newScopeInfo(c.agent.id, c.now, c.rootsShown)
	add(catalog.ListedNever, list, err)
	user, err := ask.User()
	add(catalog.ListedBase, []tools.Tool{user}, err)
	add(catalog.ListedNever, []tools.Tool{ask.Prompt(c.prompt)}, nil)
	list, err = skill.New(filepath.Join(c.agent.Paths.Base, "skills"), func() []string { return c.rules().Skills() },
		func(name string) scope.Decision { return c.rules().Skill(name) })
	add(catalog.ListedSkills, list, err)
	list, err = memory.New(files)
	add(catalog.ListedMemory, list, err)
	set, err := c.contextSet().tool()
	add(catalog.ListedScopes, []tools.Tool{set}, err)
	list, err = changes.New(c.histories(false), c.agent.changing)
	add(catalog.ListedKept, list, err)
	list, err = changes.Held(c.histories(true), changes.Tasks{Ask: c.askTask, Discard: c.discardTask}, c.agent.changing)
	add(catalog.ListedHeld, list, err)
	hand, err := c.hands().Delegate()
	add(catalog.ListedMembers, []tools.Tool{hand}, err)
	if c.agent.Daemon != nil { // else the tools are those of scopefs itself
		list, err = c.agent.StoreTools()
		add(catalog.ListedNever, list, err)
	}
	for i := range all {
		switch all[i].Name {
		case "bash": // the other tools of a shell only read and stop what it started
			all[i].listed = catalog.ListedBase
		case "checkpoint", "undo":
			all[i].listed = catalog.ListedUndo
		case "commit":
			all[i].listed = catalog.ListedCommit
		case "discard":
			all[i].listed = catalog.ListedTask
		}
	}
	return all, errors.Join(errs...)
}

// tools returns all tools of a client. The door offers those that the rules allow. The tools of MCP servers are added later.
func (c *client) tools(files *file.Files, shell *bash.Shell, names string) ([]tools.Tool, error) {
	own, err := c.ownTools(files, shell)
	if err != nil {
		return nil, err
	}
	var all []tools.Tool
	for _, t := range own {
		switch {
		case t.listed == catalog.ListedMemory && !c.agent.Settings.Memory:
		case t.Name == ask.PromptName && c.agent.Settings.Approve.Wait == 0: // it could only refuse
		default:
			all = append(all, t.Tool)
		}
	}
	if names == "" {
		return all, nil
	}
	more, err1 := profile.New(names, c.reached)
	shells, err2 := bash.Profile(names)
	return append(append(all, more...), shells...), errors.Join(err1, err2)
}

// Tools returns the tools of scopefs itself as definitions may name them.
func Tools() (catalog.Tools, error) {
	c := &client{agent: &Agent{Shared: &Shared{Host: &account.Host{}}}} // nobody calls these
	own, err := c.ownTools(file.New(worker.New(nil)), bash.NewShell(c))
	var all catalog.Tools
	for _, t := range own {
		all = append(all, catalog.Tool{Name: t.Name, Aliases: t.Aliases, Writes: t.Hints.Writes, Listed: t.listed})
	}
	return all, err
}
