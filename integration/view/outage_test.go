package view

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() { harness.Roles["acknowledges"] = acknowledges }

// acknowledges makes files, and prints the name of each when its data and its name are synced and it is closed without an error.
func acknowledges([]string) error {
	for n := 0; ; n++ {
		if name := fmt.Sprintf("client/%d", n); writeSynced(name) == nil {
			fmt.Println(name)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func writeSynced(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err = f.WriteString(contentOf(name)); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func contentOf(name string) string { return strings.Repeat(name+",", 200) }

// writers are a client of a host's view that syncs what it writes, and a client of write_file, which is durable. Each has a directory
// of its own: the kernel locks a directory while a name in it changes, and who looks up names there waits.
type writers struct {
	mu           sync.Mutex
	client, tool []string // the names of files whose write is acknowledged

	end func() // ends both
}

func startWriters(t *testing.T, h *harness.Host, agent string, p place) *writers {
	t.Helper()
	require.Empty(t, p.do("mkdir client"))
	require.Empty(t, p.do("mkdir tool"))
	w := &writers{}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	u := h.Connect(agent)
	running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			name := fmt.Sprintf("tool/%d", n)
			r, err := u.Send(ctx, "write_file", map[string]any{"path": name, "content": contentOf(name)})
			if err != nil {
				return
			}
			if !r.IsError {
				w.add(&w.tool, name)
			}
		}
	})
	cmd := h.RoleAs(1000, h.View(agent), "acknowledges")
	out := harness.Lines(t, cmd)
	running.Go(func() {
		for name := range out {
			w.add(&w.client, name)
		}
	})
	w.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		cancel()
		running.Wait()
	})
	t.Cleanup(w.end)
	return w
}

func (w *writers) add(to *[]string, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*to = append(*to, name)
}

// more waits until both have so many more acknowledged files.
func (w *writers) more(h *harness.Host, count int) {
	h.T.Helper()
	of := func() (int, int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.client), len(w.tool)
	}
	client, tool := of()
	h.Eventually("both writers have written", func() bool {
		clientNow, toolNow := of()
		return clientNow >= client+count && toolNow >= tool+count
	})
}

// requireKept requires that a process of another host reads each acknowledged file as it was written, but the client's first ones.
func (w *writers) requireKept(t *testing.T, p place, changed int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := 0
	for _, name := range slices.Concat(w.client[changed:], w.tool) {
		if got := p.do("read " + name); got != contentOf(name) {
			lost++
			t.Errorf("%s: %.40s", name, got)
		}
	}
	t.Logf("%d files of the client and %d of write_file were acknowledged, %d are lost", len(w.client), len(w.tool), lost)
}

// begin has a process do something. The function that it returns waits for what the process says, and says how long it took.
func begin(p place, line string) func() (string, time.Duration) {
	began, said := time.Now(), make(chan string, 1)
	var took time.Duration
	go func() {
		text := p.do(line)
		took = time.Since(began)
		said <- text
	}()
	return func() (string, time.Duration) { return <-said, took }
}

// TestElsewhereServerKilled: while the server of metadata, or of data, is dead, a client that reads gets an error, other agents and
// the daemon go on. When it has started again both hosts go on, and nothing that was acknowledged is lost.
func TestElsewhereServerKilled(t *testing.T) {
	need.Once(t)
	for _, kind := range harness.Kinds() {
		for _, server := range kind.Servers() {
			t.Run(string(kind)+"/"+server, func(t *testing.T) { serverKilled(t, harness.NewVolumeOf(t, kind), server) })
		}
	}
}

func serverKilled(t *testing.T, vol *harness.Volume, server string) {
	one, other := vol.NewHosts(t, map[string]string{"w": ""})
	one.Define("near", "")
	require.NoError(t, os.MkdirAll(one.Scope("near"), 0o755))
	one.Start()
	other.Start()
	places := map[string]place{}
	for _, name := range []string{"reads", "writes", "makes", "lists"} {
		places[name] = newPlace(t, one, one.View("w"))
	}
	b := newPlace(t, other, other.View("w"))
	for _, dir := range []string{"reads", "writes", "makes", "lists"} {
		require.Empty(t, b.do("mkdir "+dir))
		require.Empty(t, b.do("write "+dir+"/f text"))
	}
	pid := one.ViewPID("w")
	w := startWriters(t, one, "w", b)
	w.more(one, 10)

	restart := sync.OnceFunc(vol.Kill(t, server))
	defer restart() // a process that waits for the server cannot be killed
	defer time.AfterFunc(90*time.Second, restart).Stop()
	began := time.Now()
	reads, writes, makes, lists := begin(places["reads"], "read reads/f"), begin(places["writes"], "write writes/f again"),
		begin(places["makes"], "mkdir makes/d"), begin(places["lists"], "list lists")
	for _, words := range [][]string{{"ps"}, {"run", "-T", "near", "--", "true"}, {"reload"}, {"ps"}} {
		one.Must(words...)
	}
	read, readTime := reads()
	list, listTime := lists()
	require.Less(t, time.Since(began), 50*time.Second, "the server did not run yet")
	t.Logf("read: %.10s after %v; list: %.10s after %v", read, readTime, list, listTime)
	assert.Contains(t, []string{"EIO", "text"}, read)
	restart()

	wrote, writeTime := writes()
	made, makeTime := makes()
	t.Logf("write: %q after %v; mkdir: %q after %v", wrote, writeTime, made, makeTime)
	one.Eventually("the file is there again", func() bool { return places["reads"].do("read reads/f") == "text" })
	one.Eventually("it can be written", func() bool { return places["reads"].do("write reads/f again") == "" })
	other.Eventually("the other host sees it", func() bool { return b.do("read reads/f") == "again" })
	w.more(one, 5)
	w.end()
	w.requireKept(t, b, 0)
	require.Equal(t, pid, one.ViewPID("w"), "the view went on")
}

// TestElsewhereHostKilled: when a host dies, the other one goes on at once, with all that the dead one had acknowledged, and when the
// host is there again both go on.
func TestElsewhereHostKilled(t *testing.T) {
	need.Once(t)
	eachKind(t, func(t *testing.T, vol *harness.Volume) {
		one, other := vol.NewHosts(t, map[string]string{"w": "", "rules": "view: {paths: {secret: hide}}"})
		one.Start()
		other.Start()
		b, ruled := newPlace(t, other, other.View("w")), newPlace(t, other, other.View("rules"))
		w, rules := startWriters(t, one, "w", b), startWriters(t, one, "rules", ruled)
		w.more(one, 10)
		rules.more(one, 10)

		view, rulesView := one.ViewPID("w"), one.ViewPID("rules")
		restart := vol.Kill(t, "a")
		for _, pid := range []int{view, rulesView} {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		one.Kill()
		began := time.Now()
		for _, p := range []place{b, ruled} {
			for _, step := range []string{"write f text", "rename f g", "mkdir d", "rename g d/g", "write client/0 mine", "remove client/1"} {
				said := p.do(step)
				for vol.Kind == harness.NFS && said == "EIO" && time.Since(began) < 30*time.Second { // until the dead one's lease ends
					said = p.do(step)
				}
				require.Empty(t, said, step)
			}
		}
		t.Logf("the other host has worked after %v", time.Since(began))
		require.Less(t, time.Since(began), 30*time.Second)
		for i, w := range []*writers{w, rules} {
			w.requireKept(t, []place{b, ruled}[i], 2)
		}

		restart()
		one.Start()
		w.end() // NFS keeps a process of a dead view until its link is there
		rules.end()
		a := newPlace(t, one, one.View("w"))
		require.Equal(t, "mine", a.do("read client/0"))
		require.Equal(t, "ENOENT", a.do("size client/1"))
		require.Equal(t, "text", a.do("read d/g"))
		require.Empty(t, a.do("write f again"))
		require.Equal(t, "again", b.do("read f"))
	})
}

// TestElsewhereSlow: a network that delays and loses packets makes nothing wrong.
func TestElsewhereSlow(t *testing.T) {
	need.Once(t)
	for _, kind := range harness.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it mostly waits
			closeToOpen(t, harness.NewSlowVolumeOf(t, kind), 2)
		})
	}
}
