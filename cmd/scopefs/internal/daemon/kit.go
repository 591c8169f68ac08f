package daemon

import (
	"errors"
	"path/filepath"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/ask"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/delegate"
	"github.com/scopefs/scopefs/tools/file"
	"github.com/scopefs/scopefs/tools/file/profile"
	"github.com/scopefs/scopefs/tools/memory"
	"github.com/scopefs/scopefs/tools/skill"
)

// tools are all of a client's, before anybody has decided about them; those of
// its MCP servers come later.
func (c *client) tools(files *file.Files, shell *bash.Shell, names string) ([]tools.Tool, error) {
	var all []tools.Tool
	var errs []error
	add := func(list []tools.Tool, err error) {
		all = append(all, list...)
		errs = append(errs, err)
	}
	add(files.Tools())
	add(shell.Tools())
	add(c.info())
	user, err := ask.User()
	add([]tools.Tool{user}, err)
	add(skill.New(filepath.Join(c.d.paths.Base, "skills"), func() []string { return c.rules().Skills() },
		func(name string) scope.Decision { return c.rules().Skill(name) }))
	if c.d.host.Memory {
		add(memory.New(files))
	}
	hand, err := delegate.New(c.delegate, func() []scope.ID { return c.rules().Members() },
		func(name string) scope.Decision { return c.rules().Member(name) },
		func(name string) scope.Decision { return c.rules().Context(name) },
		func() []string { return c.rules().RequiredContexts() })
	add([]tools.Tool{hand}, err)
	if names != "" {
		add(profile.New(names))
		add(bash.Profile(names))
	}
	return all, errors.Join(errs...)
}
