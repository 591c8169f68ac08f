package fleetcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/git"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// sourceLimits bound the definitions of a commit. A node has at most 1,024.
var sourceLimits = git.Limits{Files: 1024, Each: order.MaxDefinition, All: 64 << 20}

// sourceOptions are the flags of a put of a commit.
type sourceOptions struct {
	dir, ref, path, name, signers string
	unsigned, force, dry          bool
}

func (o *sourceOptions) add(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.dir, "git", "", "publish what a commit of the git repository `DIR` defines, and remove what it no longer defines")
	flags.StringVar(&o.ref, "ref", "HEAD", "the `COMMIT`, as git rev-parse reads it")
	flags.StringVar(&o.path, "path", "agents.d", "the `DIRECTORY` of the definitions in the repository")
	flags.StringVar(&o.name, "source", "git", "the `NAME` under which the fleet has what the directory has defined")
	flags.StringVar(&o.signers, "signers", "", "only the SSH keys of an allowed signers `FILE` count as signers of the commit")
	flags.BoolVar(&o.unsigned, "unsigned", false, "do not verify the commit's signature")
	flags.BoolVar(&o.force, "force", false, "also a commit that does not follow the last one, and in place of what others have put")
	flags.BoolVar(&o.dry, "dry-run", false, "verify and compare, publish nothing")
	for _, name := range []string{"ref", "path", "source", "signers", "unsigned", "force", "dry-run"} {
		flags.Lookup(name).Usage += " (with --git)"
	}
}

// open opens the commit of the flags.
func (o *sourceOptions) open(ctx context.Context) (*git.Commit, error) {
	c, err := git.Open(ctx, o.dir, o.ref)
	if errors.Is(err, git.ErrOwner) {
		err = fmt.Errorf("%w: clone it as yourself, or name it in safe.directory of your git configuration", err)
	}
	return c, err
}

// definitions returns what a commit defines, for nodes. Its signature was verified, and each definition was parsed.
func (o *sourceOptions) definitions(ctx context.Context, c *git.Commit, nodes []string) (all []order.Definition, err error) {
	if o.signers != "" {
		if o.signers, err = filepath.Abs(o.signers); err != nil {
			return nil, err
		}
	}
	if !o.unsigned {
		if err := c.Verify(ctx, o.signers); err != nil {
			return nil, fmt.Errorf("%w: see docs/fleet.md, or give --unsigned", err)
		}
	}
	files, err := c.Files(o.path, sourceLimits)
	if err != nil {
		return nil, err
	}
	var wrong []error
	for _, f := range files {
		if err := checkText(f); err != nil {
			wrong = append(wrong, err)
			continue
		}
		all = append(all, order.Definition{Name: scope.ID(strings.TrimSuffix(f.Name, ".md")), Nodes: nodes, Text: string(f.Text)})
	}
	return all, errors.Join(wrong...)
}

// checkText returns the errors of a definition that do not depend on the node. Variables are the node's.
func checkText(f git.File) error {
	err := agents.CheckText(f.Name, f.Text)
	if all, ok := errors.AsType[fields.FileErrors](err); ok {
		all = slices.DeleteFunc(slices.Clone(all), func(one *fields.FileError) bool { return errors.Is(one, fields.ErrUnset) })
		if len(all) > 0 {
			return all
		}
		return nil
	}
	if errors.Is(err, fields.ErrUnset) {
		return nil
	}
	return err
}

// seen is what the server has under a name.
type seen struct {
	order.Definition
	trusted bool // a key that counts has signed it
}

// plan returns the versions that bring the fleet from what it has to what a commit defines, without their numbers, and how many are as they
// should be. A source owns the definitions whose versions it has published.
func plan(source order.Source, there map[scope.ID]seen, want []order.Definition,
	force bool) (next []order.Definition, same int, err error) {
	var wrong []error
	wanted := map[scope.ID]bool{}
	for _, d := range want {
		wanted[d.Name] = true
		old, ok := there[d.Name]
		switch {
		case ok && old.trusted && !old.Removed && old.Text == d.Text && slices.Equal(old.Nodes, d.Nodes):
			same++
		case !ok, old.Removed, owns(source, old.Definition), force:
			next = append(next, d)
		default:
			wrong = append(wrong, fmt.Errorf("%s: somebody else has put a definition of that name: remove one of both, or give --force", d.Name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(source.Versions)) {
		if old, ok := there[name]; ok && !wanted[name] && !old.Removed && owns(source, old.Definition) {
			next = append(next, order.Definition{Name: name, Removed: true})
		}
	}
	return next, same, errors.Join(wrong...)
}

func owns(source order.Source, d order.Definition) bool {
	return slices.Contains(source.Versions[d.Name], d.Version)
}

// putSource publishes what a commit defines.
func (v Env) putSource(ctx context.Context, s *reader.Server, key credential.Secret, nodes []string, o sourceOptions) error {
	if _, err := scope.ParseID(o.name); err != nil {
		return exit.Usagef("--source %.64q: write 1 to 63 of a-z, 0-9 and -", o.name)
	}
	fleet, err := v.fleet()
	if err != nil {
		return err
	}
	reading, cancel := context.WithTimeout(ctx, git.MaxTime)
	defer cancel()
	commit, err := o.open(reading)
	if err != nil {
		return fmt.Errorf("%s: %w", printable.Text(o.dir), err)
	}
	defer func() { _ = commit.Discard() }() // what is left of it is in the temporary directory
	want, err := o.definitions(reading, commit, nodes)
	if err != nil {
		return fmt.Errorf("%s: %w", printable.Text(o.dir), err)
	}
	all, err := s.Defined(ctx)
	if err != nil {
		return err
	}
	to, source, err := o.source(all, key, fleet.Trust)
	if err != nil {
		return err
	}
	if err := o.follows(commit, source.Commit); err != nil {
		return err
	}
	there := seenOf(all, key, fleet.Trust)
	next, same, err := plan(source, there, want, o.force)
	if err != nil {
		return err
	}
	if o.dry {
		for _, d := range next {
			fmt.Fprintf(v.Out, "would be %s %s\n", verb(d), d.Name)
		}
	} else if source.Commit != commit.ID || len(next) > 0 {
		now := order.Source{Name: o.name, Path: o.path, Commit: commit.ID, Versions: kept(source, there)}
		if err := v.publish(ctx, s, all, key, fleet.Trust, to, now, next, want); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(v.Out, "unchanged %d\n", same)
	return err
}

// publish publishes versions of a source. It publishes the source first, in place of the one that was read: of two commands that have read
// the same one, the second fails. Afterwards it looks whether the fleet has what is wanted: another command may have come meanwhile.
func (v Env) publish(ctx context.Context, s *reader.Server, all []wire.SeenDefinition, key credential.Secret, trust []string,
	to wire.SeenDefinition, source order.Source, next, want []order.Definition) (err error) {
	puts := []wire.SeenDefinition{to}
	for i, d := range next { // all are signed before the first is published
		put, version, err := sign(all, key, d)
		if err != nil {
			return err
		}
		next[i].Version = version
		source.Versions[d.Name] = append(source.Versions[d.Name], version)
		puts = append(puts, put)
	}
	if puts[0].Signed, err = source.Sign(key.Reveal()); err != nil {
		return err
	}
	for i, put := range puts {
		if _, err := wire.Put.Call(ctx, s.Conn, put); err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintf(v.Out, "%s %s %s\n", verb(next[i-1]), put.Name, versionText(next[i-1].Version))
		}
	}
	if all, err = s.Defined(ctx); err != nil {
		return err
	}
	ours := slices.ContainsFunc(all, func(d wire.SeenDefinition) bool { return d.Name == to.Name && bytes.Equal(d.Signed, puts[0].Signed) })
	if left, _, err := plan(source, seenOf(all, key, trust), want, true); !ours || err != nil || len(left) > 0 {
		return fmt.Errorf("source %s: another put came meanwhile: put its commit once more", source.Name)
	}
	return nil
}

func verb(d order.Definition) string {
	if d.Removed {
		return "removed"
	}
	return "published"
}

// seenOf returns what the server has, by name. What is no definition is somebody's.
func seenOf(all []wire.SeenDefinition, key credential.Secret, trust []string) map[scope.ID]seen {
	there := map[scope.ID]seen{}
	for _, one := range all {
		d, _ := order.ReadDefinition(one.Signed)
		if string(d.Name) != one.Name {
			d = order.Definition{}
		}
		there[scope.ID(one.Name)] = seen{d, order.Ours(one.Signed, key.Reveal(), trust)}
	}
	return there
}

// maxVersions limits the versions of a definition that a source lists.
const maxVersions = 16

// kept returns the versions of a source that the server has, and later ones, which another command may still publish.
func kept(source order.Source, there map[scope.ID]seen) map[scope.ID][]int64 {
	versions := map[scope.ID][]int64{}
	for name, all := range source.Versions {
		old := there[name]
		all = slices.DeleteFunc(slices.Clone(all), func(v int64) bool { return v < old.Version || v == old.Version && old.Removed })
		if more := len(all) - maxVersions; more > 0 {
			all = slices.Delete(all, 1, 1+more) // the first one may be there
		}
		if len(all) > 0 {
			versions[name] = all
		}
	}
	return versions
}

// source returns what the source has published before, and the server's number of it.
func (o *sourceOptions) source(all []wire.SeenDefinition, key credential.Secret,
	trust []string) (to wire.SeenDefinition, s order.Source, err error) {
	to.Name = order.SourceKey(o.name)
	i := slices.IndexFunc(all, func(d wire.SeenDefinition) bool { return d.Name == to.Name })
	if i < 0 {
		return to, s, nil
	}
	to.Serial = all[i].Serial
	s, err = order.OpenSource(all[i].Signed, key.Reveal(), trust)
	switch {
	case err == nil && (s.Name != o.name || s.Path != o.path):
		err = fmt.Errorf("it is %q of a repository: give another --source", s.Path)
	case err != nil:
		err = fmt.Errorf("%w: name its key in fleet.trust of your scopefs.yaml", err)
	}
	if err != nil && o.force {
		return to, order.Source{}, nil
	}
	if err != nil {
		return to, s, fmt.Errorf("source %s: %w: or give --force: then what it has defined is somebody else's", o.name, err)
	}
	return to, s, nil
}

// follows returns an error unless a commit may follow the last one of the source.
func (o *sourceOptions) follows(c *git.Commit, last string) error {
	if o.force || last == "" {
		return nil
	}
	ok, err := c.Follows(last)
	if err == nil && !ok {
		err = fmt.Errorf("it is not in the history of %.12s", c.ID)
	}
	if err != nil {
		return fmt.Errorf("source %s: the last commit that was put is %.12s: %w: put a later commit, or give --force", o.name, last, err)
	}
	return nil
}
