// Package launch finds what a run starts in a sandbox: a program of the user's PATH, what must be shown for it, its variables
// and its presets.
package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/widening"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Place is where a run starts: the directories of the command, and the project; nil for a base.
type Place struct {
	config.Paths
	Project *config.Project
}

// For makes a run of an agent one of an agent program. The words of the run become arguments
// of the program. In a project the run has the program's presets, if these allow more than the definition.
func (p Place) For(ctx context.Context, id scope.ID, name string, req *api.RunRequest) error {
	program, err := programs.Of(p.Base, p.User, name)
	if err != nil {
		return err
	}
	found, err := programs.Find(ctx, program.Command, p.ofAgents())
	if err != nil {
		if errors.Is(err, programs.ErrNotFound) && program.Install != "" {
			err = fmt.Errorf("%w: install it (%s)", err, program.Install)
		}
		return fmt.Errorf("--for %s: %w", name, err)
	}
	var presets []string
	if p.Project != nil && p.Project.ID == id && len(program.Networks) > 0 {
		def, err := definitions.Agent(p.Paths, id)
		if err != nil {
			return err
		}
		if chosen := p.chosen(program.Networks); widening.Presets(def.Grants, chosen) != nil {
			presets = chosen
		}
	}
	req.Argv = slices.Concat([]string{program.Command}, program.Args, req.Argv)
	env := map[string]string{}
	maps.Copy(env, program.Env)
	maps.Copy(env, req.Env)
	req.Env = env
	show(found, req)
	req.Program.Name, req.Program.Networks, req.Program.Prepare, req.Program.Presets = name, program.Networks, program.Prepare, presets
	req.Program.Expose = append(req.Program.Expose, program.Expose...)
	req.Program.Login = loginOf(program)
	return nil
}

// show makes a run one of the program that was found, which its sandbox shows.
func show(found programs.Found, req *api.RunRequest) {
	if _, ok := req.Env["PATH"]; !ok && len(found.Path) > 0 {
		req.Env["PATH"] = strings.Join(append(found.Path, sandbox.DefaultPath), ":")
	}
	req.Program = &api.RunProgram{Name: req.Argv[0], Expose: found.Expose}
	req.Argv = slices.Concat([]string{found.File}, req.Argv[1:])
}

// Run starts a run. If the sandbox has no program of the name, it shows the one that is in the user's PATH.
func (p Place) Run(ctx context.Context, id scope.ID, req api.RunRequest) (*api.Run, error) {
	run, err := api.NewClient(p.Paths).Run(ctx, id, req)
	var missing *api.Error
	if !errors.As(err, &missing) || missing.Kind != api.NotFound || req.Program != nil || strings.Contains(req.Argv[0], "/") {
		return run, err
	}
	found, why := programs.Find(ctx, req.Argv[0], p.ofAgents())
	switch {
	case errors.Is(why, programs.ErrNotFound), why == nil && len(found.Expose) == 0:
		return nil, err
	case why != nil:
		return nil, &api.Error{Kind: api.NotExecutable, Text: fmt.Sprintf("%s is not shown in the sandbox: %v", req.Argv[0], why)}
	}
	show(found, &req)
	if run, err = api.NewClient(p.Paths).Run(ctx, id, req); errors.As(err, &missing) && missing.Kind == api.NotFound {
		return nil, &api.Error{Kind: api.NotExecutable,
			Text: fmt.Sprintf("%s is shown with %s, and needs more: add that to sandbox: {expose} of scopefs.yaml",
				found.File, strings.Join(found.Expose, ", "))}
	}
	return run, err
}

// ofAgents returns a function that reports whether agents may write a file: it is in agents/
// of the base, in the project, or in the directory of a definition.
func (p Place) ofAgents() func(name string) bool {
	scopes := filepath.Join(p.Base, "agents")
	if real, err := filepath.EvalSymlinks(scopes); err == nil {
		scopes = real
	}
	dirs := []string{scopes}
	if p.Project != nil {
		dirs = append(dirs, p.Project.Dir)
	}
	if all, _, err := definitions.Load(p.Paths); err == nil {
		for _, def := range all.Agents {
			dirs = append(dirs, def.Dir) // one through a link has no agent: see OpenRoot
		}
	}
	return func(name string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return dir != "" && strings.HasPrefix(name+"/", dir+"/") })
	}
}

// Keys returns the variables of this process that credentials of presets read.
func (p Place) Keys() map[string]string {
	keys := map[string]string{}
	presets, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definition's to report
	for _, preset := range presets {
		for _, c := range preset.Credentials {
			if value := os.Getenv(c.From.Env); value != "" {
				keys[c.From.Env] = value
			}
		}
	}
	return keys
}

// chosen returns the presets of networks with a key in the environment; else the first.
func (p Place) chosen(networks []string) []string {
	presets, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definition's to report
	set := slices.DeleteFunc(slices.Clone(networks), func(name string) bool {
		preset := presets[name]
		if preset == nil {
			return true
		}
		for _, c := range preset.Credentials {
			if c.From.Env != "" && os.Getenv(c.From.Env) == "" {
				return true
			}
		}
		return false
	})
	if len(set) == 0 {
		return networks[:1]
	}
	return set
}
