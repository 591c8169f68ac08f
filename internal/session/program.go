package session

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Ready returns an error if an agent program cannot start in a sandbox of the agent, or
// could not reach its model. env are the variables that the program gets from its user, keys those for credentials.
// The note warns the operator about a program that may work without. The program uses its login where it has no key.
func (a *Agent) Ready(ctx context.Context, p *api.RunProgram, env, keys map[string]string) (note string, err error) {
	use := p.Login
	p.Login = nil
	for _, path := range p.Expose {
		if err := a.Showable(path); err != nil {
			return "", fmt.Errorf("%s: %v: install it elsewhere", p.Name, err)
		}
	}
	if len(p.Networks) == 0 {
		return "", nil
	}
	a.Refresh()
	def, err := a.Definition()
	if err != nil {
		return "", err
	}
	return reach{ID: a.id, Paths: a.Paths, Env: a.Settings.Env, Hosts: def.Grants.HostsWith(p.Presets)}.model(ctx, p, use, env, keys)
}

// Placeholder returns what programs in the agent's sandboxes have in place of a login.
func (a *Agent) Placeholder(l *login.Login) string {
	return a.authority().Placeholder(string(a.id) + "\x00" + hosts.LoginSecret(l.Program))
}

// Unshown returns the paths that not every sandbox shows already.
func (a *Agent) Unshown(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		return slices.ContainsFunc(a.Settings.Expose, func(dir string) bool { return strings.HasPrefix(path+"/", dir+"/") })
	})
}
