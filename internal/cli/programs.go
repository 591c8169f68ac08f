package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
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
		Args: args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return a.listPrograms() },
	}
	c.AddCommand(&cobra.Command{
		Use: "show NAME", Short: "print the file of a program", Args: args(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, words []string) error { return a.showProgram(words[0]) },
	}, &cobra.Command{
		Use: "add NAME [COMMAND]", Short: "write the file of a program in PATH", Args: args(cobra.RangeArgs(1, 2)),
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
	switch _, err := programs.Of(p.Base, p.User, name); {
	case err == nil:
		return fmt.Errorf("%s is a program already: scopefs programs show %s prints its file", name, name)
	case !errors.Is(err, programs.ErrUnknown):
		return err
	}
	found, err := programs.Find(ctx, command, a.ofAgents(p))
	if err != nil {
		return err
	}
	text := fmt.Sprintf("description: %s, found as %s.\ncommand: %s\n", name, found.File, command)
	refused, err := refusedTo(ctx, p, command, found.File)
	if err != nil {
		return err
	}
	presets, others := presetsFor(p, refused)
	if len(presets) > 0 {
		text += fmt.Sprintf("network: [%s] # their hosts were refused; it needs one of them\n", strings.Join(presets, ", "))
	}
	if len(others) > 0 {
		text += fmt.Sprintf("# Refused as well: to allow it, network: {allow: [%s]} in the agent's definition.\n", strings.Join(others, ", "))
	}
	file := programs.File(cmp.Or(p.Base, p.User), name)
	if _, err := programs.Parse(file, []byte(text)); err != nil {
		return err
	}
	if err := writeNew(file, text); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s\n%s", file, text)
	return err
}

func writeNew(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// refusedTo returns the hosts that the network refused to the sessions of a command, by the log.
func refusedTo(ctx context.Context, p config.Paths, command, file string) ([]string, error) {
	sessions, refused := map[string]bool{}, []string(nil)
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{}, false) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil // nothing has run yet
		case err != nil:
			return nil, err
		case e.Event == audit.KindSandbox && e.Op == "exec":
			words := strings.Fields(e.Target)
			if len(words) > 0 && (words[0] == command || words[0] == file) {
				sessions[e.Session] = true
			}
		case e.Event == audit.KindNetwork && e.Verdict == audit.Deny && sessions[e.Session]:
			host, _, _ := strings.Cut(e.Target, ":")
			if !slices.Contains(refused, host) {
				refused = append(refused, host)
			}
		}
	}
	return refused, nil
}

// presetsFor returns the presets that allow hosts, and the hosts that none allows.
func presetsFor(p config.Paths, refused []string) (presets, others []string) {
	all, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definition's to report
	for _, host := range refused {
		known := false
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !slices.ContainsFunc(all[name].Allow, func(r scope.HostRule) bool { return r.Host == host }) {
				continue
			}
			if known = true; !slices.Contains(presets, name) {
				presets = append(presets, name)
			}
		}
		if !known {
			others = append(others, host)
		}
	}
	return presets, others
}
