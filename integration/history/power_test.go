package history

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestPowerLoss cuts the power while clients work and while an undo runs. Then an undo to the checkpoint before brings back what
// was there, or says that it does not; where the power failure has lost the records, it leaves a file as the failure has left it.
func TestPowerLoss(t *testing.T) {
	need.All(t, "power cuts, for a minute")
	need.Long(t, "it mounts a disk many times")
	need.Once(t)
	h := harness.LayOut(t, nil)
	d := harness.NewDisk(t, h.Base)
	require.NoError(t, os.Chmod(h.Base, 0o755))
	h.Put("agents.d/.keep", "")
	h.Define("a", "view: {changes: kept, xattrs: true}")
	require.NoError(t, os.MkdirAll(h.Scope("a"), 0o755))
	h.Timeout = time.Duration(2+rounds("SCOPEFS_TEST_HISTORY_CUTS", 4)) * time.Minute
	h.Start()
	k := keeperOf(h)
	first := rounds("SCOPEFS_TEST_HISTORY_FIRST", 0)
	random := rand.New(rand.NewPCG(uint64(first), 5))
	restored, listed, left := 0, 0, 0
	for round := first; round < first+rounds("SCOPEFS_TEST_HISTORY_CUTS", 4); round++ {
		name := fmt.Sprint("p", round)
		for i := range 60 {
			text := strings.Repeat(fmt.Sprint(round, " ", i, " "), 5000)
			require.NoError(t, os.WriteFile(k.View("a", fmt.Sprint("f", i)), []byte(text), 0o644))
		}
		before := harness.Dumped(t, k.Scope("a"), 0)
		k.checkpoint("a", name)
		syncAll(t, h.Base)
		stop := work(k.View("a"))
		time.Sleep(time.Duration(20+random.IntN(2000)) * time.Millisecond)
		if round%2 == 1 {
			stop()
			go func() { _, _ = k.ask("a", query.Request{Undo: &history.Selection{Checkpoint: name}}) }()
			time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
		}
		d.Cut()
		h.Abort()
		stop()
		if err := unix.Unmount(h.View("a"), unix.MNT_DETACH); err != unix.EINVAL { // the holder has
			require.NoError(t, err)
		}
		d.Unmount()
		d.Mount()
		lost := harness.Dumped(t, k.Scope("a"), 0)
		h.Start()
		problems := strings.Join(k.undo("a", name), "\n")
		after := lines(harness.Dumped(t, k.Scope("a"), 0))
		for path, line := range lines(before) {
			switch now := after[path]; {
			case now == line:
				restored++
			case strings.Contains(problems, ": "+path+": "):
				listed++
			case now == lines(lost)[path]:
				left++
			default:
				assert.Fail(t, "neither restored nor left", "round %d, %s:\nbefore %s\nlost   %s\nnow    %s\n%s",
					round, path, line, lines(lost)[path], now, problems)
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d names as they were, %d are listed, %d are as the failure has left them", restored, listed, left)
}

// work changes each file of a directory once, in two seconds, or until it is stopped.
func work(dir string) (stop func()) {
	ended, stopping := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := range 60 {
			name := filepath.Join(dir, fmt.Sprint("f", i))
			switch i % 5 {
			case 0:
				_ = os.WriteFile(name, []byte("new"), 0o644)
			case 1:
				_ = os.Remove(name)
			case 2:
				_ = os.Rename(name, name+"moved")
			case 3:
				_ = os.Truncate(name, int64(i))
			case 4:
				if os.WriteFile(name+"tmp", []byte("replaced"), 0o644) == nil {
					_ = os.Rename(name+"tmp", name)
				}
			}
			select {
			case <-stopping:
				return
			case <-time.After(30 * time.Millisecond):
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() { close(stopping) })
		<-ended
	}
}

func syncAll(t *testing.T, dir string) {
	f, err := os.Open(dir)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.Syncfs(int(f.Fd())))
}

// lines returns the lines of a picture by path.
func lines(picture string) map[string]string {
	all := map[string]string{}
	for line := range strings.SplitSeq(picture, "\n") {
		path, rest, _ := strings.Cut(line, " ")
		rest, _, _ = strings.Cut(rest, " = ") // the first of its names may have changed
		all[filepath.Clean(path)] = rest
	}
	return all
}
