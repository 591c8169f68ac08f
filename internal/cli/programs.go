package cli

import (
	"errors"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/report"
)

func (a *app) programsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "programs",
		Short: "list the agent programs for run --for",
		Long: `Lists the programs that scopefs run --for NAME can run, and the files of those that are
not of scopefs. A program is a file, programs.d/NAME.yaml of the base or the project,
or of ~/.config/scopefs for all projects of the user. Of one name that of the project holds,
else the user's. It needs no base.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPrograms() },
	}
}

func (a *app) listPrograms() error {
	p, err := a.settingsPaths()
	if err != nil {
		return err
	}
	all, errs := programs.All(p.Base, p.User)
	var t report.Table
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Row(withFile(all[name].File, name, all[name].Description)...)
	}
	return errors.Join(append(errs, t.Print(a.out))...)
}
