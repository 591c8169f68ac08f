package history

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestModelOthers has the agent and the host change the same files in turn, and takes the session's changes back, several times. Each
// file is then the host's last version, or a conflict; the host may have removed the file after that. No text of the host is lost that
// the host has not replaced itself.
func TestModelOthers(t *testing.T) {
	seeds, first := need.Rounds("SCOPEFS_TEST_HISTORY_SEEDS", 40, 300), need.Rounds("SCOPEFS_TEST_HISTORY_FIRST", 0, 0)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { modelOthers(t, rand.New(rand.NewPCG(uint64(seed), 3))) })
	}
}

// shared is a file that the agent and the host change.
type shared struct {
	name  string
	now   string   // what it has; "": it is not there
	host  string   // the last version of the host
	texts []string // of the host, which others have replaced or removed
}

func modelOthers(t *testing.T, random *rand.Rand) {
	c := newClient(t)
	var trace bytes.Buffer
	files := []*shared{{name: "f"}, {name: "g"}, {name: "h"}}
	text := func(by string) string { return by + strings.Repeat(".", trace.Len()) + fmt.Sprint(trace.Len()) + ";" } // no two sizes are equal
	for _, f := range files {
		if random.IntN(2) == 0 {
			f.now = text("orig")
			f.host = f.now
			c.host(f.name, f.now)
			fmt.Fprintln(&trace, "host has", f.name)
		}
	}
	for range 3 + random.IntN(15) {
		c.label = Label{Session: "s"}
		if random.IntN(4) == 0 {
			c.label.Call = "call"
		}
		f := files[random.IntN(len(files))]
		fmt.Fprint(&trace, c.label, " ")
		c.newObject()
		if random.IntN(3) == 0 {
			c.hostChanges(f, random, text("host"), &trace)
		} else {
			c.agentChanges(f, random, text("agent"), &trace)
		}
	}
	seen := func() (all []string) {
		for _, f := range files {
			now, _ := os.ReadFile(filepath.Join(c.dir, f.name))
			all = append(all, string(now))
		}
		return all
	}
	after := seen()
	c.undo(Selection{Session: "s"})
	c.undo(Selection{Undo: true})
	require.Equal(t, after, seen(), "redo\n%s", trace.String())
	for round, force := range []bool{false, false, random.IntN(2) == 0, true} {
		before := seen()
		r := c.undo(Selection{Session: "s", Force: force})
		now := seen()
		for i, f := range files {
			said := fmt.Sprintf("%s, undo %d, force %v: %+v\n%s", f.name, round, force, r.Conflicts, trace.String())
			conflict := slices.Contains(conflicts(r), f.name)
			require.True(t, now[i] == f.host || f.host == "" || conflict || force, "neither the host's version nor a conflict: %s", said)
			require.True(t, force || !strings.HasPrefix(before[i], "host") || now[i] == before[i], "the host's work is gone: %s", said)
			for _, text := range f.texts {
				require.True(t, c.has(text), "%.60q is lost: %s", text, said)
			}
			if strings.HasPrefix(before[i], "host") && force {
				require.True(t, hasText(t, c.dir, before[i]), "the host's version is not beside: %s", said)
			}
		}
	}
}

func (c *client) hostChanges(f *shared, random *rand.Rand, text string, trace *bytes.Buffer) {
	name := filepath.Join(c.dir, f.name)
	switch random.IntN(5) {
	case 0:
		if f.now == "" {
			return
		}
		fmt.Fprintln(trace, "host removes", f.name)
		require.NoError(c.t, os.Remove(name))
		c.removed, text = true, ""
	case 1:
		fmt.Fprintln(trace, "host replaces", f.name)
		c.host("of the host", text)
		require.NoError(c.t, os.Rename(filepath.Join(c.dir, "of the host"), name))
		c.removed = true
	default:
		fmt.Fprintln(trace, "host writes", f.name)
		c.host(f.name, text)
	}
	f.now, f.host = text, text
}

func (c *client) agentChanges(f *shared, random *rand.Rand, text string, trace *bytes.Buffer) {
	if f.now != "" && f.now == f.host {
		f.texts = append(f.texts, f.now)
	}
	switch random.IntN(4) {
	case 0:
		if f.now == "" {
			return
		}
		fmt.Fprintln(trace, "agent removes", f.name)
		c.unlink(f.name)
		text = ""
	case 1:
		fmt.Fprintln(trace, "agent replaces", f.name)
		c.create("tmp", text)
		require.NoError(c.t, c.rename("tmp", f.name, 0))
	default:
		fmt.Fprintln(trace, "agent writes", f.name)
		if f.now == "" {
			c.create(f.name, text)
		} else {
			c.write(f.name, text)
		}
	}
	f.now = text
}

// has reports whether a text is in the tree or in the history.
func (c *client) has(text string) bool {
	return hasText(c.t, c.dir, text) || hasText(c.t, c.kept, text)
}

func hasText(t testing.TB, dir, text string) (found bool) {
	require.NoError(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			all, failed := os.ReadFile(name)
			found, err = found || bytes.Contains(all, []byte(text)), failed
		}
		return err
	}))
	return found
}

// TestRestoreWhole: an undo of a path brings back what the path had, also where another name has had that since, or takes nothing away.
func TestRestoreWhole(t *testing.T) {
	for name, test := range map[string]struct {
		change func(c *client)
		stays  bool
	}{
		"saved by another name, and undone": {change: func(c *client) {
			c.create("g", "agent")
			require.NoError(c.t, c.rename("g", "f", 0))
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(c.t, err)
			c.undo(Selection{Session: "s"})
		}},
		"saved with a backup that is removed": {change: func(c *client) {
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(c.t, err)
			require.NoError(c.t, c.rename("f", "f~", 0))
			c.newObject()
			c.create("f", "new")
			c.unlink("f~")
		}},
		"with a backup that the host has replaced": {stays: true, change: func(c *client) {
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(c.t, err)
			require.NoError(c.t, c.rename("f", "f~", 0))
			c.newObject()
			c.create("f", "new")
			c.host("other", "of the host")
			require.NoError(c.t, os.Rename(filepath.Join(c.dir, "other"), filepath.Join(c.dir, "f~")))
		}},
		"saved by another name, which the host has removed": {stays: true, change: func(c *client) {
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(c.t, err)
			c.create("g", "agent")
			require.NoError(c.t, c.rename("g", "f", 0))
			require.NoError(c.t, os.Remove(filepath.Join(c.dir, "f")))
			c.removed = true
			c.newObject()
			c.create("g", "again")
			require.NoError(c.t, c.rename("g", "f", 0))
		}},
		"with a backup that another has replaced": {stays: true, change: func(c *client) {
			_, err := c.store.Checkpoint("p", "", Hooks{})
			require.NoError(c.t, err)
			require.NoError(c.t, c.rename("f", "f~", 0))
			c.newObject()
			c.create("f", "new")
			c.create("other", "other")
			require.NoError(c.t, c.rename("other", "f~", 0))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t)
			c.host("f", "orig")
			c.label = Label{Session: "s"}
			test.change(c)
			was, err := c.store.Before("f", Selection{Checkpoint: "p"})
			want, n, now := make([]byte, 100), 0, c.read("f")
			if err == nil {
				n, _, _, err = c.store.Read(was, want, 0)
			}
			r := c.undo(Selection{Checkpoint: "p", Paths: []string{"f"}})
			if test.stays {
				assert.Contains(t, conflicts(r), "f")
				assert.Equal(t, now, c.read("f"))
				return
			}
			require.NoError(t, err)
			assert.Empty(t, r.Conflicts)
			assert.Equal(t, string(want[:n]), c.read("f"))
		})
	}
}
