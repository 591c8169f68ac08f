package branch

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// player makes random changes.
type player struct {
	*rand.Rand
	dir  string
	log  []string
	next int
}

// paths returns what the directory has: directories, and the rest.
func (p *player) paths() (dirs, files []string) {
	dirs = []string{""}
	_ = filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == p.dir {
			return nil
		}
		if d.Name() == "theirs" {
			return fs.SkipDir
		}
		if rel := strings.TrimPrefix(path, p.dir+"/"); d.IsDir() {
			dirs = append(dirs, rel)
		} else {
			files = append(files, rel)
		}
		return nil
	})
	return dirs, files
}

func (p *player) content() string {
	p.next++
	return fmt.Sprintf("%d %s", p.next, strings.Repeat("x", p.IntN(20)))
}

// play makes one change, or none if that is not possible.
func (p *player) play() {
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
	var what string
	var err error
	switch p.IntN(13) {
	case 0, 1:
		what, err = "write "+fresh, os.WriteFile(at(fresh), []byte(p.content()), 0o644)
	case 2, 3:
		file := pick(files)
		what, err = "write "+file, os.WriteFile(at(file), []byte(p.content()), 0o644)
	case 4:
		what, err = "mkdir "+fresh, os.Mkdir(at(fresh), 0o755)
	case 5, 6:
		what, err = "rename "+one+" "+fresh, os.Rename(at(one), at(fresh))
	case 7:
		what, err = "rename "+one+" "+other, os.Rename(at(one), at(other))
	case 8:
		what, err = "exchange "+one+" "+other, unix.Renameat2(unix.AT_FDCWD, at(one), unix.AT_FDCWD, at(other), unix.RENAME_EXCHANGE)
	case 9:
		if one == "" {
			return
		}
		what, err = "rm "+one, os.RemoveAll(at(one))
	case 10:
		what, err = "symlink "+fresh, os.Symlink(p.content(), at(fresh))
	case 11:
		file := pick(files)
		what, err = "link "+file+" "+fresh, os.Link(at(file), at(fresh))
	case 12:
		if info, e := os.Lstat(at(one)); e == nil && info.Mode()&fs.ModeSymlink == 0 {
			what, err = "chmod "+one, os.Chmod(at(one), []fs.FileMode{0o700, 0o755, 0o711}[p.IntN(3)])
		}
	}
	if err == nil {
		p.log = append(p.log, what)
	}
}

// TestModel makes random changes in branches and commits them: the directory is then as the branch was.
func TestModel(t *testing.T) {
	need.Once(t)
	for seed := range need.Rounds("SCOPEFS_TEST_BRANCH_SEEDS", 30, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { model(t, uint64(seed)) })
	}
}

func model(t *testing.T, seed uint64) {
	f := newFork(t, "host/", "theirs/")
	f.roots.Origin = nil // hard links of Base can make it a false conflict
	random := rand.New(rand.NewPCG(seed, 1))
	base, branch := &player{Rand: random, dir: f.base}, &player{Rand: random, dir: f.merged}
	theirs := &player{Rand: random, dir: f.base + "/theirs"}
	defer func() {
		if t.Failed() {
			t.Logf("base: %s\nbranch: %s", strings.Join(base.log, ", "), strings.Join(branch.log, ", "))
		}
	}()
	f.Close()
	f.unmount()
	for range 40 {
		base.play()
	}
	require.NoError(t, os.Remove(f.state+"/"+stampName))
	require.NoError(t, os.Remove(f.state+"/"+stageName))
	require.NoError(t, Fork(f.roots.State))
	f.mount()
	f.open()
	for round := range 4 {
		branch.log = append(branch.log, fmt.Sprintf("|%d|", round))
		for range 1 + random.IntN(25) {
			branch.play()
			theirs.play()
		}
		host := tree(t, theirs.dir)
		if random.IntN(4) == 0 {
			discardAll(t, f, branch)
		}
		want := tree(t, f.merged)
		for _, line := range slices.Concat(tree(t, f.base), tree(t, f.state+"/upper")) { // see requireMerged
			var mode, rel string
			if _, err := fmt.Sscanf(line, "%s %q", &mode, &rel); err != nil {
				continue
			}
			if line, err := describe(f.merged, rel); err == nil && !slices.Contains(want, line) {
				want = append(want, line)
			}
		}
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
				r := f.commit(Options{Paths: []string{path}})
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
		r := f.commit(Options{})
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
		if err != nil && strings.Contains(err.Error(), "was not shown") {
			require.Equal(t, all, f.diff())
			_, _, err = f.Discard(t.Context(), []string{path}, "")
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
