package history

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() { harness.Roles["toil"] = toil }

// toil is the role "toil": it changes files of a directory in a loop, by a seed, until its input ends. Errors end nothing: its
// view is killed.
func toil(args []string) error {
	var seed uint64
	if _, err := fmt.Sscan(args[1], &seed); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, 3))
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	held := map[string]int{}
	for n := 0; ; n++ {
		select {
		case <-ended:
			return nil
		default:
		}
		if os.Chdir(args[0]) != nil { // the view is dead
			time.Sleep(time.Millisecond)
			continue
		}
		name := func() string {
			if random.IntN(3) == 0 {
				return fmt.Sprint("d", random.IntN(3), "/f", random.IntN(6))
			}
			return fmt.Sprint("f", random.IntN(6))
		}
		dir := fmt.Sprint("d", random.IntN(3))
		size := fmt.Sprint(random.IntN(40_000))
		words := [][]string{
			{"create", name(), "c", size}, {"create", name(), "c", "9"}, {"write", name(), "w", size}, {"append", name(), "a", "90"},
			{"rewrite", name(), "r", size}, {"rename", name(), name(), ""}, {"rename", name(), name(), ""},
			{"exchange", name(), name(), ""}, {"link", name(), name(), ""}, {"unlink", name(), "", ""}, {"unlink", name(), "", ""},
			{"mkdir", dir, "", ""}, {"rename", dir, fmt.Sprint("d", random.IntN(3)), ""}, {"remove", dir, "", ""},
			{"chmod", name(), "", "448"}, {"touch", name(), "", "7"}, {"empty", name(), "", ""}, {"truncate", name(), "", size},
			{"unnamed", name(), "u", size}, {"symlink", name(), "f1", ""},
		}[random.IntN(20)]
		do(words, held)
	}
}

// unknown is why an undo leaves a file that a program had open for writing when the view ended.
const unknown = ": how it was left is not known: the view ended while a program had it open"

// contentsBelow returns what the regular files below a directory contain.
func contentsBelow(t *testing.T, dir string) (contents [][]byte) {
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			contents = append(contents, []byte(harness.ReadAll(t, path)))
		}
		return err
	}))
	return contents
}

// TestCrash kills the view, the daemon, or both, while clients work and while an undo runs. Afterwards an undo to the
// checkpoint before gives the tree of that time.
func TestCrash(t *testing.T) {
	need.Long(t, "it kills processes many times")
	need.Once(t)
	k := keep(t, map[string]string{"a": "view: {changes: kept, xattrs: true}"})
	first := rounds("SCOPEFS_TEST_HISTORY_FIRST", 0)
	random := rand.New(rand.NewPCG(uint64(first), 4))
	for round := first; round < first+rounds("SCOPEFS_TEST_HISTORY_CRASHES", 30); round++ {
		name := fmt.Sprint("p", round)
		times := harness.Times
		if round%3 == 1 { // an interrupted undo may leave a directory its own time: docs/limits.md
			times = 0
		}
		before, contents := harness.Dumped(t, k.Scope("a"), times), contentsBelow(t, k.Scope("a"))
		k.checkpoint("a", name)
		stop := k.toil(t, uint64(round))
		time.Sleep(time.Duration(20+random.IntN(150)) * time.Millisecond)
		kill, view := "the view", k.ViewPID("a")
		switch {
		case round%3 == 1:
			kill = "the view during an undo"
			stop() // what it has open is closed
			k.crash(func() {
				undone := make(chan struct{})
				go func() {
					defer close(undone)
					_, _ = k.ask("a", query.Request{Undo: &history.Selection{Checkpoint: name}})
				}()
				time.Sleep(time.Duration(random.IntN(25)) * time.Millisecond)
				k.killView()
				<-undone
			})
		case round%6 == 2:
			kill = "the daemon" // the view lives on
			k.Kill()
			k.Start()
			stop()
		case round%6 == 5:
			kill = "the daemon and the view"
			k.crash(func() {
				view := k.ViewPID("a")
				k.Kill()
				require.NoError(t, syscall.Kill(view, syscall.SIGKILL))
				k.Start()
			})
			stop()
		default:
			k.crash(k.killView)
			stop()
		}
		problems := k.undo("a", name)
		left := func(p string) bool { return strings.HasSuffix(p, unknown) }
		if k.ViewPID("a") != view && slices.ContainsFunc(problems, left) { // a view that lives on knows how files were left
			// A person decides. Every content is there, or kept.
			k.undoing("a", history.Selection{Checkpoint: name, Force: true})
			now := append(contentsBelow(t, k.Scope("a")), contentsBelow(t, k.Base+"/history/a")...)
			for _, content := range contents {
				kept := slices.ContainsFunc(now, func(b []byte) bool { return bytes.Contains(b, content) }) // a journal has small ones
				assert.True(t, kept, "round %d: killed %s: %d bytes are lost: %.40q\n%v", round, kill, len(content), content, problems)
			}
			require.False(t, t.Failed())
			continue
		}
		what := fmt.Sprintf("round %d: killed %s\n%s", round, kill, strings.Join(problems, "\n"))
		harness.SameTrees(t, before, harness.Dumped(t, k.Scope("a"), times), what)
		harness.SameTrees(t, before, harness.Dumped(t, k.View("a"), times), what)
		require.Empty(t, problems, what)
		if random.IntN(3) == 0 { // the next round has something to change
			stop := k.toil(t, uint64(round))
			time.Sleep(30 * time.Millisecond)
			stop()
		}
	}
	left, err := filepath.Glob(k.Base + "/history/a/*.open")
	require.NoError(t, err)
	require.LessOrEqual(t, len(left), 2)
}

// toil starts clients. They end with the returned function.
func (k *keeper) toil(t *testing.T, seed uint64) (stop func()) {
	var ends []func()
	for i := range 2 {
		cmd := harness.Role("toil", k.View("a"), fmt.Sprint(seed*2+uint64(i)))
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		ends = append(ends, func() {
			in.Close()
			_ = cmd.Wait()
		})
	}
	return func() {
		for _, end := range ends {
			end()
		}
	}
}

// crash calls f, and waits until another process serves the view.
func (k *keeper) crash(f func()) {
	k.T.Helper()
	was := k.ViewPID("a")
	require.NotZero(k.T, was)
	f()
	k.Eventually("another process serves the view", func() bool {
		a := k.Agent("a")
		return a.State == "mounted" && a.ViewPID != 0 && a.ViewPID != was
	})
}

func (k *keeper) killView() {
	require.NoError(k.T, syscall.Kill(k.ViewPID("a"), syscall.SIGKILL))
}
