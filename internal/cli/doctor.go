package cli

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/doctor"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/report"
)

func (a *app) doctorCmd() *cobra.Command {
	var asJSON, inside bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "try what scopefs needs of this host, and say what is missing",
		Long: `Tries each facility that views and sandboxes need, as this user, and prints a line
for each: ok; degraded, if views and sandboxes work without it; or missing. A line that
is not ok ends with the remedy. For root it also tries as the user of sudo, or as nobody,
whether ordinary users can run agents of their own; what only these lack is degraded. Where scopefs.service is installed
it also tries with the capabilities of that unit, and prints what differs from root. It needs no base and no daemon, takes
at most a few seconds, and leaves nothing behind. It writes to where the state and the log
are: of the base or the project, else below $XDG_STATE_HOME. Of a base it prints where the daemon serves tools, if one runs.

--json prints an array of objects with user, check, status, part (views or sandboxes),
detail and remedy.

Exit status: 0 if nothing is missing, 1 if only sandboxes lack something, 3 if no view
can be mounted.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if inside {
				return report.JSON(a.out, doctor.Examine(c.Context(), mount.Privileged()))
			}
			return a.doctor(c.Context(), asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&inside, "inside", false, "")
	_ = c.Flags().MarkHidden("inside")
	return c
}

func (a *app) doctor(ctx context.Context, asJSON bool) error {
	lines, err := doctor.Run(ctx, embedded.Namespaces(), mount.NeedsNamespaces(), a.examineState)
	if err != nil {
		return err
	}
	err = a.print(report.Host(lines), asJSON)
	if status := exitOf(lines); err == nil && status != 0 {
		return exit.With(status, nil)
	}
	return err
}

// examineState writes to the directories of the state and of the log.
func (a *app) examineState(ctx context.Context) []doctor.Line {
	var lines []doctor.Line
	p, err := a.stateOf()
	switch {
	case err != nil && (a.Dir != "" || a.Flags.Base != ""):
		lines = []doctor.Line{{Check: "state", Status: doctor.Missing, Part: doctor.Views, Detail: err.Error()}}
	case err != nil: // an agent of a base needs no HOME
		lines = []doctor.Line{{Check: "state", Status: doctor.Degraded, Part: doctor.Views,
			Detail: "--dir has no place for its state: " + err.Error()}}
	default:
		lines = []doctor.Line{doctor.Writable(ctx, "state", p.State)}
		if p.Base != "" {
			lines = append(append(lines, doctor.Sharing(ctx, "base", p.Base)), doors(ctx, p)...)
		}
		if _, err := os.Stat(p.Audit()); err == nil {
			lines = append(lines, doctor.Writable(ctx, "log", p.Audit()))
		}
	}
	return lines
}

// doors returns where the daemon of a base serves tools, if it runs.
func doors(ctx context.Context, p config.Paths) (lines []doctor.Line) {
	ctx, cancel := context.WithTimeout(ctx, doctor.Patience)
	defer cancel()
	p, err := p.Complete()
	if err != nil {
		return nil
	}
	all, _ := api.NewClient(p).Doors(ctx)
	for _, at := range all {
		lines = append(lines, doctor.Line{Check: "tools", Status: doctor.OK, Part: doctor.Sandboxes, Detail: "by " + at.By + ": " + at.Address})
	}
	return lines
}

// stateOf returns the directories of the base or the project; without either, where the user's
// would be.
func (a *app) stateOf() (config.Paths, error) {
	p, project, err := a.where()
	switch {
	case err == nil && project != nil:
		p.State = cmp.Or(p.State, filepath.Join(p.Base, "state"))
	case err != nil && a.Dir == "" && a.Flags.Base == "":
		var home string
		home, err = paths.StateHome()
		p.State = cmp.Or(a.Flags.State, filepath.Join(home, "scopefs"))
	}
	return p, err
}

// exitOf returns the exit status for what was found.
func exitOf(lines []doctor.Line) int {
	switch {
	case doctor.Lacks(lines, doctor.Views):
		return exit.Host
	case doctor.Lacks(lines, doctor.Sandboxes):
		return exit.Failed
	}
	return 0
}
