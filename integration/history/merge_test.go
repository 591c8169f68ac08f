package history

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/scope"
)

// merges returns what a merge would do with the conflicts of an agent, by path.
func (k *keeper) merges(id scope.ID) map[string]string {
	k.T.Helper()
	d, err := k.client.HistoryOf(id).Diff(k.T.Context(), nil, false)
	require.NoError(k.T, err)
	all := map[string]string{}
	for _, c := range d.List {
		if c.Conflict != "" {
			all[c.Path] = c.Merge
		}
	}
	return all
}

// TestHeldMerge: whichever way a program changes a text, a commit merges it with what the host changed elsewhere in it, and the
// agent sees the result.
func TestHeldMerge(t *testing.T) {
	ways := map[string]string{
		"append":   `echo agent >>f`,
		"rewrite":  `cat f >/tmp/x; echo agent >>/tmp/x; cat /tmp/x >f`,
		"replace":  `cp f f.new; echo agent >>f.new; mv f.new f`,
		"sed":      `sed -i '$a agent' f`,
		"away":     `mv f f~; cp f~ f; echo agent >>f; rm f~`,
		"again":    `cp f /tmp/x; rm f; cp /tmp/x f; echo agent >>f`,
		"mode":     `chmod 600 f; chmod 644 f; echo agent >>f`,
		"link":     `ln f g; echo agent >>f; rm g`,
		"truncate": `cp f /tmp/x; truncate -s 0 f; cat /tmp/x >>f; echo agent >>f`,
		"python":   `python3 -c 'f = open("f", "r+"); t = f.read(); f.write("agent\n")'`,
	}
	defs := map[string]string{}
	for name := range ways {
		defs[name] = "view: {changes: held}"
	}
	h := harness.LayOut(t, defs)
	const text = "1\n2\n3\n4\n5\n6\n"
	for name := range ways {
		harness.Plant(t, h.Scope(name), "f="+text)
	}
	k := started(h)
	for name, command := range ways {
		t.Run(name, func(t *testing.T) {
			id, dir := scope.ID(name), h.Scope(name)
			k.run(id, command)
			require.Equal(t, []string{"changed f"}, k.held(id))
			harness.Plant(t, dir, "f=host\n"+text)
			assert.Equal(t, map[string]string{"f": api.MergeClean}, k.merges(id))
			assert.Empty(t, k.commit(id, api.CommitOptions{}).Taken)
			r := k.commit(id, api.CommitOptions{Merge: true})
			assert.Empty(t, r.Conflicts)
			require.Len(t, r.Taken, 1)
			assert.Equal(t, api.Merged, r.Taken[0].Merge)
			assert.Equal(t, "host\n"+text+"agent\n", read(t, dir+"/f"))
			k.Eventually("the agent sees the merge", func() bool { return k.run(id, "cat f") == "host\n"+text+"agent\n" })
			assert.Empty(t, k.held(id))

			// Again, without a view in between.
			k.run(id, "sed -i s/3/three/ f")
			k.Must("down", name)
			harness.Plant(t, dir, "f="+text+"agent\n")
			assert.Equal(t, map[string]string{"f": api.MergeClean}, k.merges(id))
			assert.Empty(t, k.commit(id, api.CommitOptions{Merge: true}).Conflicts)
			assert.Equal(t, strings.Replace(text, "3", "three", 1)+"agent\n", read(t, dir+"/f"))
		})
	}
}

// TestHeldMergeHost: versions that the host makes while the branch is mounted. What the agent changed is no conflict, and what
// it changed from an older one is merged.
func TestHeldMergeHost(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "view: {changes: held}"})
	dir := h.Scope("a")
	const text = "1\n2\n3\n4\n5\n6\n"
	harness.Plant(t, dir, "seen="+text, "old="+text, "dir/f="+text, "overlap="+text)
	git := func(words ...string) {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*"}, words...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	git("init", "-q")
	git("add", ".")
	git("commit", "-qm", "first")
	k := started(h)
	k.run("a", "ls -R; cat dir/f")
	harness.Plant(t, dir, "seen=host\n"+text)
	k.Eventually("the agent sees the host's change", func() bool { return strings.HasPrefix(k.run("a", "cat seen"), "host") })
	k.run("a", "echo agent >>seen; sed -i 's/^6/six/' old overlap; mv dir to; sed -i s/6/six/ to/f")
	assert.Equal(t, []string{"changed old", "changed overlap", "changed seen", "moved to", "changed to/f"}, k.held("a"))

	// By rename, as git does.
	for _, name := range []string{"old", "overlap"} {
		harness.Plant(t, dir, name+".new=one"+text[1:])
		require.NoError(t, os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)))
	}
	harness.Plant(t, dir, "overlap=1\n2\n3\n4\n5\nSIX\n", "dir/f=one"+text[1:])
	want := map[string]string{"old": api.MergeClean, "overlap": "both changed the same lines", "to": "", "to/f": api.MergeClean}
	assert.Equal(t, want, k.merges("a"))
	r := k.commit("a", api.CommitOptions{Merge: true})
	assert.Len(t, r.Taken, 2)
	assert.Len(t, r.Conflicts, 3)
	assert.Equal(t, "host\n"+text+"agent\n", read(t, dir+"/seen"))
	assert.Equal(t, "one\n2\n3\n4\n5\nsix\n", read(t, dir+"/old"))
	assert.Equal(t, "1\n2\n3\n4\n5\nSIX\n", read(t, dir+"/overlap"))
	assert.DirExists(t, dir+"/dir")
	events := k.Events("a")
	assert.Contains(t, events[len(events)-1].Detail, ", 1 merged")

	// The files of git are judged as a whole.
	k.run("a", "git config alias.x status")
	harness.Plant(t, dir, ".git/config="+read(t, dir+"/.git/config")+"[user]\n\tname = host\n")
	assert.NotContains(t, k.merges("a"), api.MergeClean)
	k.Must("down", "a")
	assert.NoFileExists(t, dir+"/bases")
	bases, err := filepath.Glob(h.Base + "/history/*/bases")
	require.NoError(t, err)
	assert.Len(t, bases, 1)
}
