package session

import (
	"errors"
	"path/filepath"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/ask"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/profile"
	"github.com/scopefs/scopefs/tools/file/worker"
	"github.com/scopefs/scopefs/tools/memory"
	"github.com/scopefs/scopefs/tools/skill"
)

// kitTool is a tool of scopefs itself, and when a computed list of tools holds it.
type kitTool struct {
	tools.Tool
	listed agents.Listed
}

// kit returns the tools of scopefs itself. This is the one list of them.
func (c *client) kit(files *file.Files, shell *bash.Shell) ([]kitTool, error) {
	var all []kitTool
	var errs []error
	add := func(listed agents.Listed, list []tools.Tool, err error) {
		for _, t := range list {
			all = append(all, kitTool{t, listed})
		}
		errs = append(errs, err)
	}
	list, err := files.Tools()
	add(agents.ListedNever, list, err)
	list, err = shell.Tools()
	add(agents.ListedNever, list, err)
	list, err = c.info()
	add(agents.ListedNever, list, err)
	user, err := ask.User()
	add(agents.ListedBase, []tools.Tool{user}, err)
	add(agents.ListedNever, []tools.Tool{ask.Prompt(c.prompt)}, nil)
	list, err = skill.New(filepath.Join(c.agent.Paths.Base, "skills"), func() []string { return c.rules().Skills() },
		func(name string) scope.Decision { return c.rules().Skill(name) })
	add(agents.ListedSkills, list, err)
	list, err = memory.New(files)
	add(agents.ListedMemory, list, err)
	set, err := c.contextSet()
	add(agents.ListedScopes, []tools.Tool{set}, err)
	hand, err := c.hands().Delegate()
	add(agents.ListedMembers, []tools.Tool{hand}, err)
	if c.agent.Stores != nil {
		list, err = c.agent.Stores.Tools()
		add(agents.ListedNever, list, err)
	}
	for i := range all {
		if all[i].Name == "bash" { // the other tools of a shell only read and stop what it started
			all[i].listed = agents.ListedBase
		}
	}
	return all, errors.Join(errs...)
}

// tools returns all tools of a client. The door offers those that the rules
// allow. The tools of MCP servers are added later.
func (c *client) tools(files *file.Files, shell *bash.Shell, names string) ([]tools.Tool, error) {
	kit, err := c.kit(files, shell)
	if err != nil {
		return nil, err
	}
	var all []tools.Tool
	for _, t := range kit {
		switch {
		case t.listed == agents.ListedMemory && !c.agent.Settings.Memory:
		case t.Name == ask.PromptName && c.agent.Settings.Approve.Wait == 0: // it could only refuse
		default:
			all = append(all, t.Tool)
		}
	}
	if names == "" {
		return all, nil
	}
	more, err1 := profile.New(names)
	shells, err2 := bash.Profile(names)
	return append(append(all, more...), shells...), errors.Join(err1, err2)
}

// Tools returns the tools of scopefs itself as definitions may name them.
func Tools() (agents.Tools, error) {
	c := &client{agent: &Agent{Shared: &Shared{}}} // nobody calls these
	kit, err := c.kit(file.New(worker.New(nil)), bash.NewShell(c))
	var all agents.Tools
	for _, t := range kit {
		all = append(all, agents.Tool{Name: t.Name, Aliases: t.Aliases, Writes: t.Hints.Writes, Listed: t.listed})
	}
	return all, err
}
