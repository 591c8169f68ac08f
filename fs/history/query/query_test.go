package query_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/scope/beneath"
)

func open(t *testing.T, dir string) *beneath.Root {
	require.NoError(t, os.Mkdir(dir, 0o700))
	root, err := beneath.OpenDir(dir)
	require.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	return root
}

// create creates an empty file in a tree, as a view does.
func create(t *testing.T, store *history.Store, tree *beneath.Root, name string) {
	dir, err := tree.Dir("")
	require.NoError(t, err)
	defer dir.Close()
	st, err := dir.Self().Stat()
	require.NoError(t, err)
	m, err := store.Writer(1).Make(history.Place{Dir: dir, ID: st.ID(), Name: name})
	require.NoError(t, err)
	f, err := dir.Create(name, unix.O_RDWR, 0o644)
	require.NoError(t, err)
	defer f.Close()
	st, err = f.Stat()
	require.NoError(t, err)
	m.Done(&st)
}

// TestServePages: a list comes in pages. What an undo did is listed without doing it again.
func TestServePages(t *testing.T) {
	base := t.TempDir()
	tree, kept := open(t, base+"/tree"), open(t, base+"/history")
	store, _, err := history.Open(tree, kept, history.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	const files = 2000
	for i := range files {
		create(t, store, tree, fmt.Sprintf("%04d\xff", i))
	}
	s := &query.Server{Store: store}
	all := func(r query.Request) (entries []query.Entry, first *query.Reply) {
		for first == nil || len(entries) < first.Total {
			r.Offset = int64(len(entries))
			text, err := json.Marshal(r)
			require.NoError(t, err)
			answer, err := s.Serve(t.Context(), text)
			require.NoError(t, err)
			var reply query.Reply
			require.NoError(t, json.Unmarshal(answer, &reply))
			if first == nil {
				first = &reply
			}
			require.True(t, len(reply.Entries) > 0 || first.Total == 0)
			entries = append(entries, reply.Entries...)
		}
		return entries, first
	}
	list, first := all(query.Request{Changes: &history.Selection{}})
	assert.Len(t, list, files)
	assert.Less(t, len(first.Entries), files)
	assert.Equal(t, `0000\xff`, list[0].Change.Path)
	_, plan := all(query.Request{Plan: &history.Selection{}})
	_, refused := all(query.Request{Undo: &history.Selection{}, Shown: "x" + plan.Hash[1:]})
	assert.Equal(t, &query.Reply{Stale: true}, refused)
	require.NoError(t, os.Chmod(base+"/tree/0000\xff", 0o600))
	_, refused = all(query.Request{Undo: &history.Selection{}, Shown: plan.Hash})
	assert.Equal(t, &query.Reply{Stale: true}, refused, "the host has changed one")
	_, plan = all(query.Request{Plan: &history.Selection{}})
	list, first = all(query.Request{Undo: &history.Selection{}, Shown: plan.Hash})
	assert.Len(t, list, files)
	assert.Equal(t, files+1, first.Result.Done, "and the times of the root")
	list, first = all(query.Request{Changes: &history.Selection{}})
	assert.Empty(t, list)
	assert.Equal(t, "nothing was changed there", first.Nothing)
	_, err = s.Serve(t.Context(), json.RawMessage(`{"undo":{"session":"other"},"offset":3}`))
	assert.ErrorContains(t, err, "not in memory any more")
	list, _ = all(query.Request{Generations: &time.Time{}})
	assert.Len(t, list, 2)
}

// TestServeLong: a list has what has a long path, and what many programs have changed, whatever that takes as a message. A path is
// clipped as in the log, and its content is read as any other.
func TestServeLong(t *testing.T) {
	for name, c := range map[string]string{"plain": "d", "controls": "\x01", "escaped as JSON": "<"} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			tree, kept := open(t, base+"/tree"), open(t, base+"/history")
			program := 0
			store, _, err := history.Open(tree, kept, history.Options{Actor: func(uint32) (history.Actor, error) {
				program++
				return history.Actor{Program: fmt.Sprint("program", program), Label: history.Label{Call: fmt.Sprint("call", program/100)}}, nil
			}})
			require.NoError(t, err)
			t.Cleanup(store.Close)
			dir, err := tree.Dir("")
			require.NoError(t, err)
			rel := ""
			for len(rel)+250 < history.MaxPath {
				sub := strings.Repeat(c, 250)
				require.NoError(t, dir.Mkdir(sub, 0o700))
				dir.Close()
				rel = beneath.Join(rel, sub)
				dir, err = tree.Dir(rel)
				require.NoError(t, err)
			}
			defer dir.Close()
			st, err := dir.Self().Stat()
			require.NoError(t, err)
			f, err := dir.Create("f", unix.O_RDWR, 0o644)
			require.NoError(t, err)
			defer f.Close()
			from, to := history.Place{Dir: dir, ID: st.ID(), Rel: rel, Name: "f"}, history.Place{Dir: dir, ID: st.ID(), Rel: rel, Name: "g"}
			was, err := f.Stat()
			require.NoError(t, err)
			require.NoError(t, store.Writer(1).Rename(from, to, &was, nil, false, 0))
			_, err = f.WriteAt([]byte("text"), 0, false)
			require.NoError(t, err)
			for range 5000 {
				require.NoError(t, store.Writer(1).Attributes(rel+"/g", &was))
			}
			s := &query.Server{Store: store}
			ask := func(r query.Request) (reply query.Reply) {
				text, err := json.Marshal(r)
				require.NoError(t, err)
				require.Less(t, len(text), 128<<10)
				answer, err := s.Serve(t.Context(), text)
				require.NoError(t, err)
				assert.Less(t, len(answer), 200<<10)
				require.NoError(t, json.Unmarshal(answer, &reply))
				return reply
			}
			reply := ask(query.Request{Changes: &history.Selection{}})
			require.Equal(t, 1, reply.Total)
			change := reply.Entries[0].Change
			assert.LessOrEqual(t, len(change.Path), 4096)
			assert.True(t, strings.HasSuffix(change.Path, "/g") && strings.HasSuffix(change.From, "/f"))
			if change.New != (history.Version{}) {
				assert.Equal(t, "text", string(ask(query.Request{Read: &change.New}).Data))
			} else {
				assert.NotEqual(t, "plain", name)
			}
			assert.NotEmpty(t, ask(query.Request{Plan: &history.Selection{}}).Entries)
		})
	}
}

// TestServeReads: a reply has as many contents as it has room for, and at least one. A part of a content comes alone.
func TestServeReads(t *testing.T) {
	base := t.TempDir()
	tree, kept := open(t, base+"/tree"), open(t, base+"/history")
	store, _, err := history.Open(tree, kept, history.Options{})
	require.NoError(t, err)
	t.Cleanup(store.Close)
	s := &query.Server{Store: store}

	sizes := map[string]int{"empty": 0, "small": 10, "half": 48 << 10, "large": 200 << 10}
	for name, size := range sizes {
		require.NoError(t, os.WriteFile(base+"/tree/"+name, bytes.Repeat([]byte("<"), size), 0o600))
	}
	long := strings.Repeat("<", 250)
	reads := func(names ...string) (got []string) {
		r := query.Request{}
		for _, name := range names {
			r.Reads = append(r.Reads, history.Version{Path: name})
		}
		text, err := json.Marshal(r)
		require.NoError(t, err)
		answer, err := s.Serve(t.Context(), text)
		require.NoError(t, err)
		assert.Less(t, len(answer), 160<<10)
		var reply query.Reply
		require.NoError(t, json.Unmarshal(answer, &reply))
		for i, c := range reply.Contents {
			switch size, ok := sizes[names[i]]; {
			case !ok:
				assert.NotEmpty(t, c.Why)
			case len(c.Data) == size && int(c.Size) == size:
			case len(reply.Contents) == 1 && int(c.Size) == size && len(c.Data) > 90<<10:
				got = append(got, "part of")
			default:
				t.Errorf("%s: %d bytes of %d", names[i], len(c.Data), c.Size)
			}
			got = append(got, names[i])
		}
		return got
	}
	assert.Equal(t, []string{"small", "empty", "gone", "half", "empty"}, reads("small", "empty", "gone", "half", "empty", "half", "small"))
	assert.Equal(t, []string{"part of", "large"}, reads("large", "small"))
	assert.Equal(t, []string{"small"}, reads("small", "large"))
	assert.NotEmpty(t, reads(slices.Repeat([]string{"empty", "small", long}, 200)...))
}
