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
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
)

// reach tells whether an agent program reaches its model by the rules of an agent.
type reach struct {
	ID    scope.ID
	Paths config.Paths
	Env   map[string]string // of every sandbox
	Hosts *hosts.Policy
}

// model returns an error if a program could not reach its model. env are the variables that the program gets from its user,
// keys those for credentials. The note warns the operator about a program that may work without. The program uses its login,
// use, where it has no key.
func (a reach) model(ctx context.Context, p *api.RunProgram, use *login.Login, env, keys map[string]string) (note string, err error) {
	policy := a.Hosts
	presets, _ := hosts.Presets(a.Paths.Base, a.Paths.User) // an error of a file was reported when it was loaded
	add := fmt.Sprintf("add network: {presets: [%s]} to %s", strings.Join(p.Networks, ", "),
		filepath.Join(a.Paths.Base, "agents.d", string(a.ID)+".md"))
	switch policy.Kind() {
	case hosts.HostNetwork:
		return a.keyless(p, presets, env), nil
	case hosts.None:
		return "", fmt.Errorf("%s: agent %s has network: none, so that it cannot reach its model: %s", p.Name, a.ID, add)
	}
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
		return fmt.Sprintf("%s: agent %s %s", p.Name, a.ID, note), nil
	}
	return fmt.Sprintf("%s: agent %s does not reach the hosts of preset %s: %s", p.Name, a.ID, strings.Join(p.Networks, ", "), add), nil
}

// keyless returns a note about a program that has the host's network: no proxy puts in a key or a login, or records a
// connection. A variable with a key of its own is enough.
func (a reach) keyless(p *api.RunProgram, presets map[string]*hosts.Preset, env map[string]string) string {
	var variables []string
	for _, name := range p.Networks {
		if preset := presets[name]; preset != nil {
			variables = slices.AppendSeq(variables, maps.Keys(preset.Credentials))
		}
	}
	slices.Sort(variables)
	if slices.ContainsFunc(variables, func(name string) bool { return env[name] != "" || a.Env[name] != "" }) {
		return ""
	}
	return fmt.Sprintf("%s: agent %s has network: host, where no proxy puts in a key or a login, decides or records: "+
		"give it a key (-e %s), or write network: {presets: [%s]}",
		p.Name, a.ID, strings.Join(slices.Compact(variables), ", -e "), strings.Join(p.Networks, ", "))
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
func (a reach) key(ctx context.Context, hosts *hosts.Policy, preset *hosts.Preset, env, keys map[string]string) (note string, err error) {
	for _, variable := range slices.Sorted(maps.Keys(preset.Credentials)) {
		credential, ok := hosts.Credentials()[variable]
		switch {
		case env[variable] != "" || a.Env[variable] != "":
		case !ok:
			return fmt.Sprintf("has no %s: give %s a credential in network.allow, or name preset %s", variable,
				preset.Allow[0].Host, preset.Name), nil
		default:
			if _, err := credential.From.With(keys)(ctx); err != nil {
				return "", fmt.Errorf("the key of %s cannot be read: %w", preset.Allow[0].Host, err)
			}
		}
	}
	return "", nil
}
