package tools

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// temporaries are the files that file tools have left below a directory.
func temporaries(t *testing.T, dir string) (found []string) {
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".scopefs-") {
			found = append(found, path)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

// What a killed call has left is gone after the next start of the file worker,
// wherever it was; what the agent has named like it stays.
func TestTemporariesOfKilled(t *testing.T) {
	need.Once(t)
	for name, kill := range map[string]func(*harness.Host, []int){
		"worker": func(_ *harness.Host, workers []int) {
			for _, pid := range workers {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		},
		"daemon": func(h *harness.Host, _ []int) { h.Kill(); h.Start() },
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": ""})
			own := h.Scope("a", "d", ".scopefs-AAAAAAAAAAAAAAAAAAAAAAAAAA")
			require.NoError(t, os.MkdirAll(h.Scope("a", "d"), 0o755))
			require.NoError(t, os.MkdirAll(h.Scope("a", "from", "deep"), 0o755))
			require.NoError(t, os.Symlink("d", h.Scope("a", "link")))
			large := []byte(strings.Repeat("x", 32<<20))
			require.NoError(t, os.WriteFile(own, nil, 0o644))
			require.NoError(t, os.WriteFile(h.Scope("a", "from", "deep", "f"), large, 0o644))
			require.NoError(t, os.WriteFile(h.Scope("a", "d", "there"), nil, 0o644))
			require.NoError(t, os.Symlink("../d/there", h.Scope("a", "from", "there")))
			left := map[string]int{}
			calls := map[string]args{
				"write": {"path": "link/new", "content": string(large[:4<<20])},
				"over":  {"path": "from/there", "content": string(large[:4<<20])},
				"copy":  {"from": "from", "to": "d/copy", "recursive": true, "overwrite": true},
			}
			for what, a := range calls {
				tool := map[bool]string{true: "copy", false: "write_file"}[what == "copy"]
				for try := 0; left[what] == 0 && try < 50; try++ {
					u := h.Connect("a")
					u.Call("stat", args{"path": "."})
					workers := workersOf(h, "a")
					ended := make(chan struct{})
					go func() { defer close(ended); _, _ = u.Send(h.Soon(), tool, a) }()
					signal := func(s syscall.Signal) {
						for _, pid := range workers {
							_ = syscall.Kill(pid, s)
						}
					}
					// A look at a worker that runs comes too late on a busy machine.
					for end := time.Now().Add(10 * time.Second); ; signal(syscall.SIGCONT) {
						signal(syscall.SIGSTOP)
						if len(temporaries(t, h.Scope("a"))) > 1 || time.Now().After(end) {
							break
						}
						select {
						case <-ended:
							end = time.Time{}
						default:
						}
					}
					kill(h, workers)
					<-ended
					_ = u.Session.Close()
					left[what] = len(temporaries(t, h.Scope("a"))) - 1
					v := h.Connect("a")
					v.Call("stat", args{"path": "."})
					_ = v.Session.Close()
					h.Eventually("temporaries are gone", func() bool { return slices.Equal([]string{own}, temporaries(t, h.Scope("a"))) })
				}
				assert.NotZero(t, left[what], "%s: no call was killed with a temporary", what)
			}
			entries, _ := filepath.Glob(filepath.Join(h.Base, "state", "unfinished", "*", "*"))
			assert.Empty(t, entries)
			h.Stop()
			entries, _ = filepath.Glob(filepath.Join(h.Base, "state", "unfinished", "*"))
			assert.Empty(t, entries)
		})
	}
}
