package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/extensions"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/imports"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/widening"
)

// Extension is an imported extension, for the report.
type Extension struct {
	Source    string   `json:"source"`
	Extension scope.ID `json:"extension"`
	Path      string   `json:"path,omitempty"` // "" with --dry-run
	Warnings  []string `json:"warnings,omitempty"`
	Widens    []string `json:"widens,omitempty"` // what agents may do with it, and might not before
}

// CopyExtension copies an extension beside its place, and exchanges the two. It undoes that if the extension does
// not load.
func CopyExtension(ctx context.Context, p config.Paths, source string, o Options) (one Extension, err error) {
	parent := filepath.Join(p.Base, "extensions.d")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return one, err
	}
	stage, err := os.MkdirTemp(parent, ".import-*") // a reload reads no name with a leading dot
	if err != nil {
		return one, err
	}
	defer os.RemoveAll(stage)
	into := filepath.Join(stage, "copy")
	if err := os.Mkdir(into, 0o755); err != nil {
		return one, err
	}
	dir, err := extensions.Copy(ctx, source, o.Ref, into)
	if err != nil {
		return one, err
	}
	if one, err = describeExtension(source, dir); err != nil || o.DryRun {
		return one, err
	}
	place := filepath.Join(parent, string(one.Extension))
	one.Path = place
	flags := uint(unix.RENAME_NOREPLACE)
	if exists(place) {
		if !o.Force {
			return one, fmt.Errorf("%s exists: give --force to replace it", place)
		}
		flags = unix.RENAME_EXCHANGE
		if err := keepSettings(place, dir); err != nil {
			return one, err
		}
	}
	known, before, err := definitions.Load(p)
	if err != nil {
		return one, err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, place, flags); err != nil {
		return one, fmt.Errorf("write %s: %w", place, err)
	}
	all, warnings, err := loadsExtension(p, one.Extension, before)
	one.Warnings = append(one.Warnings, warnings...)
	if err == nil {
		for _, line := range widening.All(known, all) {
			one.Widens = append(one.Widens, printable.Text(line))
		}
	}
	if err != nil { // back, or exchanged again
		return one, errors.Join(err, unix.Renameat2(unix.AT_FDCWD, place, unix.AT_FDCWD, dir, flags))
	}
	return one, durable.SyncDir(parent)
}

// describeExtension returns the name of the extension in dir, and what it gives its author.
func describeExtension(source, dir string) (one Extension, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return one, err
	}
	defer root.Close()
	name, _ := extensions.Manifest(dir)
	text, err := root.ReadFile(name)
	if err != nil {
		return one, err
	}
	m, err := imports.ReadManifest(text)
	if err != nil {
		return one, fmt.Errorf("%s: %w", name, err)
	}
	one = Extension{Source: source, Extension: m.Name, Warnings: m.Warnings}
	for _, file := range m.Agents {
		text, err := root.ReadFile(filepath.Clean(file))
		if err != nil {
			return one, fmt.Errorf("agents: %w", err)
		}
		if text, err = one.converted(root, &m, file, text); err != nil {
			return one, fmt.Errorf("%s: %w", file, err)
		}
		for _, w := range imports.DefinitionWarnings(text) {
			one.Warnings = append(one.Warnings, printable.Text(file)+": "+w)
		}
	}
	return one, nil
}

// converted returns an agent's file of the copy, converted there if it is one of gemini-cli. It adds what is lost to the
// warnings.
func (one *Extension) converted(copied *os.Root, m *imports.Manifest, file string, text []byte) ([]byte, error) {
	tools := session.Tools()
	if !imports.OfGemini(text, tools) {
		return text, nil
	}
	results, err := imports.Convert(imports.Source{File: file, Text: text, Format: imports.Gemini, Tools: tools})
	if err != nil {
		return nil, err
	}
	for _, l := range results[0].Lost {
		if server, ok := strings.CutPrefix(l.What, "mcp server "); ok && slices.Contains(m.Servers, server) {
			continue // the manifest defines it
		}
		one.Warnings = append(one.Warnings, printable.Text(file)+": "+l.String())
	}
	return results[0].Text, copied.WriteFile(filepath.Clean(file), results[0].Text, 0o600)
}

// keepSettings copies the operator's settings of an extension to its next version.
func keepSettings(from, to string) error {
	old, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer old.Close()
	f, err := old.OpenFile(extensions.Settings, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	name := filepath.Join(to, extensions.Settings)
	return errors.Join(os.WriteFile(name, text, 0o600), os.Chmod(name, st.Mode().Perm()))
}

// loadsExtension returns all definitions, the warnings and the errors of the files of an extension, and the errors of other files that
// were not there before: two extensions may have servers of one name.
func loadsExtension(p config.Paths, name scope.ID, before []error) (all *agents.Snapshot, warnings []string, err error) {
	all, errs, err := definitions.Load(p)
	if err != nil {
		return nil, nil, err
	}
	of := func(err error) bool {
		bad, ok := errors.AsType[*fields.FileError](err)
		return ok && strings.HasPrefix(bad.File, "extensions.d/"+string(name)+"/")
	}
	for _, err := range all.Warnings {
		if of(err) {
			warnings = append(warnings, printable.Text(err.Error()))
		}
	}
	return all, warnings, errors.Join(slices.DeleteFunc(errs, func(err error) bool {
		return !of(err) && slices.ContainsFunc(before, func(old error) bool { return old.Error() == err.Error() })
	})...)
}

// Print prints the path, and on stderr the warnings.
func (one Extension) Print(stdout, stderr io.Writer) error {
	for _, w := range one.Warnings {
		fmt.Fprintf(stderr, "%s: WARNING: %s\n", one.Source, w)
	}
	for _, line := range one.Widens {
		fmt.Fprintf(stderr, "%s: allows: %s\n", one.Source, line)
	}
	if one.Path == "" {
		return nil
	}
	_, err := fmt.Fprintln(stdout, one.Path)
	return err
}
