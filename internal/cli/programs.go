package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/launch"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/internal/report"
)

func (a *app) programsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "programs [show NAME|add NAME [COMMAND [ARG...]]]",
		Short: "list the agent programs for run --for",
		Long: `Lists the programs that scopefs run --for NAME starts, and the files of those that are not of
scopefs. A program is a file, programs.d/NAME.yaml of the base or the project, or of
~/.config/scopefs for all projects of the user. Of one name that of the project holds, else the
user's, else that of scopefs. It needs no base.

A program without a file runs as a command: scopefs run --dir DIR -- COMMAND. add runs it
once in the project, or as AGENT, and proposes a file: with the presets of the hosts that
were refused to it, and what links led to that its sandbox does not show.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPrograms(asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	var o addOptions
	add := &cobra.Command{
		Use: "add NAME [COMMAND [ARG...]]", Short: "run a program in PATH once, and write a file for it", Args: exit.Args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error { return a.addProgram(c.Context(), words, o) },
	}
	add.Flags().StringVar(&o.agent, "agent", "", "run it as this agent")
	add.Flags().BoolVar(&o.noRun, "no-run", false, "run nothing: the log has earlier runs")
	add.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	add.Flags().SetInterspersed(false) // what follows COMMAND is its own
	a.completeAgent(add)
	c.AddCommand(add, &cobra.Command{
		Use: "show NAME", Short: "print the file of a program", Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error { return a.showProgram(words[0]) },
	})
	return c
}

func (a *app) loginCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "login PROGRAM",
		Short: "say which key or login a run of an agent program has",
		Long: `Says which key or login scopefs run --for PROGRAM has, or what is missing, with exit status 1.
A login is made by the program itself, outside of sandboxes, in the HOME of the user. scopefs
refreshes its token; the sandbox has a placeholder.`,
		Args: exit.Args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error {
			p, err := a.settingsPaths()
			if err != nil {
				return err
			}
			text, err := a.place(p).Login(words[0])
			switch {
			case asJSON && err != nil:
				return errors.Join(report.Line(a.out, map[string]any{"program": words[0], "ready": false, "lacks": err.Error()}), err)
			case asJSON:
				return report.Line(a.out, map[string]any{"program": words[0], "ready": true, "has": text})
			case err == nil:
				_, err = fmt.Fprintln(a.out, text)
			}
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) listPrograms(asJSON bool) error {
	p, err := a.settingsPaths()
	if err != nil {
		return err
	}
	all, errs := programs.All(p.Base, p.User)
	if asJSON {
		list := []listed{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			list = append(list, listed{Name: name, Description: all[name].Description, File: all[name].File})
		}
		return errors.Join(append(errs, report.JSON(a.out, list))...)
	}
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

type addOptions struct {
	agent      string
	noRun, yes bool
}

// addProgram runs a program, which must be in PATH, and writes the file that its run proposes.
func (a *app) addProgram(ctx context.Context, words []string, o addOptions) error {
	name, argv := words[0], words[min(1, len(words)-1):]
	p, err := a.settingsPaths()
	if err == nil {
		_, err = a.place(p).Addable(ctx, name, argv[0])
	}
	if err != nil {
		return err
	}
	if _, project, _ := a.where(); !o.noRun && (project != nil || o.agent != "") {
		code, err := a.run(ctx, o.agent, argv, command.Run{})
		if err == nil {
			p, err = a.settingsPaths() // of a project that the run has made
		}
		if err != nil {
			return err
		}
		if code != 0 {
			a.note(fmt.Sprintf("%s ended with status %d: what follows is of what it did until then", argv[0], code))
		}
	}
	file, text, err := a.place(p).Propose(ctx, name, argv[0])
	if err == nil {
		err = report.Diff(a.out, file, nil, []byte(text))
	}
	if err == nil && !o.yes {
		err = prompt.Consent(ctx, "write this?", a.in, a.err)
	}
	if err != nil {
		return err
	}
	return launch.WriteNew(file, text)
}
