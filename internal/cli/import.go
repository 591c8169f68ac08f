package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/extensions"
	"github.com/scopefs/scopefs/internal/imports"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/scope"
)

// importOptions are the flags of agents import.
type importOptions struct {
	from, to, name, ref   string
	force, dryRun, asJSON bool
}

func (a *app) importCmd() *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import FILE|EXTENSION...",
		Short: "write definitions from other programs' agent files, or import an extension",
		Long: `Writes a definition for each agent that the files describe, prints its path, and
reports on standard error what could not be kept, one line per loss:

	FILE: KEY: WHY; WHAT IS THERE INSTEAD

A definition never allows more than its file. A rule that a definition cannot
express is left out or narrowed: for Bash(git:*), every call of bash needs approval.
With an unknown key, every call needs approval. Nothing is written unless all files
can be imported.

The modules of scoped-mcp that are stores here need an entry in scopefs.yaml. Import
prints it and does not write it. Credentials are named in it, never read.

A WARNING names each command that the definition would start, and each variable of
the daemon's environment that it would read, as ${NAME}.

The formats (--from) are

	gemini      an agent of gemini-cli (.gemini/agents/NAME.md)
	claude      an agent of Claude Code (.claude/agents/NAME.md)
	scoped-mcp  a manifest of scoped-mcp, YAML or JSON
	scopes      agents in YAML, JSON or Markdown in whose tools, skills and mcps an
	            empty list means unrestricted: it becomes absent. Empty tools
	            beside lists that name something are computed from them. Empty
	            members stay none. It looks like any other, so only --from finds it.

Without --from the format is detected by a directory .gemini or .claude in the path,
or else by a key, a tool's name or a model that only one format has. The report names
the evidence; an ambiguous file is refused.

An EXTENSION is a directory, a tar archive (.tar, .tar.gz, .tgz) or a git repository
of this host with a gemini-extension.json at its top. It is copied to extensions.d/NAME,
and prints that path. --ref reads a directory as a git repository, and names the branch,
tag or commit; without it that is HEAD. Of a repository only committed files are read:
no hook, no filter, no submodule, and only if it belongs to you. --force replaces an
extension and keeps its .env. An extension that does not load is not imported.

Exit status: 0 imported, with losses or without, 1 failure, 2 bad usage.`,
		Args: args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, files []string) error {
			if o.ref != "" || slices.ContainsFunc(files, extensions.Is) {
				return a.importExtensions(c.Context(), files, o)
			}
			return a.runImport(files, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.from, "from", "", "format: gemini, claude, scoped-mcp or scopes")
	f.StringVar(&o.to, "to", "", "directory to write into (default BASE/agents.d)")
	f.StringVar(&o.ref, "ref", "", "branch, tag or commit of a git repository with an extension")
	f.StringVar(&o.name, "name", "", "id of the agent, for a file of one")
	f.BoolVar(&o.force, "force", false, "replace definitions that exist")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the definitions, write nothing")
	f.BoolVar(&o.asJSON, "json", false, "print the report as JSON, and nothing else")
	return c
}

// imported is an imported agent, for the report.
type imported struct {
	File       string         `json:"file"`
	Format     imports.Format `json:"format"`
	Because    string         `json:"because,omitempty"` // the evidence for the format
	Agent      scope.ID       `json:"agent"`
	Path       string         `json:"path,omitempty"`       // of the file written
	Definition string         `json:"definition,omitempty"` // the text, if no file was written
	Stores     string         `json:"stores,omitempty"`     // what scopefs.yaml needs
	Lost       []imports.Loss `json:"lost"`
	Warnings   []string       `json:"warnings,omitempty"`

	text []byte
	mode fs.FileMode
}

func (a *app) runImport(files []string, o importOptions) error {
	src, err := o.source(files)
	if err == nil && !o.dryRun {
		o.to, err = a.importDir(o.to)
	}
	if err != nil {
		return &exitError{exitUsage, err}
	}
	var all []*imported
	from := map[scope.ID]string{}
	for _, file := range files {
		list, err := readImport(file, src)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, one := range list {
			if first, twice := from[one.Agent]; twice {
				return fmt.Errorf("%s: agent %s is also in %s: import them one by one, with --name ID", file, one.Agent, first)
			}
			from[one.Agent] = file
			if path := filepath.Join(o.to, string(one.Agent)+".md"); !o.dryRun && !o.force && exists(path) {
				return fmt.Errorf("%s: %w", file, &existsError{path})
			}
		}
		all = append(all, list...)
	}
	for _, one := range all {
		if err := a.writeImport(one, o); err != nil {
			return fmt.Errorf("%s: %w", one.File, err)
		}
	}
	if o.asJSON {
		return a.printJSON(all)
	}
	return nil
}

// source checks the flags for the input.
func (o *importOptions) source(files []string) (src imports.Source, err error) {
	if o.from != "" {
		src.Format, err = imports.ParseFormat(o.from)
	}
	if err == nil && o.name != "" {
		src.Name, err = scope.ParseID(o.name)
	}
	if err == nil && o.name != "" && len(files) > 1 {
		err = errors.New("one --name for several files: import them one by one")
	}
	return src, err
}

func (a *app) importDir(to string) (string, error) {
	if to == "" {
		p, err := a.paths()
		if err != nil {
			return "", fmt.Errorf("%w, or give --to DIR", err)
		}
		to = filepath.Join(p.Base, "agents.d")
	}
	if st, err := os.Stat(to); err != nil || !st.IsDir() {
		return "", fmt.Errorf("%q is no directory: create it, or give --to DIR", to)
	}
	return to, nil
}

func readImport(file string, src imports.Source) ([]*imported, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would wait for a writer
	if err != nil {
		return nil, errors.Unwrap(err) // without the path, which the caller adds
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("is no regular file: give one")
	}
	if src.Text, err = io.ReadAll(io.LimitReader(f, imports.MaxSource+1)); err != nil {
		return nil, err
	}
	src.File, src.Env = file, os.LookupEnv
	if src.Tools, err = session.Tools(); err != nil {
		return nil, err
	}
	results, err := imports.Convert(src)
	if err != nil {
		return nil, err
	}
	var all []*imported
	for _, r := range results {
		one := &imported{File: file, Format: r.Format, Because: r.Because, Agent: r.Name, Stores: string(r.Stores), Lost: r.Lost, Warnings: r.Warnings, text: r.Text}
		if one.Lost == nil {
			one.Lost = []imports.Loss{}
		}
		// The source's mode, because the file may hold a key.
		one.mode = 0o600 | st.Mode().Perm()&0o644
		all = append(all, one)
	}
	return all, nil
}

// writeImport writes or prints one definition and reports the losses.
func (a *app) writeImport(one *imported, o importOptions) error {
	if o.dryRun {
		one.Definition = string(one.text)
	} else {
		one.Path = filepath.Join(o.to, string(one.Agent)+".md")
		if err := writeDefinition(one.Path, one.text, one.mode, o.force); err != nil {
			return err
		}
	}
	if o.asJSON {
		return nil
	}
	if one.Because != "" {
		fmt.Fprintf(a.err, "%s: taken for %s, as %s\n", one.File, one.Format, one.Because)
	}
	for _, l := range one.Lost {
		fmt.Fprintf(a.err, "%s: %s\n", one.File, l)
	}
	for _, w := range one.Warnings {
		fmt.Fprintf(a.err, "%s: WARNING: %s\n", one.File, w)
	}
	if one.Stores != "" {
		fmt.Fprintf(a.err, "%s: the definition loads when scopefs.yaml has these stores, and the daemon was started again:\n%s", one.File, one.Stores)
	}
	if o.dryRun {
		_, err := io.WriteString(a.out, one.Definition)
		return err
	}
	_, err := fmt.Fprintln(a.out, one.Path)
	return err
}

type existsError struct{ path string }

func (e *existsError) Error() string {
	return fmt.Sprintf("%s exists: give --force to replace it, or --name ID", e.path)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// writeDefinition creates a file atomically, by a rename from a name with a leading
// dot. It does not use link(2), because loading rejects files with several names.
func writeDefinition(path string, text []byte, mode fs.FileMode, force bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".import-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	if force {
		flags = 0
	}
	err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, flags)
	switch {
	case errors.Is(err, fs.ErrExist):
		return &existsError{path}
	case err == nil:
		err = state.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
