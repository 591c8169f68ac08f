package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// disk is a harness.Disk.
type disk struct {
	*harness.Disk
	t *testing.T
}

// newDisk makes a disk and mounts it at a directory until the test ends.
func newDisk(t *testing.T, at string) *disk {
	t.Helper()
	return &disk{harness.NewDisk(t, at), t}
}

// restartOn starts the host again after the power was cut.
func restartOn(h *harness.Host, d *disk) {
	h.T.Helper()
	h.Abort()
	d.Unmount()
	d.Mount()
	h.Start()
}

// changes is what acknowledged calls have made: contents by path, "" for none, and
// a directory with a slash at its end.
type changes struct {
	mu    sync.Mutex
	files map[string]string
}

func (s *changes) set(path, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = content
}

// missing returns what a directory has otherwise.
func (s *changes) missing(root string) (bad []string) {
	for path, want := range s.files {
		got, err := os.ReadFile(filepath.Join(root, path))
		info, statErr := os.Lstat(filepath.Join(root, path))
		switch {
		case want == "":
			if statErr == nil {
				bad = append(bad, path+": is there again")
			}
		case strings.HasSuffix(path, "/"):
			if statErr != nil || !info.IsDir() {
				bad = append(bad, path+": no directory")
			}
		case err != nil:
			bad = append(bad, path+": missing")
		case string(got) != want:
			bad = append(bad, fmt.Sprintf("%s: %d bytes, want %d", path, len(got), len(want)))
		}
	}
	return bad
}

// What a file tool has acknowledged is on the disk when the power fails.
func TestPowerLoss(t *testing.T) {
	need.All(t, "power cuts, for a minute")
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": ""})
	require.NoError(t, os.WriteFile(filepath.Join(h.Base, "scopefs.yaml"), []byte("memory: true\n"), 0o644))
	d := newDisk(t, filepath.Join(h.Base, "agents"))
	require.NoError(t, os.Mkdir(h.Scope("a"), 0o755))
	n := rounds(2)
	h.Timeout += time.Duration(n) * 10 * time.Second
	h.Start()
	total, lost := 0, 0
	for round := range n {
		s := &changes{files: map[string]string{}}
		users := []*harness.User{h.Connect("a"), h.Connect("a")}
		var all sync.WaitGroup
		for i, u := range users {
			all.Go(func() { change(h, u, s, fmt.Sprintf("round%d/user%d", round, i)) })
		}
		all.Wait()
		out := h.Must("call", "--agent", "a", "write_file", fmt.Sprintf("path=round%d/called", round), "content=by call")
		require.Contains(t, out, "created")
		s.set(fmt.Sprintf("round%d/called", round), "by call")
		d.Cut()
		restartOn(h, d)
		for _, u := range users {
			_ = u.Session.Close()
		}
		bad := s.missing(h.Scope("a"))
		assert.Empty(t, bad, "round %d", round)
		assert.Empty(t, s.missing(h.View("a")), "round %d, in the view", round)
		total, lost = total+len(s.files), lost+len(bad)
		require.NoError(t, os.RemoveAll(h.Scope("a", fmt.Sprintf("round%d", round)))) // the disk is small
	}
	t.Logf("%d rounds, %d acknowledged changes, %d lost", n, total, lost)
	h.Stop()
}

// A change by a file tool need not wait for the disk where the operator says so:
// in scopefs.yaml for all agents, in a definition for one.
func TestPowerLossQuick(t *testing.T) {
	need.All(t, "power cuts, for a minute")
	need.Once(t)
	h := harness.LayOut(t, map[string]string{"a": "durable: true", "b": ""})
	require.NoError(t, os.WriteFile(filepath.Join(h.Base, "scopefs.yaml"), []byte("durable: false\n"), 0o644))
	d := newDisk(t, filepath.Join(h.Base, "agents"))
	for _, id := range []string{"a", "b"} {
		require.NoError(t, os.Mkdir(h.Scope(id), 0o755))
	}
	h.Start()
	for _, id := range []string{"a", "b"} {
		u := h.Connect(id)
		for i := range 20 {
			u.Call("write_file", args{"path": fmt.Sprint(i), "content": "x"})
		}
	}
	d.Cut()
	restartOn(h, d)
	full := map[string]int{}
	for _, id := range []string{"a", "b"} {
		for i := range 20 {
			if text, _ := os.ReadFile(h.Scope(id, fmt.Sprint(i))); string(text) == "x" {
				full[id]++
			}
		}
	}
	assert.Equal(t, 20, full["a"])
	assert.Less(t, full["b"], 20, "nothing was lost: is durable without effect?")
	h.Stop()
}

// change makes changes of all kinds, below a directory.
func change(h *harness.Host, u *harness.User, s *changes, dir string) {
	content := func(i int) string { return strings.Repeat(fmt.Sprintf("%s %d\n", dir, i), 1+i*i) }
	for i := range 50 {
		path := fmt.Sprintf("%s/new/%d", dir, i)
		u.Call("write_file", args{"path": path, "content": content(i)})
		s.set(path, content(i))
	}
	u.Call("copy", args{"from": dir + "/new", "to": dir + "/copied", "recursive": true})
	for i := range 50 {
		s.set(fmt.Sprintf("%s/copied/%d", dir, i), content(i))
	}
	u.Call("copy", args{"from": dir + "/new/1", "to": dir + "/copied/2", "overwrite": true})
	s.set(dir+"/copied/2", content(1))
	u.Call("edit_file", args{"path": dir + "/new/0", "edits": []args{{"old_text": content(0), "new_text": "edited\n"}}})
	s.set(dir+"/new/0", "edited\n")
	u.Call("write_file", args{"path": dir + "/new/1", "content": "overwritten"})
	s.set(dir+"/new/1", "overwritten")
	u.Call("write_file", args{"path": dir + "/new/2", "content": "more", "mode": "append"})
	s.set(dir+"/new/2", content(2)+"more")
	u.Call("write_file", args{"path": dir + "/new/appended", "content": "more", "mode": "append"})
	s.set(dir+"/new/appended", "more")
	u.Call("make_dir", args{"path": dir + "/a/b/c"})
	s.set(dir+"/a/b/c/", "directory")
	u.Call("make_dir", args{"path": dir + "/a/b/d"})
	s.set(dir+"/a/b/d/", "directory")
	u.Call("move", args{"from": dir + "/new/3", "to": dir + "/a/moved"})
	s.set(dir+"/a/moved", content(3))
	s.set(dir+"/new/3", "")
	u.Bash("cp " + dir + "/new/10 " + dir + "/by-hand") // not durable, until it is moved
	u.Call("move", args{"from": dir + "/by-hand", "to": dir + "/new/4", "overwrite": true})
	s.set(dir+"/new/4", content(10))
	u.Call("delete_file", args{"path": dir + "/new/5"})
	s.set(dir+"/new/5", "")
	name := strings.ReplaceAll(dir, "/", "-")
	u.Call("remember", args{"name": name, "text": "a note"})
	s.set(".memory/"+name+".md", "a note")
	u.Call("copy", args{"from": dir + "/a", "to": dir + "/gone", "recursive": true})
	u.Call("delete", args{"path": dir + "/gone", "recursive": true})
	s.set(dir+"/gone", "")
}
