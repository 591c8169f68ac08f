package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// ofNone reports whether a command line names neither an agent nor a project, and is in none: then it is about all of the user's, or
// about those of the base that it names.
func (a *app) ofNone(words []string) bool {
	_, project, err := a.where()
	return len(words) == 0 && project == nil && (err == nil || errors.Is(err, paths.ErrNoBase))
}

// happened returns what the agents of the command's base have changed last; without one, and with --all, those of all the user's
// projects and bases. It reads the logs, and starts nothing.
func (a *app) happened(ctx context.Context, since time.Time) (list report.Happenings, err error) {
	all, err := a.places()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		known, _, err := definitions.Load(p)
		if err != nil { // another command says what is wrong with it
			continue
		}
		held := func(id string) bool {
			def := known.Agents[scope.ID(id)]
			return def != nil && def.View.Changes == agents.ChangesHeld
		}
		last, err := report.LastChanges(ctx, p.Audit(), since, held)
		if err != nil {
			return nil, err
		}
		for id, past := range last {
			if def := known.Agents[scope.ID(id)]; def != nil {
				list = append(list, report.Happened{Past: past, Dir: def.Dir, Held: held(id), Lists: a.lists(p, known, def)})
			}
		}
	}
	return list, nil
}

// lists returns the command that lists what an agent has changed.
func (a *app) lists(p config.Paths, known *agents.Snapshot, def *agents.Agent) string {
	words := []string{"scopefs", "changes"}
	if def.Dir != "" && !exists(def.Dir) { // its history needs the directory
		return printable.Command("scopefs", "audit", "--base", p.Base, "--agent", string(def.Name))
	}
	if of := known.Agents[def.RootOf]; of != nil {
		words, def = append(words, "--root", def.Dir), of
	}
	switch at, _, err := a.where(); {
	case paths.InProjects(p.Base) && def.Dir != "" && !anew(p.Base, def.Dir):
		words = append(words, "--dir", def.Dir)
		if def.Branch != "" {
			words = append(words, "--branch", string(def.Name))
		}
	case err == nil && at.Base == p.Base && !a.Given("base"):
		words = append(words, string(def.Name))
	default:
		words = append(words, "--base", p.Base, string(def.Name))
	}
	return printable.Command(words...)
}

// anew reports whether the directory of a project was made anew: it is another project.
func anew(base, dir string) bool {
	if dir == "" || !paths.InProjects(base) {
		return false
	}
	now, err := paths.Finder{DirOf: agents.DirOf}.Of(dir)
	return err == nil && now.Base != base
}

// places returns the base that the command names; else all of the user's.
func (a *app) places() ([]config.Paths, error) {
	if a.all && (a.Dir != "" || a.Given("base")) {
		return nil, exit.Usagef("--all and --base or --dir: give one of them")
	}
	at, project, err := a.where()
	if !a.all && err == nil && a.Flags.Base != "" {
		return []config.Paths{at}, nil
	}
	all := paths.Projects()
	if own, no := paths.OfUser(); no == nil {
		all = append(all, own)
	}
	if err == nil && project == nil && at.Base == paths.Host.Base {
		all = append(all, at)
	}
	return all, nil
}

// changesOfAll lists what each agent has changed last.
func (a *app) changesOfAll(c *cobra.Command, o changesOptions) error {
	if o.calls != nil || o.session != "" || o.checkpoint != "" || o.list || o.form() != report.ChangesTable {
		return a.whichAgent(c.Context())
	}
	since, err := report.Since(o.since, time.Now())
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	list, err := a.happened(c.Context(), since)
	if err != nil {
		return err
	}
	return a.print(list.Sorted(), o.json)
}

// whichAgent is the error of a command that is about one agent and names none. It has the command that lists what was changed last.
func (a *app) whichAgent(ctx context.Context) error {
	list, err := a.happened(ctx, time.Time{})
	if err != nil || len(list) == 0 {
		return exit.Usagef("which agent: give AGENT, or --dir DIR for a directory without one")
	}
	return exit.Usagef("which agent: give AGENT, or --dir DIR: scopefs changes lists them, the last is %s", list.Sorted()[0].Lists)
}
