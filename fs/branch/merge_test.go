package branch

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/fs/plan"
)

// replace gives a path another object with a content, as editors do.
func (f *fork) replace(dir, name, text string) {
	f.Helper()
	f.make(dir, name+"~="+text)
	f.rename(dir, name+"~", name)
}

func (f *fork) read(name string) string {
	f.Helper()
	text, err := os.ReadFile(name)
	require.NoError(f, err)
	return string(text)
}

// merges lists entries with a conflict: the path, and what a merge does.
func (f *fork) merges() (list []string) {
	f.Helper()
	s, err := f.Diff(f.Context(), nil, false)
	require.NoError(f, err)
	for _, e := range s.Entries {
		if e.Conflict != "" {
			list = append(list, e.Path+": "+e.Merge)
		}
	}
	return list
}

func TestMerge3(t *testing.T) {
	long := strings.Repeat("x\n", 40)
	for name, c := range map[string]struct {
		base, ours, theirs string
		want               string
		conflict           bool
	}{
		"nothing":    {base: "a\n", ours: "a\n", theirs: "a\n", want: "a\n"},
		"ours":       {base: "a\nb\n", ours: "a\nc\n", theirs: "a\nb\n", want: "a\nc\n"},
		"both alike": {base: "a\nb\n", ours: "a\nc\n", theirs: "a\nc\n", want: "a\nc\n"},
		"two places": {base: "1\n2\n3\n4\n", ours: "one\n2\n3\n4\n", theirs: "1\n2\n3\nfour\n", want: "one\n2\n3\nfour\n"},
		"far apart": {base: "1\n" + long + "2\n", ours: "one\n" + long + "2\n", theirs: "1\n" + long + "two\n",
			want: "one\n" + long + "two\n"},
		"additions and removals": {base: "1\n2\n3\n4\n5\n", ours: "0\n1\n2\n3\n4\n5\n", theirs: "1\n2\n4\n5\n6\n", want: "0\n1\n2\n4\n5\n6\n"},
		"same line":              {base: "a\nb\n", ours: "a\nc\n", theirs: "a\nd\n", conflict: true},
		"adjacent lines":         {base: "1\n2\n3\n", ours: "one\n2\n3\n", theirs: "1\ntwo\n3\n", conflict: true},
		"one removes":            {base: "1\n2\n3\n", ours: "1\n3\n", theirs: "1\ntwo\n3\n", conflict: true},
		"additions at one place": {base: "1\n2\n", ours: "1\na\n2\n", theirs: "1\nb\n2\n", conflict: true},
		"the same addition":      {base: "1\n2\n", ours: "1\na\n2\n", theirs: "1\na\n2\n", want: "1\na\n2\n"},
		"CRLF": {base: "1\r\n2\r\n3\r\n", ours: "one\r\n2\r\n3\r\n", theirs: "1\r\n2\r\nthree\r\n",
			want: "one\r\n2\r\nthree\r\n"},
		"ends of lines":          {base: "1\n2\n3\n", ours: "1\r\n2\r\n3\r\n", theirs: "1\n2\nthree\n", conflict: true},
		"no end of line":         {base: "1\n2\n3", ours: "one\n2\n3", theirs: "1\n2\nthree", want: "one\n2\nthree"},
		"an end of line added":   {base: "1\n2\n3", ours: "one\n2\n3", theirs: "1\n2\n3\n", want: "one\n2\n3\n"},
		"an end of line removed": {base: "1\n2\n3\n", ours: "one\n2\n3\n", theirs: "1\n2\n3", want: "one\n2\n3"},
		"both append":            {base: "1\n2\n", ours: "1\n2\n3\n", theirs: "1\n2\n4\n", conflict: true},
		"empty before":           {base: "", ours: "1\n", theirs: "2\n", conflict: true},
		"empty, one adds":        {base: "", ours: "1\n", theirs: "", want: "1\n"},
		"all removed":            {base: "1\n2\n", ours: "", theirs: "1\n2\n", want: ""},
		"like a diff": {base: "--- a\n+++ b\n@@ -1,2 +1 @@\n-x\n", ours: "+--- a\n+++ b\n@@ -1,2 +1 @@\n-x\n",
			theirs: "--- a\n+++ b\n@@ -1,2 +1 @@\n\\ No newline\n", want: "+--- a\n+++ b\n@@ -1,2 +1 @@\n\\ No newline\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 { // the sides are alike
				got, ok := merge3([]byte(c.base), []byte(c.ours), []byte(c.theirs))
				require.Equal(t, !c.conflict, ok)
				assert.Equal(t, c.want, string(got))
				c.ours, c.theirs = c.theirs, c.ours
			}
		})
	}
}

// FuzzMerge3: a merge with an unchanged side is the other one, and one with itself is itself.
func FuzzMerge3(f *testing.F) {
	f.Add("1\n2\n3", "1\n\n3\n")
	f.Add("", "\n")
	f.Fuzz(func(t *testing.T, before, after string) {
		for _, sides := range [][2]string{{before, after}, {after, before}, {after, after}} {
			got, ok := merge3([]byte(before), []byte(sides[0]), []byte(sides[1]))
			if !ok || string(got) != after {
				t.Fatalf("%q, %q and %q: %q, %v", before, sides[0], sides[1], got, ok)
			}
		}
	})
}

const text = "1\n2\n3\n4\n5\n"

func TestMerge(t *testing.T) {
	large := strings.Repeat(text, 1<<18)
	f := newFork(t, "clean="+text, "overlap="+text, "mode="+text, "gone="+text, "removed="+text, "renamed="+text, "large="+large,
		"binary=\x00"+text, "unkept="+text, "dir/in="+text, "crlf=1\r\n2\r\n3\r\n", "mine=1")
	agent := func(s string) string { return strings.Replace(s, "1", "one", 1) }
	host := func(s string) string { return s + "host\n" }
	f.make(f.merged, "clean="+agent(text), "overlap="+text+"agent\n", "mode="+agent(text), "gone="+agent(text), "large="+agent(large),
		"binary=\x00"+agent(text), "dir/in="+agent(text), "crlf="+agent("1\r\n2\r\n3\r\n"), "mine=2")
	f.make(f.merged, "unkept="+agent(text))
	f.remove(f.merged, "removed")
	f.replace(f.merged, "renamed", agent(text))
	f.rename(f.merged, "dir", "to")
	for _, name := range []string{"clean", "overlap", "mode", "removed", "large", "binary", "unkept", "dir/in", "crlf"} {
		f.make(f.base, name+"="+host(f.read(f.base+"/"+name)))
	}
	f.replace(f.base, "renamed", host(text))
	require.NoError(t, os.Chmod(f.base+"/mode", 0o755))
	f.remove(f.base, "gone")
	want := []string{"binary: " + whyNoText, "clean: clean", "crlf: clean", "gone: ", "large: " + whyNoText, "mode: " + whyMode,
		"overlap: " + whyOverlap, "removed: ", "renamed: clean", "to: ", "to/in: " + whyNoBase, "unkept: clean"}
	assert.Equal(t, want, f.merges())

	before := tree(t, f.base)
	assert.Len(t, f.commit(Options{}).Conflicts, len(want))
	assert.Equal(t, before, tree(t, f.base), "nothing is merged without the option")
	set, err := f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	r := f.commit(Options{Conflicts: Merge, Hash: set.Hash})
	assert.Equal(t, []string{"changed clean", "changed crlf", "changed mine", "changed renamed", "changed unkept"}, texts(r.Taken))
	for _, e := range r.Taken {
		assert.Equal(t, e.Path != "mine", e.Merge == Merged, e.Path)
	}
	assert.Len(t, r.Conflicts, len(want)-4)
	merged := agent(host(text))
	for _, name := range []string{"clean", "renamed"} {
		assert.Equal(t, merged, f.read(f.base+"/"+name))
		assert.Equal(t, merged, f.read(f.merged+"/"+name), "the branch has it, too")
	}
	assert.Equal(t, "one\r\n2\r\n3\r\nhost\n", f.read(f.base+"/crlf"))
	assert.NotContains(t, f.diff(), "changed clean")
	leftovers, err := filepath.Glob(f.merged + "/.merged*")
	require.NoError(t, err)
	assert.Empty(t, leftovers)

	// The next merge is of what the last one took.
	f.make(f.merged, "clean="+strings.Replace(merged, "3", "three", 1))
	f.make(f.base, "clean=first\n"+merged)
	assert.Contains(t, f.merges(), "clean: clean")
	f.again()
	f.commit(Options{Conflicts: Merge, Paths: []string{"clean"}})
	assert.Equal(t, "first\n"+strings.Replace(merged, "3", "three", 1), f.read(f.base+"/clean"))

	// What the host takes back of it comes not again.
	f.make(f.merged, "clean="+f.read(f.merged+"/clean")+"last\n")
	f.make(f.base, "clean="+text)
	f.commit(Options{Conflicts: Merge, Paths: []string{"clean"}})
	assert.Equal(t, text, f.read(f.base+"/clean"), "overlapping")
}

// TestMergeSeen: what the branch was changed on top of is no conflict, though the host has changed it since the fork.
func TestMergeSeen(t *testing.T) {
	f := newFork(t, "a=1", "gone=1", "moved=1", "back=1", "over=1", "later=1")
	f.make(f.base, "a=host", "gone=host", "moved=host", "back=host", "later=host", "new=host")
	f.replace(f.base, "over", "host")
	f.make(f.merged, "a=agent", "back=agent", "over=agent", "later=agent", "new=agent")
	f.remove(f.merged, "gone")
	f.rename(f.merged, "moved", "to")
	f.make(f.base, "back=other", "later=later")
	f.replace(f.base, "back", "host")
	assert.Equal(t, []string{"changed a", "changed back", "removed gone", "changed later ! " + whyChanged, "changed new", "changed over",
		"moved moved -> to"}, f.diff())
	assert.Empty(t, f.commit(Options{Paths: []string{"[!l]*"}}).Conflicts)
	assert.Equal(t, "agent", f.read(f.base+"/over"))
}

// TestMergeMeanwhile: what a client of the branch writes while its last version is merged stays, and conflicts with the merged one.
func TestMergeMeanwhile(t *testing.T) {
	f := newFork(t, "a="+text)
	f.make(f.merged, "a=one\n2\n3\n4\n5\n")
	f.make(f.base, "a=1\n2\n3\n4\nfive\n")
	r := f.commit(Options{Conflicts: Merge, Progress: func(int, int) { f.make(f.merged, "a=one\n2\nthree\n4\n5\n") }})
	require.Len(t, r.Taken, 1)
	assert.Equal(t, "one\n2\n3\n4\nfive\n", f.read(f.base+"/a"))
	assert.Equal(t, "one\n2\nthree\n4\n5\n", f.read(f.merged+"/a"))
	assert.Equal(t, []string{"a: clean"}, f.merges())
	f.commit(Options{Conflicts: Merge})
	assert.Equal(t, "one\n2\nthree\n4\nfive\n", f.read(f.base+"/a"))
	assert.Empty(t, f.diff())
}

// TestMergeHash: a hash is of what the merge takes, too.
func TestMergeHash(t *testing.T) {
	f := newFork(t, "a="+text)
	f.make(f.merged, "a=one\n2\n3\n4\n5\n")
	f.make(f.base, "a=1\n2\n3\n4\nfive\n")
	set, err := f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	f.make(f.base, "a=1\n2\n3\n4\nFIVE\n") // of the same size
	_, err = f.Commit(t.Context(), Options{Conflicts: Merge, Hash: set.Hash})
	require.ErrorIs(t, err, ErrChanged)
	set, err = f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	f.make(f.merged, "a=ONE\n2\n3\n4\n5\n")
	_, err = f.Commit(t.Context(), Options{Conflicts: Merge, Hash: set.Hash})
	require.ErrorIs(t, err, ErrChanged)
	assert.Equal(t, "1\n2\n3\n4\nFIVE\n", f.read(f.base+"/a"))
}

// TestMergeDiscard: a discarded file shows what the directory has, and merges begin from there.
func TestMergeDiscard(t *testing.T) {
	f := newFork(t, "a="+text)
	f.make(f.merged, "a=one\n2\n3\n4\n5\n")
	f.make(f.base, "a=1\n2\n3\n4\nfive\n")
	_, _, err := f.Discard(t.Context(), []string{"a"}, "")
	require.NoError(t, err)
	f.make(f.merged, "a=one\n2\n3\n4\nfive\n")
	assert.Equal(t, []string{"changed a"}, f.diff(), "the client has seen the host's change")
	f.make(f.merged, "a=one\n2\n3\n4\n5\n")
	assert.Equal(t, []string{"changed a"}, f.diff())
	f.make(f.base, "a=1\n2\nthree\n4\nfive\n")
	f.commit(Options{Conflicts: Merge})
	assert.Equal(t, "one\n2\nthree\n4\n5\n", f.read(f.base+"/a"), "that the client takes it back is its change")
}

// TestMergeTorn: a journal that a crash has torn loses what comes after, and takes new records.
func TestMergeTorn(t *testing.T) {
	f := newFork(t, "a="+text, "b="+text, "c="+text)
	f.make(f.merged, "a=one\n2\n3\n4\n5\n", "b=one\n2\n3\n4\n5\n")
	f.make(f.base, "a="+text+"host\n", "b="+text+"host\n")
	journal := f.state + "/" + basesName
	whole := f.read(journal)
	require.NoError(t, os.WriteFile(journal, []byte(whole[:len(whole)-3]), 0o600))
	assert.Equal(t, []string{"a: clean", "b: " + whyNoBase}, f.merges())
	f.again()
	f.make(f.merged, "c=one\n2\n3\n4\n5\n")
	f.make(f.base, "c="+text+"host\n")
	assert.Equal(t, []string{"a: clean", "b: " + whyNoBase, "c: clean"}, f.merges())
	broken := []byte(f.read(journal))
	at := strings.Index(string(broken), text)
	broken[at] = 'X'
	require.NoError(t, os.WriteFile(journal, broken, 0o600))
	assert.Equal(t, []string{"a: " + whyNoBase, "b: " + whyNoBase, "c: clean"}, f.merges())
	require.NoError(t, os.WriteFile(journal, append([]byte("garbage"), broken...), 0o600))
	f.commit(Options{Conflicts: Theirs})
	assert.Empty(t, f.diff())
	assert.NotContains(t, f.read(journal), "garbage", "an old record must not follow a commit")
}

// TestMergeFull: beyond the bounds nothing is kept, not even what was; and removals leave room for others.
func TestMergeFull(t *testing.T) {
	f := newFork(t, "a="+text)
	b := f.newBases()
	b.records, b.removed = maxBases/2, maxBases/2
	assert.False(t, b.room(true))
	assert.True(t, b.room(false))
	f.tell("full")
	f.make(f.base, "a="+text+"seen\n")
	f.make(f.merged, "a=one\n2\n3\n4\n5\n")
	f.make(f.base, "a="+text+"host\n")
	assert.Equal(t, []string{"a: " + whyNoBase}, f.merges())
}

// TestMergeKill kills a process that commits merged files before each step, and after the last: Resume makes the directory and
// the branch the same.
func TestMergeKill(t *testing.T) {
	if os.Getenv("BRANCH_OF") != "" {
		b := childBranch(t)
		r, err := b.Commit(context.Background(), Options{Conflicts: Merge, Progress: killAt})
		require.NoError(t, err)
		require.Empty(t, texts(r.Conflicts))
		return
	}
	for step := range 5 {
		f := newFork(t, "a="+text, "b="+text, "c=1")
		chown(t, f.base)
		chown(t, f.state) // before the host's changes: its change time is the fork
		f.make(f.merged, "a=one\n2\n3\n4\n5\n", "b=one\n2\n3\n4\n5\n", "c=2")
		f.make(f.base, "a="+text+"host\n", "b="+text+"host\n")
		chown(t, f.merged)
		f.Close()
		child := exec.Command(os.Args[0], "-test.run=^TestMergeKill$")
		child.Env = append(os.Environ(), "BRANCH_OF="+filepath.Dir(f.base), fmt.Sprint("BRANCH_STEP=", step))
		out, err := child.CombinedOutput()
		if step < 4 {
			require.ErrorContains(t, err, "killed", "%s", out)
		} else {
			require.NoError(t, err, "%s", out)
		}
		f.open()
		r, err := f.Resume()
		require.NoError(t, err)
		require.Equal(t, step < 4, r != nil)
		assert.Empty(t, f.diff())
		assert.Equal(t, tree(t, f.base), tree(t, f.merged))
		assert.Equal(t, "one\n2\n3\n4\n5\nhost\n", f.read(f.base+"/a"))
	}
}

// killAt kills the process before a step.
func killAt(done, _ int) {
	if os.Getenv("BRANCH_STEP") == fmt.Sprint(done) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// TestMergeResumed resumes a commit that was killed after the last step. What a client has written to its version meanwhile is not lost.
func TestMergeResumed(t *testing.T) {
	for _, written := range []bool{false, true} {
		f := newFork(t, "a="+text)
		f.make(f.merged, "a=one\n2\n3\n4\n5\n")
		f.make(f.base, "a="+text+"host\n")
		x := f.planned(Merge)
		require.NoError(t, x.j.Run(t.Context(), plan.Runner{Tree: x.Base, Stage: x.State}))
		require.Empty(t, x.j.Failed)
		x.j.Close()
		if written {
			f.make(f.merged, "a=client")
		}
		f.Close()
		f.open()
		r, err := f.Resume()
		require.NoError(t, err)
		assert.Empty(t, r.Conflicts)
		assert.Equal(t, "one\n2\n3\n4\n5\nhost\n", f.read(f.base+"/a"))
		if written {
			assert.Equal(t, "client", f.read(f.merged+"/a"))
			assert.Len(t, f.diff(), 1)
			continue
		}
		assert.Empty(t, f.diff())
		assert.Equal(t, tree(t, f.base), tree(t, f.merged))
		f.make(f.merged, "a=next")
		assert.Equal(t, []string{"changed a"}, f.diff(), "the directory has what the branch had")
	}
}

// planned returns the execution of a commit that has written its intent.
func (f *fork) planned(how Conflicts) *execution {
	f.Helper()
	require.NoError(f, f.layers.Load())
	d, err := f.differ(f.Context())
	require.NoError(f, err)
	left := make([]bool, len(d.entries))
	for i := range d.entries {
		if how == Merge && d.entries[i].Merge == MergeClean {
			d.entries[i].Merge = Merged
		}
	}
	staged, err := f.stageAll(f.Context(), d.entries, left, false)
	require.NoError(f, err)
	in := d.intent(d.entries, left, staged)
	x, err := f.intend(f.Context(), in, d.entries)
	require.NoError(f, err)
	return x
}

// TestBases: nothing is kept of what the branch has changed already, nor of what moves.
func TestBases(t *testing.T) {
	f := newFork(t, "a=1", "d/x=1", "l->a")
	f.make(f.merged, "own=1", "a=2", "d/x=2")
	f.remove(f.merged, "l", "own")
	f.make(f.merged, "own=1", "a=2")
	all, whole, err := f.origins()
	require.NoError(t, err)
	assert.True(t, whole)
	assert.ElementsMatch(t, []string{"a", "d/x", "l"}, slices.Collect(maps.Keys(all)))
	size := func() int { return len(f.read(f.state + "/" + basesName)) }
	before := size()
	b := f.newBases()
	b.Moved("x", "y")
	assert.Equal(t, before, size(), "no record is below")
	f.rename(f.merged, "d", "e")
	all, _, err = f.origins()
	require.NoError(t, err)
	assert.Len(t, all, 2)
	require.NoError(t, f.noteOrigins(nil, [][]byte{[]byte("l"), []byte("a")}))
	b.Moved("l")
	assert.Empty(t, b.known)
}

// TestBasesForged: a journal with very many records, which only another process can have made, is emptied.
func TestBasesForged(t *testing.T) {
	f := newFork(t, "a=1")
	require.NoError(t, appendOrigin(f.newBases().file, goneOrigin("a"), nil))
	record := f.read(f.state + "/" + basesName)
	for times, want := range map[int]bool{maxBases: true, maxHeaders/len(record) + 1: false} {
		require.NoError(t, os.WriteFile(f.state+"/"+basesName, []byte(strings.Repeat(record, times)), 0o600))
		_, err := NewBases(f.layers)
		require.NoError(t, err)
		assert.Equal(t, want, f.read(f.state+"/"+basesName) != "", times)
	}
}

// TestBasesMeanwhile: the host changes a file after a client's request has read it, and before the layer hides it: no record has the old
// content for the new version.
func TestBasesMeanwhile(t *testing.T) {
	f := newFork(t, "file=1\n")
	st, err := f.Base.Stat("file")
	require.NoError(t, err)
	note := f.newBases().Read("file", "file", &st, false)
	f.make(f.base, "file=the host's\n")
	st, err = f.Base.Stat("file")
	require.NoError(t, err)
	note("file", &st)
	all, whole, err := f.origins()
	require.NoError(t, err)
	assert.True(t, whole)
	assert.Empty(t, all)
}
