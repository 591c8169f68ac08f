package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/extensions"
	"github.com/scopefs/scopefs/internal/importer"
	"github.com/scopefs/scopefs/internal/report"
)

// importOptions are the flags of agents import.
type importOptions struct {
	importer.Options
	asJSON bool
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
		Args: exit.Args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, files []string) error {
			if o.Ref != "" || slices.ContainsFunc(files, extensions.Is) {
				return a.importExtensions(c.Context(), files, o)
			}
			return a.importDefinitions(files, o)
		},
	}
	f := c.Flags()
	f.StringVar(&o.From, "from", "", "format: gemini, claude, scoped-mcp or scopes")
	f.StringVar(&o.To, "to", "", "directory to write into (default BASE/agents.d)")
	f.StringVar(&o.Ref, "ref", "", "branch, tag or commit of a git repository with an extension")
	f.StringVar(&o.Name, "name", "", "id of the agent, for a file of one")
	f.BoolVar(&o.Force, "force", false, "replace definitions that exist")
	f.BoolVar(&o.DryRun, "dry-run", false, "print the definitions, write nothing")
	f.BoolVar(&o.asJSON, "json", false, "print the report as JSON, and nothing else")
	return c
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

func (a *app) importDefinitions(files []string, o importOptions) error {
	src, err := o.Source(files)
	if err == nil && !o.DryRun {
		o.To, err = a.importDir(o.To)
	}
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	done, err := importer.Definitions(files, src, o.Options)
	if o.asJSON && err == nil {
		return report.JSON(a.out, done)
	}
	if o.asJSON {
		return err
	}
	for _, one := range done {
		if err := one.Print(a.out, a.err); err != nil {
			return err
		}
	}
	return err
}

func (a *app) importExtensions(ctx context.Context, sources []string, o importOptions) error {
	if o.From != "" || o.To != "" || o.Name != "" {
		return exit.Usagef("%s: is a directory or an archive, and imported as an extension: "+
			"leave out --from, --to and --name, which are for agent files", sources[0])
	}
	p, err := a.paths()
	if err != nil {
		return exit.With(exit.Usage, err)
	}
	var all []importer.Extension
	for _, source := range sources {
		one, err := importer.CopyExtension(ctx, p, source, o.Options)
		if err == nil && !o.asJSON {
			err = one.Print(a.out, a.err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		all = append(all, one)
	}
	if o.asJSON {
		return report.JSON(a.out, all)
	}
	return nil
}
