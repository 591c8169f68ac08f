package session

import (
	"context"
	"maps"
	"slices"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// equip gives a sandbox for the agent's own commands the variables, the HOME and the caches
// of the agent's current definition. The caller closes spec.Home.
func (a *Agent) equip(ctx context.Context, spec *sandbox.Spec, p Purpose) error {
	def, err := a.Definition()
	if err != nil {
		return err
	}
	env := map[string]string{}
	maps.Copy(env, spec.Env)
	maps.Copy(env, def.Env)
	unsigned(env)
	spec.Env, spec.Git, spec.Devices = env, a.git.Get(), def.Devices
	spec.Git.Linked = slices.ContainsFunc(def.View.Roots, func(r agents.Root) bool { return r.Worktree != "" })
	keep := def.Keep.Or(a.Settings.Keep)
	if p.Held != nil { // the user is the caller's
		return nil
	}
	if p.ReadOnly || keep.Home == agents.HomeTemporary && len(keep.Caches) == 0 {
		return nil
	}
	for _, kept := range keep.Caches {
		for name, dir := range account.CacheEnv[kept] {
			if _, ok := env[name]; !ok {
				env[name] = sandbox.Home + "/" + dir
			}
		}
	}
	if keep.Home == agents.HomeTemporary {
		env["HOME"] = sandbox.TempHome
	}
	spec.Home, err = account.OpenHome(a.Paths, def.HomeID(), account.User{UID: spec.UID, GID: spec.GID})
	if bytes, files := def.Limits.Quota(); err == nil && bytes+files > 0 {
		spec.Home.Close()
		var v View
		if v, err = a.HomeView(ctx, def.Definition); err == nil {
			spec.Home, _, err = a.openMount(v)
		}
	}
	return err
}
