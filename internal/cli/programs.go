package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/report"
)

func (a *app) programsCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "programs [show NAME|add NAME [COMMAND]]",
		Short: "list the agent programs for run --for",
		Long: `Lists the programs that scopefs run --for NAME starts, and the files of those that are not of
scopefs. A program is a file, programs.d/NAME.yaml of the base or the project, or of
~/.config/scopefs for all projects of the user. Of one name that of the project holds, else the
user's, else that of scopefs. It needs no base.

A program without a file runs as a command: scopefs run --dir DIR -- COMMAND. add
writes its file, with the presets of the hosts that were refused while it ran.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPrograms() },
	}
	c.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "print the file of a program", Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error { return a.showProgram(words[0]) },
	}, &cobra.Command{
		Use: "add NAME [COMMAND]", Short: "write the file of a program in PATH", Args: exit.Args(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, words []string) error {
			return a.addProgram(c.Context(), words[0], words[len(words)-1])
		},
	})
	return c
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

func (a *app) showProgram(name string) error {
	p, err := a.settingsPaths()
	if err != nil {
		return err
	}
	program, err := programs.Of(p.Base, p.User, name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(a.out, program.Text)
	return err
}

// addProgram writes the file of a program, which must be in PATH.
func (a *app) addProgram(ctx context.Context, name, command string) error {
	p, err := a.settingsPaths()
	if err != nil {
		return err
	}
	file, text, err := a.place(p).Add(ctx, name, command)
	if err == nil {
		_, err = fmt.Fprintf(a.out, "%s\n%s", file, text)
	}
	return err
}
