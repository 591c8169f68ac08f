package session

import (
	"context"
	"maps"
	"os/exec"
	"strings"
	"sync"
	"time"

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
	spec.Env, spec.Git = env, a.git.get()
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

// gitTime bounds the question for the user of git.
const gitTime = 5 * time.Second

// gitUser is the name and address that the daemon's user has for git, read on first use.
type gitUser struct {
	once sync.Once
	user sandbox.GitUser
}

// get returns the name and address of git's global configuration; empty ones without git
// or a configuration. Nothing else of it reaches a sandbox. git-config(1) runs no program
// to read one, and / has no repository with a configuration of its own.
func (g *gitUser) get() sandbox.GitUser {
	g.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), gitTime)
		defer cancel()
		cmd := exec.CommandContext(ctx, "git", "config", "--global", "--includes", "--null", "--get-regexp", `^user\.(name|email)$`)
		cmd.Dir, cmd.WaitDelay = "/", time.Second
		out, err := cmd.Output()
		if err != nil || len(out) > 4096 {
			return
		}
		for entry := range strings.SplitSeq(string(out), "\x00") {
			switch key, value, _ := strings.Cut(entry, "\n"); key { // the last one holds
			case "user.name":
				g.user.Name = value
			case "user.email":
				g.user.Email = value
			}
		}
	})
	return g.user
}
