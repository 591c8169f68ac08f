// Package importer writes what package imports converts into a base, and copies extensions there.
package importer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/imports"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/scope/widening"
)

// Options says where an import writes.
type Options struct {
	From, Name string // the format and the agent, of Definitions; "": found in the file
	To         string // the directory of Definitions
	Ref        string // the branch, tag or commit of a repository, of CopyExtension
	Force      bool   // replace what exists
	DryRun     bool   // write nothing
}

// Definition is an imported agent, for the report.
type Definition struct {
	File       string         `json:"file"`
	Format     imports.Format `json:"format"`
	Because    string         `json:"because,omitempty"` // the evidence for the format
	Agent      scope.ID       `json:"agent"`
	Path       string         `json:"path,omitempty"`       // of the file written
	Definition string         `json:"definition,omitempty"` // the text, if no file was written
	Stores     string         `json:"stores,omitempty"`     // what scopefs.yaml needs
	Lost       []imports.Loss `json:"lost"`
	Warnings   []string       `json:"warnings,omitempty"`
	Widens     []string       `json:"widens,omitempty"` // what it allows beyond the definition that it replaces, else beyond one without keys

	text []byte
	mode fs.FileMode
}

// Source checks the flags for the input.
func (o Options) Source(files []string) (src imports.Source, err error) {
	if o.From != "" {
		src.Format, err = imports.ParseFormat(o.From)
	}
	if err == nil && o.Name != "" {
		src.Name, err = scope.ParseID(o.Name)
	}
	if err == nil && o.Name != "" && len(files) > 1 {
		err = errors.New("one --name for several files: import them one by one")
	}
	return src, err
}

func readImport(file string, src imports.Source) ([]*Definition, error) {
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
	src.File, src.Env, src.Tools = file, os.LookupEnv, session.Tools()
	results, err := imports.Convert(src)
	if err != nil {
		return nil, err
	}
	var all []*Definition
	for _, r := range results {
		all = append(all, &Definition{
			File: file, Format: r.Format, Because: r.Because, Agent: r.Name, Stores: string(r.Stores),
			Lost: append([]imports.Loss{}, r.Lost...), Warnings: r.Warnings, text: r.Text,
			mode: 0o600 | st.Mode().Perm()&0o644, // the source's, because the file may hold a key
		})
	}
	return all, nil
}

// place writes the definition, or keeps its text.
func (one *Definition) place(o Options) error {
	if o.DryRun {
		one.Definition = string(one.text)
		return nil
	}
	one.Path = filepath.Join(o.To, string(one.Agent)+".md")
	err := definitions.Write(one.Path, one.text, one.mode, o.Force)
	if errors.Is(err, fs.ErrExist) {
		return existsError(one.Path)
	}
	return err
}

// compare sets Widens. known has the definitions of the base before the import; nil: it is for no base.
func (one *Definition) compare(known *agents.Snapshot) {
	if known == nil {
		return
	}
	name := string(one.Agent) + ".md"
	now, errs, _ := known.Try(name, one.text)
	before := known.Agents[one.Agent]
	if before == nil {
		before, _, _ = known.Try(name, fmt.Appendf(nil, "---\nname: %s\n---\n", one.Agent))
	}
	if now == nil || before == nil {
		e := excess.Excess{Key: "all of it", What: fmt.Sprintf("does not load yet: %v", errors.Join(errs...)), Undecided: true}
		one.Widens = []string{printable.Text(e.String())}
		return
	}
	for _, e := range widening.Of(now, before) {
		one.Widens = append(one.Widens, printable.Text(e.String()))
	}
}

// Print prints the path or the definition, and on stderr what is lost.
func (one *Definition) Print(stdout, stderr io.Writer) error {
	if one.Because != "" {
		fmt.Fprintf(stderr, "%s: taken for %s, as %s\n", one.File, one.Format, one.Because)
	}
	for _, l := range one.Lost {
		fmt.Fprintf(stderr, "%s: %s\n", one.File, l)
	}
	for _, w := range one.Warnings {
		fmt.Fprintf(stderr, "%s: WARNING: %s\n", one.File, w)
	}
	for _, line := range one.Widens {
		fmt.Fprintf(stderr, "%s: allows: %s\n", one.File, line)
	}
	if one.Stores != "" {
		fmt.Fprintf(stderr, "%s: the definition loads when scopefs.yaml has these stores, and the daemon was started again:\n%s",
			one.File, one.Stores)
	}
	if one.Path == "" {
		_, err := io.WriteString(stdout, one.Definition)
		return err
	}
	_, err := fmt.Fprintln(stdout, one.Path)
	return err
}

// existsError is the error of a definition that would be replaced.
func existsError(path string) error {
	return fmt.Errorf("%s exists: give --force to replace it, or --name ID", path)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Definitions writes a definition for each agent of files, and none if one cannot be read. It returns those that it
// wrote.
func Definitions(files []string, src imports.Source, o Options) (done []*Definition, err error) {
	var all []*Definition
	from := map[scope.ID]string{}
	for _, file := range files {
		list, err := readImport(file, src)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, one := range list {
			if first, twice := from[one.Agent]; twice {
				return nil, fmt.Errorf("%s: agent %s is also in %s: import them one by one, with --name ID", file, one.Agent, first)
			}
			from[one.Agent] = file
			if path := filepath.Join(o.To, string(one.Agent)+".md"); !o.DryRun && !o.Force && exists(path) {
				return nil, fmt.Errorf("%s: %w", file, existsError(path))
			}
		}
		all = append(all, list...)
	}
	var known *agents.Snapshot
	if filepath.Base(o.To) == "agents.d" {
		p, err := config.Paths{Base: filepath.Dir(o.To)}.Complete()
		if err == nil {
			known, _, _ = definitions.Load(p) // without it nothing loads, which the operator is told of elsewhere
		}
	}
	for i, one := range all {
		one.compare(known)
		if err := one.place(o); err != nil {
			return all[:i], fmt.Errorf("%s: %w", one.File, err)
		}
	}
	return all, nil
}
