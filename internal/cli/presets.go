package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope/hosts"
)

func (a *app) presetsCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "presets [show NAME]",
		Short: "list the presets of hosts for network",
		Long: `Lists the presets that network: {presets: [NAME]} may name, and the files of those that
are not of scopefs. A preset is a file, presets.d/NAME.yaml of the base or the project, or of
~/.config/scopefs for all projects of the user, with description and allow. Of one name
that of the project holds, else the user's. It needs no base.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPresets(asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "print the file of a preset", Args: exit.Args(cobra.ExactArgs(1)), ValidArgsFunction: a.completePresets,
		RunE: func(_ *cobra.Command, words []string) error { return a.showPreset(words[0]) },
	})
	return c
}

func (a *app) presets() (map[string]*hosts.Preset, error) {
	p, err := a.settingsPaths()
	if err != nil {
		return nil, err
	}
	all, errs := hosts.Presets(p.Base, p.User)
	return all, errors.Join(errs...)
}

// completePresets completes the name of a preset.
func (a *app) completePresets(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(words) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, _ := a.presets() // those that load
	return slices.Sorted(maps.Keys(all)), cobra.ShellCompDirectiveNoFileComp
}

// listed is a preset or a program in JSON.
type listed struct {
	Name        string   `json:"name"`
	Description string   `json:"description"`
	File        string   `json:"file,omitempty"`
	Hosts       []string `json:"hosts,omitempty"`
}

func (a *app) listPresets(asJSON bool) error {
	all, err := a.presets()
	if asJSON {
		list := []listed{}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			one := listed{Name: name, Description: all[name].Description, File: all[name].File}
			for _, rule := range all[name].Allow {
				if !slices.Contains(one.Hosts, rule.Host) {
					one.Hosts = append(one.Hosts, rule.Host)
				}
			}
			list = append(list, one)
		}
		return errors.Join(report.JSON(a.out, list), err)
	}
	var t report.Table
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Row(withFile(all[name].File, name, all[name].Description)...)
	}
	return errors.Join(t.Print(a.out), err)
}

// withFile adds a file, if there is one, to the cells of a row.
func withFile(file string, cells ...any) []any {
	if file == "" {
		return cells
	}
	return append(cells, file)
}

func (a *app) showPreset(name string) error {
	all, err := a.presets()
	if p := all[name]; p != nil {
		_, err := fmt.Fprint(a.out, p.Text)
		return err
	}
	return errors.Join(err, fmt.Errorf("no preset %q: scopefs presets lists them", name))
}
