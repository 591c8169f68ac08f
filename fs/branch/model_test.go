package branch

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// player makes random changes. A listing of its directory is a walk of the view, the dearest of all that a model does: it lists once in
// four changes, and otherwise follows what it has changed itself.
type player struct {
	*rand.Rand
	dir   string
	log   []string
	next  int
	plays int
	known map[string]fs.FileMode // types, by path; nil to list
}

// list has the player list the directory before its next change: somebody else may have changed it.
func (p *player) list() { p.known = nil }

// paths returns what the directory has: directories, and the rest.
func (p *player) paths() (dirs, files []string) {
	if p.known == nil {
		p.known = map[string]fs.FileMode{}
		_ = filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == p.dir {
				return nil
			}
			if d.Name() == "theirs" {
				return fs.SkipDir
			}
			p.known[strings.TrimPrefix(path, p.dir+"/")] = d.Type()
			return nil
		})
	}
	dirs = []string{""}
	for _, rel := range slices.Sorted(maps.Keys(p.known)) {
		if p.known[rel].IsDir() {
			dirs = append(dirs, rel)
		} else {
			files = append(files, rel)
		}
	}
	return dirs, files
}

// moved follows a rename.
func (p *player) moved(from, to string) {
	for rel, mode := range maps.Clone(p.known) {
		if rest, below := strings.CutPrefix(rel+"/", from+"/"); below {
			delete(p.known, rel)
			if to != "" {
				p.known[strings.TrimSuffix(to+"/"+rest, "/")] = mode
			}
		}
	}
}

// follow notes a change, or has the player list if what it changes depends on more than names: hard links, targets of symbolic links.
func (p *player) follow(verb, one, to string, err error) {
	_, there := p.known[to]
	switch {
	case verb == "", verb == "chmod":
	case err != nil && verb != "write" && verb != "rm": // nothing has changed
	case err != nil, there && verb != "write", verb == "exchange", there && !p.known[to].IsRegular():
		p.list()
	case verb == "rename":
		p.moved(one, to)
	case verb == "rm":
		p.moved(one, "")
	case verb == "mkdir":
		p.known[to] = fs.ModeDir
	case verb == "symlink":
		p.known[to] = fs.ModeSymlink
	case verb == "link":
		p.known[to] = p.known[one]
	default:
		p.known[to] = 0
	}
}

func (p *player) content() string {
	p.next++
	return fmt.Sprintf("%d %s", p.next, strings.Repeat("x", p.IntN(20)))
}

// play makes one change, or none if that is not possible.
func (p *player) play() {
	if p.plays++; p.plays%4 == 0 {
		p.list()
	}
	dirs, files := p.paths()
	pick := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return list[p.IntN(len(list))]
	}
	fresh := filepath.Join(pick(dirs), string(rune('a'+p.IntN(6))))
	all := append(dirs[1:len(dirs):len(dirs)], files...)
	one, other := pick(all), pick(all)
	at := func(rel string) string { return filepath.Join(p.dir, rel) }
	var verb, from, to string
	var err error
	switch p.IntN(13) {
	case 0, 1:
		verb, to, err = "write", fresh, os.WriteFile(at(fresh), []byte(p.content()), 0o644)
	case 2, 3:
		file := pick(files)
		verb, to, err = "write", file, os.WriteFile(at(file), []byte(p.content()), 0o644)
	case 4:
		verb, to, err = "mkdir", fresh, os.Mkdir(at(fresh), 0o755)
	case 5, 6:
		verb, from, to, err = "rename", one, fresh, os.Rename(at(one), at(fresh))
	case 7:
		verb, from, to, err = "rename", one, other, os.Rename(at(one), at(other))
	case 8:
		verb, from, to, err = "exchange", one, other, unix.Renameat2(unix.AT_FDCWD, at(one), unix.AT_FDCWD, at(other), unix.RENAME_EXCHANGE)
	case 9:
		if one == "" {
			return
		}
		verb, from, err = "rm", one, os.RemoveAll(at(one))
	case 10:
		verb, to, err = "symlink", fresh, os.Symlink(p.content(), at(fresh))
	case 11:
		file := pick(files)
		verb, from, to, err = "link", file, fresh, os.Link(at(file), at(fresh))
	case 12:
		if info, e := os.Lstat(at(one)); e == nil && info.Mode()&fs.ModeSymlink == 0 {
			verb, from, err = "chmod", one, os.Chmod(at(one), []fs.FileMode{0o700, 0o755, 0o711}[p.IntN(3)])
		}
	}
	if p.follow(verb, from, to, err); err == nil {
		p.log = append(p.log, strings.Join(strings.Fields(verb+" "+from+" "+to), " "))
	}
}

// TestModel makes random changes in branches and commits them, also by processes that are killed: the directory is then as the branch was.
func TestModel(t *testing.T) { seeds(t, 25, 200, model) }

// committer commits in this process or, in one round of four, in another one that is killed.
func committer(f *fork, seed uint64) func(Options) *Result {
	random := rand.New(rand.NewPCG(seed, 3))
	return func(opt Options) *Result {
		if random.IntN(4) == 0 {
			return f.commitKilled(random, opt)
		}
		return f.commit(opt)
	}
}

func model(t *testing.T, seed uint64, top string) {
	f := newForkAt(t, top, "host/", "theirs/")
	random, commit := rand.New(rand.NewPCG(seed, 1)), committer(f, seed)
	base, branch := &player{Rand: random, dir: f.base}, &player{Rand: random, dir: f.merged}
	theirs := &player{Rand: random, dir: f.base + "/theirs"}
	defer func() {
		if t.Failed() {
			t.Logf("base: %s\nbranch: %s", strings.Join(base.log, ", "), strings.Join(branch.log, ", "))
		}
	}()
	for range 40 {
		base.play()
	}
	thaw := f.frozen()
	require.NoError(t, f.renew())
	thaw()
	for round := range 4 {
		branch.log = append(branch.log, fmt.Sprintf("|%d|", round))
		branch.list()
		for range 1 + random.IntN(25) {
			branch.play()
			theirs.play()
		}
		host := tree(t, theirs.dir)
		if random.IntN(4) == 0 {
			discardAll(t, f, branch)
		}
		want := tree(t, f.merged)
		if random.IntN(2) == 0 {
			branch.log = append(branch.log, "mount")
			f.again()
			requireMerged(t, want, f.merged, "mounted again")
		}
		all := f.diff()
		if random.IntN(2) == 0 {
			_, files := branch.paths()
			if len(files) > 0 {
				path := files[random.IntN(len(files))]
				branch.log = append(branch.log, "commit "+path)
				r := commit(Options{Paths: []string{path}})
				require.Empty(t, texts(r.Conflicts), "commit %s of %q", path, all)
				requireMerged(t, want, f.merged, "commit %s of %q", path, all)
				if random.IntN(2) == 0 {
					branch.log = append(branch.log, "mount")
					f.again()
					requireMerged(t, want, f.merged, "commit %s of %q, mounted again", path, all)
				}
			}
		}
		all = f.diff()
		r := commit(Options{})
		require.Empty(t, texts(r.Conflicts), "of %q", all)
		require.ElementsMatch(t, want, tree(t, f.base), "of %q", all)
		require.Equal(t, host, tree(t, theirs.dir))
		require.Empty(t, f.diff())
		requireMerged(t, want, f.merged, "after %q", all)
	}
}

// discardAll takes everything back, one path first.
func discardAll(t *testing.T, f *fork, branch *player) {
	before := tree(t, f.base)
	all := f.diff()
	s, err := f.Diff(t.Context(), nil, false)
	require.NoError(t, err)
	if len(s.Entries) > 0 {
		path := s.Entries[branch.IntN(len(s.Entries))].Path
		branch.log = append(branch.log, "discard "+path)
		part, err := f.Diff(t.Context(), []string{path}, true)
		require.NoError(t, err)
		_, _, err = f.Discard(t.Context(), []string{path}, part.Hash)
		for paths := []string{path}; err != nil && strings.Contains(err.Error(), "would go with them"); {
			require.Equal(t, all, f.diff())
			_, more, _ := strings.Cut(err.Error(), "too: ")
			paths = append(paths, strings.Split(more, ", ")...)
			_, _, err = f.Discard(t.Context(), paths, "")
		}
		require.NoError(t, err, "%s of %q", path, all)
		require.NotContains(t, strings.Join(f.diff(), "\n")+"\n", " "+path+"\n", "of %q", all)
	}
	branch.log = append(branch.log, "discard")
	s, err = f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	done, total, err := f.Discard(t.Context(), nil, s.Hash)
	require.NoError(t, err, "of %q", all)
	require.Equal(t, total, done)
	require.Empty(t, f.diff(), "of %q", all)
	requireMerged(t, before, f.merged, "of %q", all)
	f.again()
	requireMerged(t, before, f.merged, "of %q", all)
	require.Empty(t, f.diff(), "of %q", all)
	require.Equal(t, before, tree(t, f.base), "of %q", all)
}

// contents returns the contents of the files of a directory.
func contents(t *testing.T, dir string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all[string(text)] = true
		return err
	}))
	return all
}

// TestModelHost has the host change the same tree before each commit: nothing that the host or a client has written last is lost, and a
// discard leaves what the host has.
func TestModelHost(t *testing.T) { seeds(t, 25, 200, modelHost) }

func modelHost(t *testing.T, seed uint64, top string) {
	f := newForkAt(t, top)
	random, commit := rand.New(rand.NewPCG(seed, 2)), committer(f, seed)
	host, branch := &player{Rand: random, dir: f.base}, &player{Rand: random, dir: f.merged, next: 1_000_000}
	defer func() {
		if t.Failed() {
			t.Logf("host: %s\nbranch: %s", strings.Join(host.log, ", "), strings.Join(branch.log, ", "))
		}
	}()
	for range 30 {
		host.play()
	}
	thaw := f.frozen()
	require.NoError(t, f.renew())
	thaw()
	for round := range 4 {
		for _, p := range []*player{host, branch} {
			p.log = append(p.log, fmt.Sprintf("|%d|", round))
			p.list()
		}
		for range 1 + random.IntN(12) {
			branch.play()
		}
		theirs, before := contents(t, f.merged), contents(t, f.base)
		for range random.IntN(6) {
			host.play()
		}
		kept := contents(t, f.base)
		how := []Conflicts{Refuse, Ours, Merge}[random.IntN(3)]
		all := f.diff()
		r := commit(Options{Conflicts: how})
		after, shown := contents(t, f.base), contents(t, f.merged)
		for text := range kept {
			if !before[text] {
				require.True(t, after[text], "%q of the host is lost: commit %v of %q: %q", text, how, all, texts(r.Taken))
			}
		}
		for text := range theirs {
			if !before[text] && how != Merge {
				require.True(t, after[text] || shown[text], "%q of a client is lost: commit %v of %q: %q", text, how, all, texts(r.Taken))
			}
		}
		if random.IntN(2) == 0 {
			want := tree(t, f.base)
			all = f.diff()
			_, _, err := f.Discard(t.Context(), nil, "")
			require.NoError(t, err, "of %q", all)
			require.Equal(t, want, tree(t, f.base))
			require.Empty(t, f.diff(), "of %q", all)
			requireMerged(t, want, f.merged, "after the discard of %q", all)
		}
	}
}
