package branch

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
)

// written returns what the files of a directory have, and where.
func written(t testing.TB, dir string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		all[string(text)] = strings.TrimPrefix(path, dir+"/")
		return err
	}))
	return all
}

// TestModelUndoOfSessions makes random changes in a layer by two sessions and, with every other seed, some in the directory. An undo or a
// redo of one of them loses nothing that the other one has written, and changes nothing in the directory. A redo right after the undo gives
// what was there before, unless the undo had conflicts or the host has changed something.
func TestModelUndoOfSessions(t *testing.T) { seeds(t, 20, 100, modelSessions) }

func modelSessions(t *testing.T, seed uint64, top string) {
	f := newForkAt(t, top)
	random := rand.New(rand.NewPCG(seed, 5))
	base := &player{Rand: random, dir: f.base}
	one, two := &player{Rand: random, dir: f.merged, next: 1_000_000}, &player{Rand: random, dir: f.merged, next: 2_000_000}
	host := seed%2 == 0
	var log []string
	defer func() {
		if t.Failed() {
			t.Logf("base: %s\nlog: %s", strings.Join(base.log, ", "), strings.Join(log, ", "))
		}
	}()
	for range 25 {
		base.play()
	}
	base.log = append(base.log, "|")
	thaw := f.frozen()
	require.NoError(t, f.renew())
	thaw()
	for range 6 {
		for range 1 + random.IntN(4) {
			p, name := one, "one"
			if random.IntN(2) == 0 {
				p, name = two, "two"
			}
			f.tell("session " + name)
			p.list()
			for range 1 + random.IntN(5) {
				p.log = nil
				p.play()
				if p.log != nil {
					log = append(log, name+": "+p.log[0])
				}
				if host && random.IntN(8) == 0 {
					base.log = nil
					base.play()
					p.list()
					if base.log != nil {
						log = append(log, "host: "+base.log[0])
					}
				}
			}
		}
		was, differed := tree(t, f.merged), f.diff()
		from, alone := 0, false // what session two has written before is not looked at
		for _, sel := range []history.Selection{{Session: "one"}, redo} {
			before, directory := written(t, f.merged), tree(t, f.base)
			u := f.undo(sel)
			log = append(log, fmt.Sprintf("undo %+v", u))
			if len(u.Steps) == 0 && sel.Session != "" {
				break
			}
			require.Empty(t, u.Error)
			now := written(t, f.merged)
			for text, at := range before {
				var n int
				if _, err := fmt.Sscan(text, &n); err == nil && n > 2_000_000 && n > from {
					require.Contains(t, now, text, "it was at %s", at)
				}
			}
			require.Equal(t, directory, tree(t, f.base))
			if alone { // the redo gives what was there before the undo
				require.Empty(t, u.Conflicts)
				requireMerged(t, was, f.merged, "redo %q", u.Steps)
				require.ElementsMatch(t, differed, f.diff())
			}
			if from = two.next; sel.Session != "" {
				f.tell("session two")
				two.list()
				alone = !host && len(u.Conflicts) == 0
				for range random.IntN(4) {
					two.log = nil
					if two.play(); two.log != nil {
						log, alone = append(log, "two: "+two.log[0]), false
					}
				}
			}
		}
		if random.IntN(3) == 0 {
			log = append(log, "mount")
			f.again()
			written(t, f.merged)
		}
	}
}

// TestUndoWhileOthersWrite: what another session writes while an undo runs is there afterwards, and the directory is as it was.
func TestUndoWhileOthersWrite(t *testing.T) {
	const files = 60
	var lines []string
	for i := range files {
		lines = append(lines, fmt.Sprintf("d%d/f%d=old", i%3, i))
	}
	for round := range 2 {
		f := newFork(t, lines...)
		at := func(i int) string { return fmt.Sprintf("%s/d%d/f%d", f.merged, i%3, i) }
		directory := tree(t, f.base)
		f.tell("session one")
		for i := range files {
			switch i % 5 {
			case 0:
				require.NoError(t, os.Remove(at(i)))
			case 1:
				require.NoError(t, os.Rename(at(i), at(i)+".moved"))
			case 2:
				require.NoError(t, os.WriteFile(at(i)+"~", []byte("one, saved"), 0o644))
				require.NoError(t, os.Rename(at(i)+"~", at(i)))
			default:
				require.NoError(t, os.WriteFile(at(i), []byte("one"), 0o644))
			}
		}
		f.tell("session two")
		over := make(chan struct{})
		last := make([]map[int]string, 2)
		var writers sync.WaitGroup
		for w := range last {
			last[w] = map[int]string{}
			random := rand.New(rand.NewPCG(uint64(round), uint64(w)))
			writers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-over:
						return
					default:
					}
					i := random.IntN(files/2)*2 + w // each has its own
					text, name := fmt.Sprintf("two %d", n), at(i)
					if n%2 == 0 {
						name += fmt.Sprintf(".new%d", w)
					}
					err := os.WriteFile(name, []byte(text), 0o644)
					if err == nil && name != at(i) {
						err = os.Rename(name, at(i))
					}
					if err == nil {
						last[w][i] = text
					}
				}
			})
		}
		u := f.undo(history.Selection{Session: "one"})
		close(over)
		writers.Wait()
		for _, files := range last {
			for i, text := range files {
				now, err := os.ReadFile(at(i))
				if assert.NoError(t, err) {
					assert.Equal(t, text, string(now), at(i))
				}
			}
		}
		require.Empty(t, u.Error)
		require.Equal(t, directory, tree(t, f.base))
		written(t, f.merged)
	}
}

// TestUndoAttack: an undo and a redo of what an agent has made of names, modes, links and pipes end, and lose nothing.
func TestUndoAttack(t *testing.T) {
	long := strings.Repeat("n", 255)
	for name, do := range map[string]func(f *fork){
		"a pipe over a file": func(f *fork) {
			require.NoError(f, unix.Mkfifo(f.merged+"/p", 0o600))
			f.rename(f.merged, "p", "f")
		},
		"a pipe in a moved directory": func(f *fork) {
			require.NoError(f, unix.Mkfifo(f.merged+"/d/p", 0))
			f.rename(f.merged, "d", "moved")
			f.remove(f.merged, "moved/x")
			require.NoError(f, unix.Mkfifo(f.merged+"/moved/x", 0o600))
		},
		"modes of nobody": func(f *fork) {
			f.make(f.merged, "d/x=new", "d/e/z=new", "d/e/mine=1")
			require.NoError(f, os.Chmod(f.merged+"/d/e", 0))
			require.NoError(f, os.Chmod(f.merged+"/d", 0))
			require.NoError(f, os.Chmod(f.merged+"/f", 0))
			f.rename(f.merged, "d", "closed")
		},
		"long names": func(f *fork) {
			f.make(f.merged, long+"=1")
			f.rename(f.merged, "f", long)
			f.rename(f.merged, "d", "f")
			f.rename(f.merged, long, "f/"+long)
		},
		"a directory in a directory that takes its name": func(f *fork) {
			f.rename(f.merged, "d/e", "e")
			f.rename(f.merged, "d", "e/d")
			f.rename(f.merged, "e", "d")
			f.make(f.merged, "d/d/x=new")
		},
		"a link in place of a directory": func(f *fork) {
			f.rename(f.merged, "d", "d2")
			require.NoError(f, os.Symlink("e", f.merged+"/d"))
			f.rename(f.merged, "d2/e", "e")
			f.remove(f.merged, "d2/x")
		},
		"second names": func(f *fork) {
			f.make(f.merged, "own=own")
			require.NoError(f, os.Link(f.merged+"/own", f.merged+"/d/three"))
			f.rename(f.merged, "d/three", "one")
			f.remove(f.merged, "two")
			require.NoError(f, os.Link(f.merged+"/one", f.merged+"/two"))
		},
		"a deep path": func(f *fork) {
			at, err := os.OpenRoot(f.merged)
			require.NoError(f, err)
			for range 20 {
				require.NoError(f, at.Mkdir(long, 0o755))
				below, err := at.OpenRoot(long)
				require.NoError(f, err)
				at.Close()
				at = below
			}
			require.NoError(f, at.WriteFile("deep", []byte("deep"), 0o600))
			at.Close()
			require.NoError(f, os.Rename(f.merged+"/"+long, f.merged+"/d/"+long))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, "f=old", "one=linked", "d/x=1", "d/y=2", "d/e/z=3")
			require.NoError(t, os.Link(f.base+"/one", f.base+"/two"))
			base, was := tree(t, f.base), tree(t, f.merged)
			f.checkpoint("before")
			do(f)
			for range 2 {
				u := f.undo(history.Selection{Checkpoint: "before"})
				assert.Empty(t, u.Error)
				assert.Empty(t, u.Unkept)
				assert.Empty(t, u.Conflicts)
				requireMerged(t, was, f.merged, "%q", u.Steps)
				u = f.undo(redo)
				assert.Empty(t, u.Error)
				assert.Empty(t, u.Conflicts)
				f.again()
			}
			assert.Equal(t, base, tree(t, f.base))
		})
	}
}
