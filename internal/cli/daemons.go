package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope/agents"
)

// addAll adds the flag --all to a command and those below it.
func (a *app) addAll(c *cobra.Command) {
	c.PersistentFlags().BoolVar(&a.all, "all", false, "of all projects and daemons of the user, in a project as well")
}

// daemons returns those that an operator's command is about: that of the base or the project; outside of both, and with --all,
// all of the user's.
func (a *app) daemons(ctx context.Context) (*api.Daemons, error) {
	all := api.AllDaemons(a.everywhere)
	if a.all {
		if a.Dir != "" || a.Given("base") {
			return nil, exit.Usagef("--all and --base or --dir: give one of them")
		}
		return all, nil
	}
	_, project, err := a.where()
	named := project != nil || a.Flags.Base != "" || a.Flags.Run != ""
	if !named && (errors.Is(err, paths.ErrNoBase) || err == nil && all.Running(ctx)) {
		return all, nil
	}
	_, p, err := a.client()
	one := api.OneDaemon(p)
	if err != nil || len(embedded.Running(p)) == 0 || one.Running(ctx) {
		return one, err
	}
	return api.AllDaemons(func() []api.Place { // of commands
		return slices.DeleteFunc(a.everywhere(), func(of api.Place) bool { return of.Base != p.Base })
	}), nil
}

// looking is operating for a command that lists what runs. In a project, outside of one and with --all nothing does without a daemon,
// and none has to: then it prints none, or with json that as JSON. A base has a daemon, or an error.
func (a *app) looking(json *bool, none any, f func(ctx context.Context, client *api.Daemons, words []string) error) func(*cobra.Command, []string) error {
	run := a.operating(f)
	return func(c *cobra.Command, words []string) error {
		err := run(c, words)
		if !errors.Is(err, api.ErrNoDaemon) {
			return err
		}
		_, project, no := a.where()
		switch {
		case no == nil && project == nil && !a.all, project != nil && !project.Exists():
			return err
		case *json:
			return report.Line(a.out, none)
		case project != nil && !a.all:
			fmt.Fprintf(a.out,
				"nothing runs in %s: scopefs changes has what the last session changed, scopefs audit what was decided\n", project.Dir)
		default:
			fmt.Fprintln(a.out, "nothing of yours runs: scopefs run --dir DIR -- PROGRAM starts an agent")
		}
		return nil
	}
}

// clientOfLast is client; outside of a project and without a base it is about the project whose agent has changed something last.
func (a *app) clientOfLast() (*api.Client, config.Paths, error) {
	client, p, err := a.client()
	if !errors.Is(err, paths.ErrNoBase) {
		return client, p, err
	}
	list, no := a.happened(context.Background(), time.Time{})
	if no != nil {
		return client, p, no
	}
	for _, h := range list.Sorted() {
		a.Dir = cmp.Or(a.Dir, h.Dir)
	}
	if all, _ := (paths.Finder{DirOf: agents.DirOf}).Projects(""); len(all) > 0 {
		a.Dir = cmp.Or(a.Dir, all[0].Dir)
	}
	if a.Dir == "" {
		return client, p, err
	}
	a.note(fmt.Sprintf("this is about %s: --dir names another project", printable.Text(a.Dir)))
	return a.client()
}

// forConsole starts a daemon for the console of a project, whose agent has no view.
func (a *app) forConsole(ctx context.Context, no error) (p paths.Paths, end func(), err error) {
	p, project, err := a.existing()
	if err != nil || project == nil {
		return p, nil, cmp.Or(err, no)
	}
	return embedded.Start(ctx, p, project.ID, io.Discard, "--"+embedded.Unmounted)
}

// everywhere returns where daemons of the user may run: his own, that of the host, if he may use it, those of projects and
// of single commands.
func (a *app) everywhere() (all []api.Place) {
	own, err := paths.OfUser()
	usual := append(paths.Projects(), paths.Host)
	if err == nil {
		usual = append(usual, own)
	}
	for _, p := range usual {
		if p, err := p.Complete(); err == nil && unix.Access(p.Socket(), unix.W_OK) == nil {
			all = append(all, api.Place{Paths: p})
		}
	}
	for _, p := range embedded.All() {
		if p.Base == own.Base {
			p.State = own.State
		}
		if p, err := p.Complete(); err == nil {
			all = append(all, api.Place{Paths: p, Only: true})
		}
	}
	return all
}

// operating returns the function of a command for what daemons do now.
func (a *app) operating(f func(ctx context.Context, client *api.Daemons, words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		client, err := a.daemons(c.Context())
		if err != nil {
			return err
		}
		return f(c.Context(), client, words)
	}
}
