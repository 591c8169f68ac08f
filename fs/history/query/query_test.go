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
