package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope/hosts"
)

func (a *app) presetsCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "presets [show NAME]",
		Short: "list the presets of hosts for network",
		Long: `Lists the presets that network: {presets: [NAME]} may name. A preset is a file:
BASE/presets.d/NAME.yaml with description and allow. It replaces the preset of
scopefs with the same name.`,
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPresets() },
	}
	c.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "print the file of a preset", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error { return a.showPreset(words[0]) },
	})
	return c
}

func (a *app) presets() (map[string]*hosts.Preset, error) {
	p, err := a.paths()
	if err != nil {
		return nil, err
	}
	all, errs := hosts.Presets(p.Base)
	return all, errors.Join(errs...)
}

func (a *app) listPresets() error {
	all, err := a.presets()
	var t report.Table
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Row(name, all[name].Description)
	}
	return errors.Join(t.Print(a.out), err)
}

func (a *app) showPreset(name string) error {
	all, err := a.presets()
	if p := all[name]; p != nil {
		_, err := fmt.Fprint(a.out, p.Text)
		return err
	}
	return errors.Join(err, fmt.Errorf("no preset %q: scopefs presets lists them", name))
}
