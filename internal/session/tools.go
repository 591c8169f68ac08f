package session

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/ask"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/changes"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/profile"
	"github.com/scopefs/scopefs/tools/memory"
	"github.com/scopefs/scopefs/tools/skill"
)

// now returns the agent's present definition, rules and tools.
func (c *client) now() (*agents.Agent, *agents.Grants, []tools.Tool, error) {
	def, err := c.agent.Definition()
	if err != nil {
		return nil, nil, nil, err
	}
	return def, c.rules(), c.set.List(), nil
}

// own are the tools of scopefs itself as definitions name them. They are written out because a start needs no more of them: to make
// all tools, with their schemas, takes longer than to read the definitions. TestTools compares them with those of a client.
var own = catalog.Tools{
	{Name: "read_file"},
	{Name: "write_file", Writes: true},
	{Name: "edit_file", Writes: true},
	{Name: "list_dir"},
	{Name: "stat"},
	{Name: "glob"},
	{Name: "grep"},
	{Name: "make_dir", Writes: true},
	{Name: "move", Writes: true},
	{Name: "copy", Writes: true},
	{Name: "delete_file", Writes: true},
	{Name: "delete", Writes: true},
	{Name: "bash", Aliases: []string{"shell", "run_shell_command"}, Listed: catalog.ListedBase},
	{Name: "process_read"}, // it and process_stop only read and stop what bash has started
	{Name: "process_stop"},
	{Name: "scope_info"},
	{Name: "ask_user", Listed: catalog.ListedBase},
	{Name: ask.PromptName},
	{Name: "skill", Listed: catalog.ListedSkills},
	{Name: "remember", Writes: true, Listed: catalog.ListedMemory},
	{Name: "recall", Listed: catalog.ListedMemory},
	{Name: "memory", Listed: catalog.ListedMemory},
	{Name: "forget", Writes: true, Listed: catalog.ListedMemory},
	{Name: "context_set", Writes: true, Listed: catalog.ListedScopes},
	{Name: "checkpoint", Listed: catalog.ListedUndo},
	{Name: "changes", Listed: catalog.ListedKept},
	{Name: "undo", Writes: true, Listed: catalog.ListedUndo},
	{Name: "diff", Listed: catalog.ListedHeld},
	{Name: "commit", Writes: true, Listed: catalog.ListedCommit},
	{Name: "discard", Listed: catalog.ListedTask},
	{Name: "delegate", Listed: catalog.ListedMembers},
}

// Tools returns the tools of scopefs itself as definitions may name them.
func Tools() catalog.Tools { return slices.Clone(own) }

// ownTools returns the tools of scopefs itself, those of own in the same order.
func (c *client) ownTools(files *file.Files, shell *bash.Shell) (all []tools.Tool, err error) {
	var errs []error
	add := func(list []tools.Tool, err error) {
		all, errs = append(all, list...), append(errs, err)
	}
	one := func(t tools.Tool, err error) { add([]tools.Tool{t}, err) }
	add(files.Tools())
	add(shell.Tools())
	add(newScopeInfo(c.agent.id, c.now, c.rootsShown))
	one(ask.User())
	one(ask.Prompt(c.prompt), nil)
	add(skill.New(filepath.Join(c.agent.Paths.Base, "skills"), func() []string { return c.rules().Skills() },
		func(name string) scope.Decision { return c.rules().Skill(name) }))
	add(memory.New(files))
	one(c.contextSet().tool())
	add(changes.New(c.histories(false), c.agent.changing))
	add(changes.Held(c.histories(true), changes.Tasks{Ask: c.askTask, Discard: c.discardTask}, c.agent.changing))
	one(c.hands().Delegate())
	return all, errors.Join(errs...)
}

// tools returns all tools of a client. The door offers those that the rules allow. The tools of MCP servers are added later.
func (c *client) tools(files *file.Files, shell *bash.Shell, names string) ([]tools.Tool, error) {
	all, err := c.ownTools(files, shell)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t tools.Tool) bool {
		return own.Named(t.Name).Listed == catalog.ListedMemory && !c.agent.Settings.Memory ||
			t.Name == ask.PromptName && c.agent.Settings.Approve.Wait == 0 // it could only refuse
	})
	stores, err := c.agent.StoreTools()
	if err != nil {
		return nil, err
	}
	all = append(all, stores...)
	if names == "" {
		return all, nil
	}
	more, err1 := profile.New(names, c.reached)
	shells, err2 := bash.Profile(names)
	return append(append(all, more...), shells...), errors.Join(err1, err2)
}
