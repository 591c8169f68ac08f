package history

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHeldBranchRemoved: a branch is removed right after a request, and after its daemon was killed. Nothing of it is left.
func TestHeldBranchRemoved(t *testing.T) {
	for _, killed := range []bool{false, true} {
		h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
		harness.Plant(t, h.Scope("a"), "f=1", "d/g=1")
		k := started(h)
		k.Must("branch", "a", "b")
		k.Must("up", "a-b")
		k.run("a-b", "echo 2 >f; rm -r d")
		k.Must("down", "a-b")
		if killed {
			k.Must("up", "a-b")
			k.Kill()
		} else {
			require.Len(t, k.held("a-b"), 3)
		}
		assert.Equal(t, "a-b, branch remove: 3 changes dropped\n", k.Must("branch", "remove", "a-b"))
		assert.NoDirExists(t, k.Base+"/history/a-b")
		assert.Equal(t, "1", read(t, h.Scope("a")+"/d/g"))
		if killed {
			k.Start()
		}
		k.Stop()
	}
}

func init() { harness.Roles["deepen"] = deepen }

// deepen makes directories in one another until it cannot, and prints why.
func deepen([]string) error {
	at, err := unix.Open(".", unix.O_PATH, 0)
	for name := strings.Repeat("d", 200); err == nil; {
		if err = unix.Mkdirat(at, name, 0o755); err == nil {
			var next int
			next, err = unix.Openat(at, name, unix.O_PATH, 0)
			unix.Close(at)
			at = next
		}
	}
	fmt.Println(harness.ErrnoOf(err))
	return nil
}

// TestHeldPathBound: a path of held changes is bounded, so that diff can list it.
func TestHeldPathBound(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}", "b": "view: {paths: {'d*': hold}}"})
	k := started(h)
	for _, agent := range []string{"a", "b"} {
		out, err := h.InSandbox(agent, "deepen").Output()
		require.NoError(t, err)
		assert.Equal(t, "ENAMETOOLONG\n", string(out))
		assert.NotEmpty(t, k.Must("diff", agent))
	}
}

// TestHeldForgedTaken: what the agent's user writes into the branch's files cannot end root's daemon.
func TestHeldForgedTaken(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}", "b": ""})
	k := started(h)
	k.run("a", "echo 1 >f")
	k.Must("down", "a")
	taken := k.Base + "/history/a/taken"
	require.NoError(t, os.WriteFile(taken, nil, 0o600))
	require.NoError(t, os.Truncate(taken, 1<<40))
	_, _ = k.client.HistoryOf("a").Diff(t.Context(), nil, false)
	_, err := k.client.Agents(t.Context())
	assert.NoError(t, err, "the daemon has ended")
	assert.Equal(t, "1\n", k.run("b", "echo 1 >g; cat g"))
}

// TestHeldForgedBases: what the agent's user puts in the place of the journal of bases ends no daemon, and root's daemon writes
// to no file of others by it.
func TestHeldForgedBases(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}", "b": ""})
	k := started(h)
	k.run("a", "echo 1 >f")
	k.Must("down", "a")
	bases, secret := k.Base+"/history/a/bases", k.Base+"/secret"
	harness.Plant(t, k.Base, "secret=secret")
	for name, c := range map[string]struct {
		forge func() error
		works bool
	}{
		"FIFO":      {forge: func() error { return unix.Mkfifo(bases, 0o666) }},
		"link":      {forge: func() error { return os.Symlink(secret, bases) }},
		"hard link": {forge: func() error { return os.Link(secret, bases) }},
		"directory": {forge: func() error { return os.Mkdir(bases, 0o777) }},
		"garbage":   {forge: func() error { return os.WriteFile(bases, []byte(strings.Repeat("SFB1", 1000)), 0o600) }, works: true},
		"huge": {forge: func() error {
			return errors.Join(os.WriteFile(bases, []byte("SFB1"), 0o600), os.Truncate(bases, 1<<40))
		}, works: true},
	} {
		k.Eventually("the process of the last answer ends", func() bool { return len(k.answering()) <= 1 })
		require.NoError(t, os.RemoveAll(bases))
		require.NoError(t, c.forge(), name)
		_, err := k.client.HistoryOf("a").Diff(t.Context(), nil, false)
		assert.Equal(t, c.works, err == nil, "%s: %v", name, err)
		assert.Equal(t, "1\n", k.run("b", "echo 1 >g; cat g"), name)
	}
	assert.Equal(t, "secret", read(t, secret))
	require.NoError(t, os.Remove(bases))
	assert.Equal(t, "1\n", k.run("a", "cat f"))
}

// TestHeldRulesOfNow: a commit takes what the rules of now let the agent change, and no link to what they protect.
func TestHeldRulesOfNow(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
	dir := h.Scope("a")
	harness.Plant(t, dir, "fixed=1", "box/run=1", "Makefile=1")
	k := started(h)
	k.run("a", "echo 2 >fixed; mv box tree; ln -s Makefile link; mkdir d; ln -s ../Makefile d/link; echo 2 >free")
	require.Len(t, k.held("a"), 6)
	k.Put("protect.d/make.yaml", "description: make\npaths: [\"**/Makefile\"]\n")
	k.Define("a", "view: {changes: held, paths: {fixed: read, tree/run: hide}}\nprotect: [make]")
	k.Must("reload")
	r := k.commit("a", api.CommitOptions{Theirs: true})
	assert.Equal(t, "1", read(t, dir+"/fixed"))
	assert.Equal(t, "1", read(t, dir+"/box/run"))
	assert.NoFileExists(t, dir+"/tree/run")
	for _, link := range []string{"/link", "/d/link"} {
		_, err := os.Lstat(dir + link)
		assert.ErrorIs(t, err, os.ErrNotExist)
	}
	assert.Equal(t, "2\n", read(t, dir+"/free"))
	assert.Len(t, r.Conflicts, 4)
}
