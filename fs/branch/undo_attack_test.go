package branch

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/internal/need"
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

// TestModelUndoOfSessions makes random changes in a layer by two sessions, and some in the directory. An undo or a redo of one of them loses
// nothing that the other one has written, and changes nothing in the directory.
func TestModelUndoOfSessions(t *testing.T) {
	need.Once(t)
	for seed := range need.Rounds("SCOPEFS_TEST_BRANCH_SEEDS", 100, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { modelSessions(t, uint64(seed)) })
	}
}

func modelSessions(t *testing.T, seed uint64) {
	f := newFork(t)
	random := rand.New(rand.NewPCG(seed, 5))
	base := &player{Rand: random, dir: f.base}
	one, two := &player{Rand: random, dir: f.merged, next: 1_000_000}, &player{Rand: random, dir: f.merged, next: 2_000_000}
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
			for range 1 + random.IntN(5) {
				p.log = nil
				p.play()
				if p.log != nil {
					log = append(log, name+": "+p.log[0])
				}
				if random.IntN(8) == 0 {
					base.log = nil
					base.play()
					if base.log != nil {
						log = append(log, "host: "+base.log[0])
					}
				}
			}
		}
		from := 0 // what session two has written before is not looked at
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
			if from = two.next; sel.Session != "" {
				f.tell("session two")
				for range random.IntN(4) {
					two.log = nil
					if two.play(); two.log != nil {
						log = append(log, "two: "+two.log[0])
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
