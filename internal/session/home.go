package session

import (
	"maps"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// equip gives a sandbox for the agent's own commands the variables, the HOME and the caches
// of the agent's current definition. The caller closes spec.Home.
func (a *Agent) equip(spec *sandbox.Spec, p Purpose) error {
	def, err := a.Definition()
	if err != nil {
		return err
	}
	env := map[string]string{}
	maps.Copy(env, spec.Env)
	maps.Copy(env, def.Env)
	spec.Env, spec.Git = env, a.git.Get()
	keep := def.Keep.Or(a.Settings.Keep)
	if p.Held != nil { // the user is the caller's
		return nil
	}
	if p.ReadOnly || keep.Home == agents.HomeTemporary && len(keep.Caches) == 0 {
		return nil
	}
	for _, kept := range keep.Caches {
		for name, dir := range cacheEnv[kept] {
			if _, ok := env[name]; !ok {
				env[name] = sandbox.Home + "/" + dir
			}
		}
	}
	if keep.Home == agents.HomeTemporary {
		env["HOME"] = sandbox.TempHome
	}
	spec.Home, err = account.OpenHome(a.Paths, a.id, account.User{UID: spec.UID, GID: spec.GID})
	return err
}

// cacheEnv has the variables that lead programs to their caches, and the directories
// below HOME.
var cacheEnv = map[agents.Kept]map[string]string{
	agents.KeptNPM:   {"npm_config_cache": ".npm"},
	agents.KeptPIP:   {"PIP_CACHE_DIR": ".cache/pip"},
	agents.KeptGo:    {"GOMODCACHE": "go/pkg/mod", "GOCACHE": ".cache/go-build"},
	agents.KeptCargo: {"CARGO_HOME": ".cargo"},
}
