package history

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
)

// TestModel has several processes make random changes in a view and in a plain directory: each ends in the same way. After an
// undo to a checkpoint the tree is as it was then, in the view, which stays mounted, and below it.
func TestModel(t *testing.T) {
	need.Once(t)
	seeds := rounds("SCOPEFS_TEST_HISTORY_SEEDS", 24)
	agents := map[string]string{
		"passed":   "view: {changes: kept, xattrs: true}",
		"mediated": "view: {changes: kept, xattrs: true, data: mediated}",
		"users":    "view: {changes: kept, xattrs: true, allow_other: true}",
		"simple":   "view: {changes: kept}",
	}
	k := keep(t, agents)
	ids := []string{"passed", "mediated", "users", "simple"}
	first := rounds("SCOPEFS_TEST_HISTORY_FIRST", 0)
	for seed := first; seed < first+seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			k.T = t
			newModel(t, k, ids[seed%len(ids)], uint64(seed)).run()
		})
	}
	k.T = t
}

// model is one run of random changes.
type model struct {
	t       *testing.T
	k       *keeper
	id      string
	random  *rand.Rand
	dir     string // in the view
	below   string
	twin    string
	clients []*program
	trace   bytes.Buffer
}

func newModel(t *testing.T, k *keeper, id string, seed uint64) *model {
	name := fmt.Sprint("seed", seed)
	m := &model{
		t: t, k: k, id: id, random: rand.New(rand.NewPCG(seed, 2)),
		dir: k.View(id, name), below: k.Scope(id, name), twin: k.Base + "/twin-" + name,
	}
	require.NoError(t, os.Mkdir(m.dir, 0o755))
	require.NoError(t, os.Mkdir(m.twin, 0o755))
	for range 3 {
		m.clients = append(m.clients, newProgram(t, harness.Role("changes", m.dir, m.twin), 2))
	}
	return m
}

func (m *model) log(words ...any) { fmt.Fprintln(&m.trace, words...) }

func (m *model) run() {
	t, r := m.t, m.random
	type point struct {
		name string
		tree trees
	}
	var points []point
	for round := range 6 {
		m.close(round%2 == 1)
		p := point{fmt.Sprintf("%s-%d", filepath.Base(m.dir), round), m.now()}
		points = append(points, p)
		m.k.checkpoint(m.scope(), p.name)
		m.log("checkpoint", p.name)
		for range 5 + r.IntN(40) {
			m.step()
		}
		m.same()
		if r.IntN(2) > 0 && round < 5 {
			continue
		}
		to := points[r.IntN(len(points))]
		if round == 5 {
			to = points[0]
		}
		after := m.now()
		m.undo(history.Selection{Checkpoint: to.name}, to.tree)
		if r.IntN(2) == 0 && after != to.tree {
			m.close(false)
			m.undo(history.Selection{Undo: true}, after)
			if round == 5 {
				m.undo(history.Selection{Checkpoint: to.name}, to.tree)
			}
		}
		m.close(false)
		require.NoError(t, os.RemoveAll(m.twin))
		out, err := exec.Command("cp", "-a", m.below, m.twin).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, os.RemoveAll(m.twin))
	for _, c := range m.clients {
		c.end()
	}
}

func (m *model) undo(sel history.Selection, want trees) {
	m.log("undo", sel.Checkpoint, sel.Undo)
	m.close(true) // a file that is open for writing is a conflict
	problems := m.k.undoing(m.scope(), sel)
	got := m.now()
	harness.SameTrees(m.t, want.below, got.below, fmt.Sprint("below ", problems, "\n", m.trace.String()))
	harness.SameTrees(m.t, want.view, got.view, "in the view\n"+m.trace.String())
	require.Empty(m.t, problems, m.trace.String())
}

// trees are the pictures of a tree below the view and in it.
type trees struct{ below, view string }

func (m *model) now() trees {
	return trees{harness.Dumped(m.t, m.below, harness.Times), harness.Dumped(m.t, m.dir, harness.Times|harness.Links)}
}

// same compares the trees.
func (m *model) same() {
	native := harness.Dumped(m.t, m.twin, harness.Links)
	harness.SameTrees(m.t, native, harness.Dumped(m.t, m.dir, harness.Links), m.trace.String())
}

// close closes the descriptors of all clients, or those that are open for writing: what is written by them belongs to the
// generation in which they were opened.
func (m *model) close(writing bool) {
	for _, c := range m.clients {
		for slot := range 4 {
			if slot >= 2 || !writing {
				c.do(m.t, fmt.Sprint("close ", slot))
			}
		}
	}
}

// step makes one change.
func (m *model) step() {
	r := m.random
	var files, dirs, fifos []string
	_ = filepath.WalkDir(m.twin, func(name string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(m.twin, name)
		if err == nil && d.IsDir() {
			dirs = append(dirs, rel)
		} else if err == nil {
			files = append(files, rel)
		}
		if err == nil && d.Type() == fs.ModeNamedPipe {
			fifos = append(fifos, rel)
		}
		return nil
	})
	all := append(slices.Clone(dirs[1:]), files...)
	some := func(list []string) string {
		if len(list) == 0 {
			return "missing"
		}
		return list[r.IntN(len(list))]
	}
	name := func() string { return filepath.Join(some(dirs), fmt.Sprint("n", r.IntN(7))) }
	size := r.IntN(100)
	if r.IntN(4) == 0 {
		size = r.IntN(60_000)
	}
	if r.IntN(12) == 0 {
		size = 16 << 10 // in the journal, and above
	}
	text := fmt.Sprint("t", r.IntN(1000))
	slot := r.IntN(4)
	line := ""
	switch n := r.IntN(100); {
	case n < 12:
		line = fmt.Sprint("create ", name(), " ", text, " ", size)
	case n < 17:
		line = fmt.Sprint("mkdir ", name())
	case n < 38:
		what := []string{"write", "append", "rewrite", "empty", "truncate", "map", "punch", "allocate", "copy"}[r.IntN(9)]
		if what == "copy" {
			text = some(files)
		}
		line = fmt.Sprint(what, " ", some(files), " ", text, " ", size)
	case n < 45:
		line = fmt.Sprint("unlink ", some(append(files, some(dirs))))
	case n < 48:
		line = fmt.Sprint("rmdir ", some(all))
	case n < 50:
		line = fmt.Sprint("remove ", some(all))
	case n < 65:
		to := some(all)
		if r.IntN(2) == 0 {
			to = name()
		}
		line = fmt.Sprint([]string{"rename", "rename", "place", "exchange"}[r.IntN(4)], " ", some(all), " ", to)
	case n < 70:
		line = fmt.Sprint("link ", some(files), " ", name())
	case n < 72:
		line = fmt.Sprint("symlink ", name(), " n", r.IntN(7))
	case n < 73:
		line = fmt.Sprint("fifo ", name())
	case n < 77:
		line = fmt.Sprint("touch ", some(append(all, ".")), " x ", r.IntN(1000))
	case n < 81:
		line = fmt.Sprint("chmod ", some(append(all, ".")), " x ", 0o700|r.IntN(0o100))
	case n < 84 && m.id != "simple":
		line = fmt.Sprint([]string{"setxattr", "removexattr"}[r.IntN(2)], " ", some(append(all, ".")), " a", r.IntN(2), " ", text)
	case n < 86 && m.id != "simple":
		line = fmt.Sprint([]string{"setacl", "removeacl"}[r.IntN(2)], " ", some(all), " ", []string{"access", "default"}[r.IntN(2)])
	case n < 88:
		line = fmt.Sprint("unnamed ", name(), " ", text, " ", size)
	case n < 93:
		flags := unix.O_RDONLY
		if slot >= 2 {
			flags = unix.O_RDWR
		}
		line = fmt.Sprint("hold ", slot, " ", some(files), " ", flags)
	case n < 95:
		line = fmt.Sprint("close ", slot)
	default:
		line = fmt.Sprint("held ", slot, " ", []string{"write", "truncate", "chmod", "touch", "stat", "link"}[r.IntN(6)], " ", size)
		if strings.Contains(line, " link ") {
			line = fmt.Sprint("held ", slot, " link ", name())
		}
	}
	c := r.IntN(len(m.clients))
	if words := strings.Fields(line); strings.HasSuffix(words[0], "acl") && slices.Contains(fifos, words[1]) {
		return // see docs/limits.md#history
	}
	got := m.clients[c].do(m.t, line)
	m.log(c, line, got)
	require.Equal(m.t, got[1], got[0], "natively and in the view\n%s", m.trace.String())
}

func (m *model) scope() scope.ID { return scopeID(m.id) }
