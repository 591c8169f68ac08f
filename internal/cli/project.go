package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/bases"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/launch"
	"github.com/scopefs/scopefs/internal/nearest"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// where returns the directories of the command: see [command.Places.Where].
func (a *app) where() (config.Paths, *config.Project, error) {
	return a.Where(paths.Finder{DirOf: agents.DirOf})
}

// place returns where a run starts. An error of where was returned before.
func (a *app) place(p config.Paths) launch.Place {
	_, project, _ := a.where()
	return launch.Place{Paths: p, Project: project}
}

// paths returns the given directories with defaults for the others. A project must
// exist: see begin.
func (a *app) paths() (config.Paths, error) {
	p, _, err := a.existing()
	return p, err
}

func (a *app) existing() (config.Paths, *config.Project, error) {
	p, project, err := a.where()
	if err != nil || project == nil {
		return p, nil, err
	}
	if !project.Exists() {
		state := "no agent has run in it yet"
		if project.Before != nil {
			state = fmt.Sprintf("it was made anew, and no agent has run in it since (that of the directory before is %s)", project.Before.ID)
		}
		return p, nil, exit.Usagef("--dir %s: %s: start one with %s", project.Dir, state,
			cmp.Or(printable.Command("scopefs", "run", "--dir", project.Dir, "--", "PROGRAM"), "scopefs run --dir DIR -- PROGRAM"))
	}
	p, err = p.Complete()
	return p, project, err
}

// settingsPaths returns the directories with settings, for a command that needs no agent: without a base, and for a project
// without one yet, only the user's settings.
func (a *app) settingsPaths() (config.Paths, error) {
	p, project, err := a.where()
	switch {
	case errors.Is(err, paths.ErrNoBase), err == nil && project != nil && !project.Exists(),
		err == nil && p.Base == paths.Host.Base && a.Flags.Base == "" && os.Geteuid() != 0: // the host's are not his
		user, _ := paths.UserDir() // without a HOME there are none
		return config.Paths{User: user}, nil
	case err == nil && project != nil:
		return p.Complete()
	}
	return p, err
}

// begin is paths for a command that starts an agent, which makes the project if need be.
// It returns the agent: the named one, or the project's if none is named.
func (a *app) begin(name string) (config.Paths, scope.ID, error) {
	if err := a.find(name); err != nil {
		return config.Paths{}, "", err
	}
	p, project, err := a.begun()
	if err != nil {
		return p, "", err
	}
	if project != nil {
		a.note(report.Proposed(project))
	}
	if err := a.chooseLayer(p, project, name); err != nil {
		return p, "", err
	}
	id, err := a.agentIn(p, project, name)
	return p, id, err
}

// begun is where, but makes the project if need be.
func (a *app) begun() (config.Paths, *config.Project, error) {
	p, project, err := a.where()
	if err == nil && project != nil {
		exists := project.Exists()
		if project.Above != nil {
			var note string
			note, err = prompt.Apart(context.Background(), project, a.in, a.err)
			a.note(note)
		}
		if err == nil {
			err = config.Make(*project, true)
		}
		if err == nil {
			a.note(report.Place(project))
			if !exists {
				a.note(report.Renewed(project))
				a.note(report.Owner(project))
				a.note(report.Worktree(project))
			}
			if !exists && !a.flags.ShowSecrets {
				a.note(report.Secrets(project))
			}
			p, err = p.Complete()
		}
		if err == nil && !exists {
			var note string
			note, err = prompt.Presets(context.Background(), p, project, a.in, a.err)
			a.note(note)
		}
		if err != nil {
			err = exit.With(exit.Usage, err)
		}
	}
	return p, project, err
}

// note prints a line, unless it is empty.
func (a *app) note(line string) {
	if line != "" {
		fmt.Fprintln(a.err, "scopefs:", line)
	}
}

// holdFlags is hold for the flags of this command, which are for a project.
func (a *app) holdFlags(ctx context.Context, p config.Paths, name string) (at config.Paths, end func(), lost <-chan struct{}, err error) {
	_, project, err := a.where()
	switch {
	case a.flags == (agents.Flags{}):
		return p, func() {}, nil, nil
	case err != nil:
		return p, nil, nil, err
	case a.flags.Changes != "" && a.Branch != "":
		return p, nil, nil, exit.Usagef("--changes and --branch: the changes of a branch are held: leave --changes out")
	case project == nil:
		return p, nil, nil, exit.Usagef("%s: without --dir the agent's definition says that: write it there, in view", a.flags)
	}
	if err := a.flags.Check(); err != nil {
		return p, nil, nil, exit.With(exit.Usage, err)
	}
	id, err := a.baseAgentIn(p, project, name)
	if err != nil {
		return p, nil, nil, err
	}
	of, err := a.agentIn(p, project, name)
	if err != nil {
		return p, nil, nil, err
	}
	return a.hold(ctx, p, id, of, a.flags)
}

// hold has flags hold for an agent and its branches until end is called. It starts a daemon for only, one of them, and for this
// command if none runs; at are its directories. lost is closed if the daemon ends first; nil: it cannot.
func (a *app) hold(ctx context.Context, p config.Paths, id, only scope.ID, flags agents.Flags) (at config.Paths, end func(),
	lost <-chan struct{}, err error) {
	var release func()
	_, err = bases.Retry(ctx, p, func() (err error) {
		release, lost, err = api.NewClient(p).Hold(ctx, id, flags)
		return err
	})
	if !errors.Is(err, api.ErrNoDaemon) {
		return p, release, lost, err
	}
	at, stop, err := embedded.Start(ctx, p, only, a.err, "--"+embedded.Unmounted)
	if err != nil {
		return p, nil, nil, err
	}
	if release, lost, err = api.NewClient(at).Hold(ctx, id, flags); err != nil {
		stop()
		return p, nil, nil, err
	}
	return at, func() { release(); stop() }, lost, nil
}

// agentIn parses the name of an agent. In a project it may be left out. With --branch it returns that branch of the agent.
func (a *app) agentIn(p config.Paths, project *config.Project, name string) (scope.ID, error) {
	id, err := a.baseAgentIn(p, project, name)
	if err == nil && a.Branch != "" && a.Branch != string(id) {
		of := id
		if id, err = branchID(project, of, a.Branch); err != nil {
			return id, err
		}
		if _, err := definitions.Agent(p, id); errors.Is(err, api.ErrUnknown) {
			return id, exit.Usagef("--branch %s: there is none: make it with %s", a.Branch, a.makesBranch(project, of))
		}
	}
	if err == nil && a.Root != "" {
		return a.rootIn(p, id)
	}
	return id, err
}

// makesBranch returns the command that makes the branch --branch of an agent.
func (a *app) makesBranch(project *config.Project, of scope.ID) string {
	words := []string{"scopefs", "branch"}
	switch {
	case a.Dir != "":
		words = append(words, "--dir", a.Dir)
	case project == nil || project.ID != of:
		words = append(words, string(of))
	}
	return printable.Command(append(words, a.Branch)...)
}

// rootIn returns the agent that is the root --root of an agent, else of a branch of it. Of a directory that was lent with and without
// changes it is the one with changes.
func (a *app) rootIn(p config.Paths, of scope.ID) (id scope.ID, err error) {
	dir, err := filepath.Abs(a.Root)
	if err != nil {
		return id, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil { // it may be gone
		dir = real
	}
	all, _, err := definitions.Load(p)
	if err != nil {
		return id, err
	}
	var dirs []string
	var found *agents.Agent
	for _, name := range slices.Sorted(maps.Keys(all.Agents)) {
		def := all.Agents[name]
		if owner := all.Agents[def.RootOf]; def.RootOf != of && (owner == nil || owner.Branch != of || a.Branch != "") {
			continue
		}
		dirs = append(dirs, printable.Command("--root", def.Dir))
		if def.Dir == dir && (found == nil || found.RootOf != of && def.RootOf == of || found.RootOf == def.RootOf && def.View.Access != scope.Read) {
			found = def
		}
	}
	slices.Sort(dirs)
	switch {
	case found != nil:
		return found.Name, nil
	case len(dirs) == 0:
		return id, exit.Usagef("--root %s: %s has no further directories: see scopefs run --with", printable.Text(a.Root), of)
	}
	return id, exit.Usagef("--root %s: is no root of %s: give %s", printable.Text(a.Root), of, strings.Join(slices.Compact(dirs), ", or "))
}

// branchID returns the id of a branch of an agent. In a project its name is enough.
func branchID(project *config.Project, of scope.ID, name string) (scope.ID, error) {
	if project == nil {
		name = string(of) + "-" + name
	}
	id, err := scope.ParseID(name)
	if err != nil {
		err = exit.With(exit.Usage, err)
	}
	return id, err
}

func (a *app) baseAgentIn(p config.Paths, project *config.Project, name string) (scope.ID, error) {
	switch {
	case project == nil && name == "":
		return "", exit.Usagef("which agent: give --agent AGENT, or --dir DIR for a directory without one")
	case project == nil:
		return scope.ParseID(name)
	case name == "", name == string(project.ID), project.Named(name) && !definitions.Has(p, name),
		a.Dir != "" && name == os.Getenv("SCOPEFS_AGENT"):
		return project.ID, nil
	case a.Dir != "" && !definitions.Has(p, name):
		return "", exit.Usagef("--dir and an agent: the agent of %s is %s, leave %q out", project.Dir, project.ID, name)
	}
	return scope.ParseID(name)
}

// find makes a project of the user that has a name the one of --dir, for a command that is given elsewhere. An agent of the base in
// use wins. A name of neither that is near to a project's is an error.
func (a *app) find(name string) error {
	found, err := a.findProject(name)
	if err != nil || found {
		return err
	}
	if strings.HasPrefix(name, ".") || strings.Contains(name, "/") {
		return exit.Usagef("%q is no agent: %s is that of a directory", name, cmp.Or(printable.Command("--dir", name), "--dir DIR"))
	}
	like := nearest.Of(name, shorts())
	p, project, err := a.where()
	switch {
	case like == "", err != nil && !errors.Is(err, paths.ErrNoBase), err == nil && (project == nil || project.Named(name)):
		return nil
	case err == nil:
		if _, err := definitions.Agent(p, scope.ID(name)); !errors.Is(err, api.ErrUnknown) {
			return nil
		}
	}
	return exit.Usagef("unknown agent or project %q: did you mean %s?", name, like)
}

// findProject is find without that error. It reports whether there is a project of the name, or the command names another place.
func (a *app) findProject(name string) (found bool, err error) {
	if name == "" || a.Dir != "" || a.Flags.Base != "" {
		return true, nil
	}
	all, err := paths.Finder{DirOf: agents.DirOf}.Projects(name)
	if err != nil || len(all) == 0 { // the command says what is unknown
		return err != nil, nil
	}
	if p, project, err := a.where(); err == nil && (project != nil && project.Named(name) || definitions.Has(p, name)) {
		return true, nil
	}
	if len(all) > 1 {
		var dirs []string
		for _, p := range all {
			dirs = append(dirs, printable.Command("--dir", p.Dir))
		}
		return true, exit.Usagef("%q is the name of %d projects: give %s", name, len(all), strings.Join(dirs, ", or "))
	}
	if all[0].Gone {
		a.Flags.Base = all[0].Base
	} else {
		a.Dir = all[0].Dir
	}
	return true, nil
}

// shorts returns the short names of the user's projects.
func shorts() (all []string) {
	projects, _ := paths.Finder{DirOf: agents.DirOf}.Projects("")
	for _, p := range projects {
		if short := p.Short(); short != "" {
			all = append(all, short)
		}
	}
	return all
}

// agentOf returns the directories, and the named agent or the project's.
func (a *app) agentOf(name string) (config.Paths, scope.ID, error) {
	if err := a.find(name); err != nil {
		return config.Paths{}, "", err
	}
	p, project, err := a.existing()
	if err != nil {
		return p, "", err
	}
	id, err := a.agentIn(p, project, name)
	return p, id, err
}

// agentNamed returns the directories, and the agent that the first of some words names; without words the project's.
func (a *app) agentNamed(ctx context.Context, words ...string) (config.Paths, scope.ID, error) {
	if a.ofNone(words) {
		return config.Paths{}, "", a.whichAgent(ctx)
	}
	if len(words) == 0 {
		return a.agentOf("")
	}
	name := words[0]
	if err := a.find(name); err != nil {
		return config.Paths{}, "", err
	}
	p, project, err := a.existing()
	if err != nil {
		return p, "", err
	}
	if project != nil && project.Named(name) && !definitions.Has(p, name) {
		return p, project.ID, nil
	}
	id, err := scope.ParseID(name)
	return p, id, err
}
