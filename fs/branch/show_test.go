package branch

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHashBinds: a commit with a hash takes what the hash is of, also if a client changes it between the plan and the stage.
func TestHashBinds(t *testing.T) {
	for name, change := range map[string]func(*fork){
		"content": func(f *fork) { f.make(f.merged, "file=evil") },
		"mode":    func(f *fork) { require.NoError(f, os.Chmod(f.merged+"/file", 0o4755)) },
		"xattr":   func(f *fork) { require.NoError(f, unix.Setxattr(f.merged+"/dir", "user.x", []byte("evil"), 0)) },
		"link": func(f *fork) {
			f.remove(f.state+"/upper", "link")
			f.make(f.state+"/upper", "link->evil")
		},
		"mapping": func(f *fork) {
			file, err := os.OpenFile(f.merged+"/file", os.O_RDWR, 0)
			require.NoError(f, err)
			defer file.Close()
			memory, err := unix.Mmap(int(file.Fd()), 0, 4, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(f, err)
			copy(memory, "evil")
			require.NoError(f, unix.Munmap(memory))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFork(t, "file=base", "other=base")
			f.make(f.merged, "file=good", "link->good", "dir/", "other=good")
			s, err := f.Diff(t.Context(), nil, true)
			require.NoError(t, err)
			before := tree(t, f.base)
			changed := false
			_, err = f.Commit(t.Context(), Options{Hash: s.Hash, May: func(string) error {
				if !changed {
					change(f)
				}
				changed = true
				return nil
			}})
			require.ErrorIs(t, err, ErrChanged)
			assert.Equal(t, before, tree(t, f.base))
		})
	}
	f := newFork(t, "file=base", "other=base")
	f.make(f.merged, "file=good", "dir/sub/new=good", "other=good")
	shown := map[string]string{}
	s, err := f.Show(t.Context(), nil, 1<<20, 4, func(e *Entry, content []byte, kept bool) {
		shown[e.Path] = fmt.Sprint(string(content), kept)
	})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"file": "goodtrue", "other": "goodtrue", "dir": "false", "dir/sub": "false", "dir/sub/new": "goodtrue",
	}, shown)
	_, err = f.Show(t.Context(), nil, 11, 4, nil)
	require.ErrorIs(t, err, ErrTooLarge)
	r := f.commit(Options{Hash: s.Hash, Only: []string{"dir/sub/new"}})
	assert.Equal(t, []string{"added dir", "added dir/sub", "added dir/sub/new"}, texts(r.Taken))
	assert.Empty(t, r.Conflicts)
	assert.Equal(t, []string{"changed file", "changed other"}, f.diff())
}
