package session

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
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
	a.Registry.Refresh(a.id)
	def, err := a.Definition()
	if err != nil {
		return "", err
	}
	policy := def.Grants.Hosts()
	add := fmt.Sprintf("add network: {presets: [%s]} to %s", strings.Join(p.Networks, ", "), filepath.Join(a.Paths.Base, "agents.d", string(a.id)+".md"))
	switch policy.Kind() {
	case hosts.HostNetwork:
		return "", nil
	case hosts.None:
		return "", fmt.Errorf("%s: agent %s has network: none, so that it cannot reach its model: %s", p.Name, a.id, add)
	}
	presets, _ := hosts.Presets(a.Paths.Base, a.Paths.User) // an error of a file was reported when it was loaded
	var failure error
	for _, name := range p.Networks {
		preset := presets[name]
		if preset == nil || !reaches(policy, preset) {
			continue
		}
		more, err := a.key(ctx, policy, preset, env, keys)
		if more == "" && err == nil {
			return "", nil
		}
		note, failure = cmp.Or(note, more), cmp.Or(failure, err)
	}
	if _, ok := policy.For(p.Name); ok && use != nil {
		if p.Login, err = use, use.Check(); err != nil && failure != nil {
			err = fmt.Errorf("%w (and no key: %w)", err, failure)
		}
		return "", err
	}
	switch {
	case failure != nil:
		return "", fmt.Errorf("%s: %w", p.Name, failure)
	case note != "":
		return fmt.Sprintf("%s: agent %s %s", p.Name, a.id, note), nil
	}
	return fmt.Sprintf("%s: agent %s does not reach the hosts of preset %s: %s", p.Name, a.id, strings.Join(p.Networks, ", "), add), nil
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

// reaches reports whether the rules do not refuse the first host of a preset, its API.
func reaches(hosts *hosts.Policy, preset *hosts.Preset) bool {
	if len(preset.Allow) == 0 {
		return true
	}
	d, _ := hosts.Connect(strings.Replace(preset.Allow[0].Host, "*", "any", 1), 443)
	return d.Allow || d.Ask
}

// key returns a note if nothing sets the variable of a preset's key, and an error if the
// daemon cannot read the key.
func (a *Agent) key(ctx context.Context, hosts *hosts.Policy, preset *hosts.Preset, env, keys map[string]string) (note string, err error) {
	for _, variable := range slices.Sorted(maps.Keys(preset.Credentials)) {
		credential, ok := hosts.Credentials()[variable]
		switch {
		case env[variable] != "" || a.Settings.Env[variable] != "":
		case !ok:
			return fmt.Sprintf("has no %s: give %s a credential in network.allow, or name preset %s", variable, preset.Allow[0].Host, preset.Name), nil
		default:
			if _, err := credential.From.With(keys)(ctx); err != nil {
				return "", fmt.Errorf("the key of %s cannot be read: %w", preset.Allow[0].Host, err)
			}
		}
	}
	return "", nil
}
