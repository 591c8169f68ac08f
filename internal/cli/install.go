package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/clients"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/printable"
)

// installing are the flags of scopefs mcp that write an agent program's settings.
type installing struct {
	install, uninstall string // the program
	dir                string // where its settings are
}

// settings writes or restores the settings of an agent program.
func (a *app) settings(o installing, agent string) error {
	if program := o.install + o.uninstall; !slices.Contains(clients.Names(), program) {
		return exit.Usagef("unknown program %q: want %s", program, strings.Join(clients.Names(), ", "))
	}
	state, err := paths.StateHome()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(o.dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return exit.Usagef("-C: %w: give an existing directory", err)
	}
	at := clients.Installation{Program: o.install, Dir: dir, State: filepath.Join(state, "scopefs", "clients")}
	if o.uninstall != "" {
		at.Program = o.uninstall
		all, err := at.Undo()
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s has no settings of scopefs in %s: give the directory with -C", o.uninstall, dir)
		}
		for _, c := range all {
			name, did := filepath.Join(dir, c.File), "removed"
			if exists(name) {
				did = "restored"
			}
			fmt.Fprintln(a.out, did, name)
		}
		return err
	}
	server, err := a.server(agent, dir)
	if err != nil {
		return err
	}
	all, err := at.Install(server)
	if err != nil {
		return err
	}
	for _, c := range all {
		fmt.Fprintf(a.out, "wrote %s\n", filepath.Join(dir, c.File))
	}
	fmt.Fprintf(a.out, "%s has the tools of scopefs there, and none of its own for files and commands\n", o.install)
	return nil
}

// server returns the command that serves an agent's tools to a program whose settings are in dir: from any directory, or
// from dir on any host where that is possible, so that a team can commit the settings.
func (a *app) server(agent, dir string) (clients.Server, error) {
	program, err := companion.Command()
	if err != nil {
		return clients.Server{}, err
	}
	p, id, err := a.begin(agent)
	if err != nil {
		return clients.Server{}, err
	}
	if _, err := definitions.Agent(p, id); err != nil {
		return clients.Server{}, err
	}
	_, project, err := a.where()
	if err != nil {
		return clients.Server{}, err
	}
	s := clients.Server{Command: program}
	if project != nil {
		s.Args = []string{"--dir", project.Dir}
		if rel, err := filepath.Rel(dir, project.Dir); err == nil && filepath.IsLocal(rel) && clients.InPath(program) {
			s = clients.Server{Command: filepath.Base(program), Args: []string{"--dir", rel}}
		} else {
			fmt.Fprintf(a.err,
				"scopefs: the settings name %s and %s, for this host alone: install with scopefs in PATH, in the project's directory, for settings to commit\n",
				printable.Text(program), printable.Text(project.Dir))
		}
	} else {
		s.Args = []string{"--base", p.Base}
	}
	for flag, dir := range map[string]string{"run": a.Flags.Run, "state": a.Flags.State} {
		if !a.Given(flag) {
			continue
		}
		if dir, err = filepath.Abs(dir); err != nil {
			return s, err
		}
		s.Args = append(s.Args, "--"+flag, dir)
	}
	s.Args = append(s.Args, "mcp")
	if project == nil {
		s.Args = append(s.Args, "--agent", string(id))
	}
	return s, nil
}
