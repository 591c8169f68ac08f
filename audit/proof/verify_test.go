package proof

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/segment"
	"github.com/scopefs/scopefs/audit/tree"
)

func open(t *testing.T, dir string, opts audit.Options) *audit.Log {
	t.Helper()
	l, err := audit.Open(dir, opts)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l
}

func add(t *testing.T, l *audit.Log, n int) {
	t.Helper()
	for range n {
		_, err := l.Append(t.Context(), audit.Event{Event: audit.KindFile, Agent: "a", Op: "open", Path: "some/path"})
		require.NoError(t, err)
	}
}

// sealedLog makes a log of several segments, the first ones packed, and returns the head that was signed in the middle.
func sealedLog(t *testing.T) (dir string, middle []byte) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "audit")
	for part := range 2 {
		l := open(t, dir, audit.Options{SegmentBytes: 64 << 10, Sync: 5 * time.Millisecond})
		for i := range 1500 {
			e := audit.Event{Event: audit.KindFile, Agent: fmt.Sprint("a", i%3), Session: fmt.Sprint("s", i%500), Op: "open", Path: fmt.Sprint("path/", part, "/", i), Verdict: audit.Allow}
			if i%100 == 7 {
				e.Verdict, e.Rule = audit.Deny, "r"
			}
			if i%50 == 9 {
				e = audit.Event{Event: audit.KindCall, Call: fmt.Sprint(part, "-", i), Op: "read_file", Outcome: audit.OutcomeBegin}
			}
			if i%50 == 10 {
				e = audit.Event{Event: audit.KindCall, Call: fmt.Sprint(part, "-", i-1), Op: "read_file", Outcome: "ok"}
			}
			_, err := l.Append(t.Context(), e)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { // all but the last segment are packed
			plain, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			return len(plain) == 1
		}, 30*time.Second, 5*time.Millisecond)
		require.NoError(t, l.Close())
		if part == 0 {
			middle = readFile(t, dir, segment.Head)
		}
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "reserve"))) // copies are smaller
	return dir, middle
}

func readFile(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return b
}

func TestVerify(t *testing.T) {
	dir, middle := sealedLog(t)
	v, err := Verify(t.Context(), dir, VerifyOptions{})
	require.NoError(t, err)
	assert.Equal(t, int64(3000), v.Head.Size)
	assert.Equal(t, tree.Counts{Denied: 30, Begun: 60, Ended: 60}, v.Head.Counts)
	assert.Zero(t, v.After)
	assert.Zero(t, v.Matched)
	v, err = Verify(t.Context(), dir, VerifyOptions{Heads: map[string]io.Reader{"middle": bytes.NewReader(middle)}, Key: string(readFile(t, dir, segment.PublicKey))})
	require.NoError(t, err)
	assert.Equal(t, 1, v.Matched)

	p, err := Prove(t.Context(), dir, ProveOptions{Seq: 700})
	require.NoError(t, err)
	require.Len(t, p.Events, 1)
	assert.Contains(t, p.Events[0].Line, `"seq":700,`)
	p, err = Prove(t.Context(), dir, ProveOptions{Session: "s33"})
	require.NoError(t, err)
	assert.Len(t, p.Events, 6)
	p2, err := Prove(t.Context(), dir, ProveOptions{Session: "s33", Redact: []string{"path", "detail"}})
	require.NoError(t, err)
	_, redacted, err := p2.Events[0].Text()
	require.NoError(t, err)
	assert.Equal(t, []string{"path"}, redacted)
	_, err = Prove(t.Context(), dir, ProveOptions{Seq: 100000})
	require.ErrorIs(t, err, ErrNotProved)

	// A proof that was changed proves nothing.
	text, err := json.Marshal(p)
	require.NoError(t, err)
	for _, change := range [][2]string{{`"index":`, `"index":1`}, {`path/0/`, `path/1/`}, {"lost 0", "lost 1"}, {`s33`, `s34`}} {
		var forged tree.Proof
		require.NoError(t, json.Unmarshal(bytes.Replace(text, []byte(change[0]), []byte(change[1]), 1), &forged), change)
		_, err := forged.Check("")
		require.Error(t, err, change)
	}
	_, other, err := note.GenerateKey(rand.Reader, "scopefs.log/0")
	require.NoError(t, err)
	_, err = p.Check(other)
	require.Error(t, err)
}

// cosigned returns a head with signatures of others, which the log does not know.
func cosigned(t *testing.T, signed []byte, n int) []byte {
	t.Helper()
	for i := range n {
		private, _, err := note.GenerateKey(rand.Reader, fmt.Sprint("other", i))
		require.NoError(t, err)
		signer, err := note.NewSigner(private)
		require.NoError(t, err)
		text, _, _ := bytes.Cut(signed, []byte("\n\n"))
		other, err := note.Sign(&note.Note{Text: string(text) + "\n"}, signer)
		require.NoError(t, err)
		signed = append(bytes.Clone(signed), other[len(text)+2:]...)
	}
	return signed
}

// TestCosigned: a proof is by the head that has the most signatures of others and covers its lines, with those signatures. Verify
// compares heads of this host, and says how far they reach, but counts none of them as kept elsewhere.
func TestCosigned(t *testing.T) {
	dir, middle := sealedLog(t)
	one, two := cosigned(t, middle, 1), cosigned(t, middle, 2)
	newest := cosigned(t, readFile(t, dir, segment.Head), 1)
	foreign, err := note.Sign(&note.Note{Text: strings.Replace(string(newest), "\n\n", "\n", 1)})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		seq   uint64
		heads [][]byte
		want  []byte
	}{
		"the most signatures": {700, [][]byte{one, two, newest}, two},
		"beyond the middle":   {1700, [][]byte{one, two, newest}, newest},
		"none":                {700, nil, readFile(t, dir, segment.Head)},
		"no head of this log": {700, [][]byte{foreign, bytes.Replace(two, []byte("lost 0"), []byte("lost 1"), 1), []byte("x"), nil}, readFile(t, dir, segment.Head)},
	} {
		o, elsewhere := ProveOptions{Seq: c.seq, Beside: map[string]io.Reader{}}, []byte("# kept\n")
		for i, text := range c.heads {
			o.Beside[fmt.Sprint(i)] = bytes.NewReader(text)
			elsewhere = append(append(elsewhere, text...), "\nand\n"...)
		}
		for range 2 {
			p, err := Prove(t.Context(), dir, o)
			require.NoError(t, err, name)
			assert.Equal(t, string(c.want), p.Head, name)
			_, err = p.Check(string(readFile(t, dir, segment.PublicKey)))
			require.NoError(t, err, name)
			if name == "none" || name == "no head of this log" {
				break
			}
			o = ProveOptions{Seq: c.seq, Heads: map[string]io.Reader{"elsewhere": bytes.NewReader(elsewhere)}}
		}
	}
	for text, want := range map[string]string{
		"x":             "elsewhere: it has no head of the log",
		string(foreign): "elsewhere: it has no head of the log",
		strings.Replace(string(two), "lost 0", "lost 1", 1): "elsewhere: line 1: a head of this log is not signed",
	} {
		_, err := Prove(t.Context(), dir, ProveOptions{Seq: 700, Heads: map[string]io.Reader{"elsewhere": strings.NewReader(text)}})
		require.ErrorContains(t, err, want)
	}

	var reached []string
	opts := VerifyOptions{
		Beside: map[string]io.Reader{"a": bytes.NewReader(two), "b": bytes.NewReader(newest), "c": strings.NewReader("")},
		Match: func(h tree.Head, signed string, seq uint64) {
			reached = append(reached, fmt.Sprint(h.Size, " ", seq, " ", strings.Count(signed, "\n— ")))
		},
	}
	v, err := Verify(t.Context(), dir, opts)
	require.NoError(t, err)
	assert.Equal(t, []string{"1500 1500 3", "3000 3000 2"}, reached)
	assert.Zero(t, v.Matched)
	signer, err := note.NewSigner(string(readFile(t, dir, "key")))
	require.NoError(t, err)
	anew, err := tree.Head{Size: 1500}.Sign(signer)
	require.NoError(t, err)
	_, err = Verify(t.Context(), dir, VerifyOptions{Beside: map[string]io.Reader{"fleet": bytes.NewReader(anew)}})
	require.ErrorContains(t, err, "broken: fleet: the head of 1500 lines has another root")
	_, err = Prove(t.Context(), dir, ProveOptions{Seq: 700, Beside: map[string]io.Reader{"a": bytes.NewReader(cosigned(t, anew, 1))}})
	require.ErrorContains(t, err, "the proof does not lead to the head", "the log was written anew")
}

// TestVerifyRemoved checks that a log whose first segments the log removed verifies, and proves.
func TestVerifyRemoved(t *testing.T) {
	dir, middle := sealedLog(t)
	first := filepath.Join(dir, "00000001.jsonl.zst")
	info, err := os.Stat(first)
	require.NoError(t, err)
	l := open(t, dir, audit.Options{SegmentBytes: 64 << 10, Sync: 5 * time.Millisecond, KeepBytes: 4 * info.Size()})
	require.Eventually(t, func() bool { _, err := os.Stat(first); return os.IsNotExist(err) }, 30*time.Second, 5*time.Millisecond)
	_, err = l.Append(t.Context(), audit.Event{Event: audit.KindFile, Op: "open"})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	v, err := Verify(t.Context(), dir, VerifyOptions{Heads: map[string]io.Reader{"middle": bytes.NewReader(middle)}})
	require.NoError(t, err)
	assert.NotZero(t, v.Removed)
	assert.NotZero(t, v.Removed%tree.BlockLines, "a segment ends inside a block")
	assert.Equal(t, 1, v.Matched+v.Older)
	for seq := v.Removed + 1; seq <= v.Head.Size; seq += 97 {
		_, err := Prove(t.Context(), dir, ProveOptions{Seq: uint64(seq)})
		require.NoError(t, err, seq)
	}
	_, err = os.Stat(filepath.Join(dir, segment.TreeFile(1)))
	assert.ErrorIs(t, err, os.ErrNotExist)

	positions, err := filepath.Glob(filepath.Join(dir, "*"+segment.TreeSuffix))
	require.NoError(t, err)
	start, err := tree.DecodePosition(readFile(t, dir, filepath.Base(positions[0]))[:tree.PositionSize])
	require.NoError(t, err)
	signer, err := note.NewSigner(string(readFile(t, dir, "key")))
	require.NoError(t, err)
	border, err := tree.Head{Size: v.Removed, Root: start.Tree.Root(), Counts: start.Counts}.Sign(signer)
	require.NoError(t, err)
	older, err := tree.Head{Size: 7}.Sign(signer)
	require.NoError(t, err)
	for name, head := range map[string][]byte{"of removed lines": older, "of all removed lines": border} {
		v, err := Verify(t.Context(), dir, VerifyOptions{
			Heads:  map[string]io.Reader{"heads": bytes.NewReader(head)},
			Beside: map[string]io.Reader{"beside": bytes.NewReader(head)},
			Match:  func(h tree.Head, _ string, _ uint64) { t.Errorf("%s: nothing that is left was compared with it", name) },
		})
		require.NoError(t, err, name)
		assert.Equal(t, []int{0, 1}, []int{v.Matched, v.Older}, name)
	}
}

// forge removes the tree and signs the present lines with the log's key, as an attacker with the key does.
func forge(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{segment.Tree, segment.Head} {
		require.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"+segment.TreeSuffix))
	require.NoError(t, err)
	for _, f := range files {
		require.NoError(t, os.Remove(f))
	}
	l := open(t, dir, audit.Options{})
	_, err = l.Append(t.Context(), audit.Event{Event: audit.KindDaemon})
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// TestManipulations changes copies of a log in ways that somebody has who owns the host. Verify must notice each.
func TestManipulations(t *testing.T) {
	source, middle := sealedLog(t)
	last := readFile(t, source, segment.Head)
	packs, _ := filepath.Glob(filepath.Join(source, "*.zst"))
	require.Greater(t, len(packs), 4)
	plain := fmt.Sprintf("%08d.jsonl", len(packs)+1)
	// lines changes the lines of a segment, packed or not.
	lines := func(name string, do func(lines [][]byte) [][]byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			var text []byte
			require.NoError(t, linesFromFile(dir, name, func(line []byte) { text = append(text, line...) }))
			all := bytes.SplitAfter(text, []byte("\n"))
			text = bytes.Join(do(all[:len(all)-1]), nil)
			plain := filepath.Join(dir, strings.TrimSuffix(name, segment.PackedSuffix))
			require.NoError(t, os.RemoveAll(filepath.Join(dir, name)))
			require.NoError(t, os.WriteFile(plain, text, 0o400))
		}
	}
	flip := func(name string, at int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			b := readFile(t, dir, name)
			if at < 0 {
				at += len(b)
			}
			b[at] ^= 1
			require.NoError(t, os.Chmod(filepath.Join(dir, name), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o600))
		}
	}
	gone := func(names ...string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			}
		}
	}
	replaced := func(old, new string) func([][]byte) [][]byte {
		return func(all [][]byte) [][]byte {
			for i := range all {
				if i > 20 && bytes.Contains(all[i], []byte(old)) {
					all[i] = bytes.Replace(all[i], []byte(old), []byte(new), 1)
					break
				}
			}
			return all
		}
	}
	drop := func(i int) func([][]byte) [][]byte {
		return func(all [][]byte) [][]byte { return append(all[:i:i], all[i+1:]...) }
	}
	swap := func(all [][]byte) [][]byte { all[40], all[41] = all[41], all[40]; return all }
	twice := func(all [][]byte) [][]byte { return append(all[:41:41], all[40:]...) }
	insert := func(all [][]byte) [][]byte {
		return append(append(all[:41:41], bytes.Replace(all[40], []byte("path/"), []byte("htap/"), 1)), all[41:]...)
	}
	cut := func(n int) func([][]byte) [][]byte {
		return func(all [][]byte) [][]byte { return all[:len(all)-n] }
	}
	renumber := func(all [][]byte) [][]byte { // drop a line, and number the others anew
		all = append(all[:40:40], all[41:]...)
		seq, _, _ := segment.ParseHead(all[39])
		for i := 40; i < len(all); i++ {
			seq++
			_, rest, _ := bytes.Cut(all[i], []byte(","))
			all[i] = append(fmt.Appendf(nil, `{"seq":%d,`, seq), rest...)
		}
		return all
	}
	committed := func(all [][]byte) [][]byte { // as a proof has it, to redact the log itself
		text, _ := new(tree.Leaf).Commit(segment.Unended(all[40]))
		all[40] = []byte(text)
		return all
	}
	one, two := "00000001.jsonl.zst", "00000002.jsonl.zst"
	heads := func(dir string) VerifyOptions {
		return VerifyOptions{Heads: map[string]io.Reader{"middle": bytes.NewReader(middle)}}
	}
	for name, test := range map[string]struct {
		do   func(t *testing.T, dir string)
		key  bool   // whoever does it has the key of the log
		want string // in the error
	}{
		"a bit of a packed segment":                 {do: flip(one, 1000)},
		"the first byte of a packed segment":        {do: flip(two, 0)},
		"a path in a packed segment":                {do: lines(two, replaced("path/0", "path/1")), want: two[:14] + ", line 22"},
		"a path in the last segment":                {do: lines(plain, replaced("path/1", "path/0")), want: plain + ", line 22"},
		"a verdict becomes allow":                   {do: lines(two, replaced(`"verdict":"deny"`, `"verdict":"allow"`)), want: two[:14]},
		"a time":                                    {do: lines(two, replaced(`"time":"20`, `"time":"19`)), want: "line 22"},
		"a salt":                                    {do: lines(two, replaced(`"salt":"`, `"salt":"A`)), want: "line 22"},
		"a line becomes what is hashed of it":       {do: lines(two, committed), want: "line 41"},
		"a space in a line":                         {do: lines(two, replaced(`,"event"`, `, "event"`)), want: "line 22"},
		"a carriage return":                         {do: lines(two, replaced("}\n", "}\r\n")), want: "line 22"},
		"a line dropped":                            {do: lines(two, drop(40)), want: "line 41"},
		"the first line dropped":                    {do: lines(one, drop(0)), want: "line 1"},
		"the first line of a later segment":         {do: lines(two, drop(0)), want: "line 1"},
		"a line dropped, the others renumbered":     {do: lines(two, renumber), want: "line 41"},
		"two lines swapped":                         {do: lines(two, swap), want: "line 41"},
		"a line twice":                              {do: lines(two, twice), want: "line 42"},
		"a line inserted":                           {do: lines(two, insert), want: "line 42"},
		"the last line of a packed segment":         {do: lines(one, cut(1)), want: "00000002.jsonl"},
		"the last line":                             {do: lines(plain, cut(1)), want: "1 lines are missing at the end"},
		"the last ten lines":                        {do: lines(plain, cut(10)), want: "10 lines are missing"},
		"half of the last line":                     {do: func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, plain), 50) }},
		"the last segment":                          {do: gone(plain), want: "missing at the end"},
		"the last segment and its file of the tree": {do: gone(plain, segment.TreeFile(len(packs)+1)), want: "missing at the end"},
		"a segment in the middle":                   {do: gone("00000003.jsonl.zst"), want: "00000003.jsonl, is missing"},
		"the first segment":                         {do: gone(one), want: "has not removed"},
		"two segments exchanged": {do: func(t *testing.T, dir string) {
			a, b := filepath.Join(dir, two), filepath.Join(dir, "00000003.jsonl.zst")
			require.NoError(t, os.Rename(a, a+"x"))
			require.NoError(t, os.Rename(b, a))
			require.NoError(t, os.Rename(a+"x", b))
		}},
		"a segment copied over another": {do: func(t *testing.T, dir string) {
			b := readFile(t, dir, two)
			require.NoError(t, os.Remove(filepath.Join(dir, "00000003.jsonl.zst")))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "00000003.jsonl.zst"), b, 0o400))
		}},
		"a segment beside its packed one": {do: func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "00000099.jsonl"), readFile(t, dir, plain), 0o400))
		}},
		"a stored hash":              {do: flip(segment.Tree, 40), want: "files of the tree"},
		"the stored hashes cut":      {do: func(t *testing.T, dir string) { truncate(t, filepath.Join(dir, segment.Tree), 32) }},
		"the stored hashes removed":  {do: gone(segment.Tree)},
		"a hint":                     {do: flip(segment.TreeFile(2), -1), want: "files of the tree"},
		"where a segment begins":     {do: flip(segment.TreeFile(2), 100)},
		"a file of the tree removed": {do: gone(segment.TreeFile(3))},
		"a file of the tree, of another segment": {do: func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.TreeFile(3)), readFile(t, dir, segment.TreeFile(2)), 0o600))
		}},
		"the root in the head":   {do: flip(segment.Head, 45)},
		"the counts in the head": {do: func(t *testing.T, dir string) { edit(t, dir, segment.Head, "denied 30", "denied 29") }},
		"the size in the head":   {do: func(t *testing.T, dir string) { edit(t, dir, segment.Head, "3000", "2999") }},
		"an older head in its place": {do: func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Head), middle, 0o644))
		}, want: "ok"},
		"the head removed":       {do: gone(segment.Head)},
		"the public key removed": {do: gone(segment.PublicKey)},
		"another public key": {do: func(t *testing.T, dir string) {
			_, public, err := note.GenerateKey(rand.Reader, "scopefs.log/0")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, segment.PublicKey), []byte(public), 0o644))
		}},
		"everything signed anew, by another key": {do: func(t *testing.T, dir string) {
			lines(two, renumber)(t, dir)
			gone("key", segment.PublicKey)(t, dir)
			forge(t, dir)
		}, want: "middle"},
		"a line changed, and all signed anew":  {key: true, do: func(t *testing.T, dir string) { lines(two, replaced("path/0", "path/1"))(t, dir); forge(t, dir) }, want: "middle"},
		"a line dropped, and all signed anew":  {key: true, do: func(t *testing.T, dir string) { lines(two, renumber)(t, dir); forge(t, dir) }},
		"the end cut, and all signed anew":     {key: true, do: func(t *testing.T, dir string) { gone(plain, "mark")(t, dir); forge(t, dir) }, want: "ok"},
		"all but the last segment signed anew": {key: true, do: func(t *testing.T, dir string) { gone(one, two)(t, dir); forge(t, dir) }, want: "middle"},
		"nothing":                              {do: func(*testing.T, string) {}, want: "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "copy")
			require.NoError(t, os.CopyFS(dir, os.DirFS(source)))
			test.do(t, dir)
			_, err := Verify(t.Context(), dir, heads(dir))
			if test.want == "ok" { // only the head of the end can show it
				require.NoError(t, err)
				if test.key {
					_, err = Verify(t.Context(), dir, VerifyOptions{Heads: map[string]io.Reader{"last": bytes.NewReader(last)}})
					require.Error(t, err)
				}
				return
			}
			require.Error(t, err)
			t.Log(err)
			_, ok := err.(*BrokenError)
			assert.True(t, ok, err)
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func linesFromFile(dir, name string, do func([]byte)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var n int
	if _, err := fmt.Sscanf(name, "%08d", &n); err != nil {
		return err
	}
	return segment.Lines(root, segment.Segment{Number: n, Packed: strings.HasSuffix(name, segment.PackedSuffix)}, 0, -1, func(line []byte) error { do(line); return nil })
}

func truncate(t *testing.T, path string, by int64) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.Truncate(path, info.Size()-by))
}

func edit(t *testing.T, dir, name, old, new string) {
	t.Helper()
	b := readFile(t, dir, name)
	require.Contains(t, string(b), old)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), bytes.Replace(b, []byte(old), []byte(new), 1), 0o600))
}

// TestVerifyOlder checks a log that was begun before lines had salts.
func TestVerifyOlder(t *testing.T) {
	dir := t.TempDir()
	add(t, open(t, dir, audit.Options{}), 3)
	older := bytes.ReplaceAll(readFile(t, dir, segment.Name(1)), []byte(`"salt":`), []byte(`"nonce":`))
	dir = t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Name(1)), older, 0o600))
	l := open(t, dir, audit.Options{})
	add(t, l, 3)
	require.NoError(t, l.Close())
	v, err := Verify(t.Context(), dir, VerifyOptions{})
	require.NoError(t, err)
	assert.EqualValues(t, 6, v.Head.Size)
	p, err := Prove(t.Context(), dir, ProveOptions{Seq: 2})
	require.NoError(t, err)
	assert.Contains(t, p.Events[0].Line, `"nonce":`)
	assert.Nil(t, p.Events[0].Shown)
	_, err = Prove(t.Context(), dir, ProveOptions{Seq: 2, Redact: []string{"path"}})
	require.ErrorContains(t, err, "without a salt")
	p, err = Prove(t.Context(), dir, ProveOptions{Seq: 5, Redact: []string{"path"}})
	require.NoError(t, err)
	assert.NotContains(t, p.Events[0].Line, `"salt":`)
}
