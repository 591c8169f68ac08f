package branch

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// during is a context whose Err calls do once, at the first call for which when returns true.
type during struct {
	context.Context
	when func() bool
	do   func()
	did  bool
}

func (d *during) Err() error {
	if !d.did && d.when() {
		d.did = true
		d.do()
	}
	return d.Context.Err()
}

// TestHashStaged: a commit with a hash takes what had the hash, also if a client changes the branch while it stages.
func TestHashStaged(t *testing.T) {
	acl := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 7, 0, 1, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
		0x10, 0, 7, 0, 255, 255, 255, 255, 0x20, 0, 4, 0, 255, 255, 255, 255} // user 1: rwx
	for name, change := range map[string]func(f *fork) error{
		"text of a link": func(f *fork) error {
			if err := os.Remove(f.state + "/upper/z"); err != nil {
				return err
			}
			return os.Symlink("m", f.state+"/upper/z")
		},
		"mode of a file":      func(f *fork) error { return unix.Chmod(f.merged+"/y", 0o4755) },
		"owner of a file":     func(f *fork) error { return os.Chown(f.merged+"/y", nobody, nobody) },
		"mode of an old file": func(f *fork) error { return unix.Chmod(f.merged+"/m", 0o4755) },
		"ACL of an old file": func(f *fork) error {
			return unix.Setxattr(f.merged+"/m", "system.posix_acl_access", acl, 0)
		},
		"content of a linked file": func(f *fork) error { return os.WriteFile(f.merged+"/h", []byte("2"), 0) },
		"ACL of a directory":       func(f *fork) error { return unix.Setxattr(f.merged+"/n", "system.posix_acl_access", acl, 0) },
	} {
		for _, at := range []string{"the first is staged", "all is staged", "all but one is hashed"} {
			t.Run(strings.ReplaceAll(name+" when "+at, " ", "_"), func(t *testing.T) {
				f := newFork(t, "h=1", "m=1")
				require.NoError(t, os.Link(f.base+"/h", f.base+".h"))
				f.make(f.merged, "a=1", "n/", "y=1", "z->a")
				require.NoError(t, os.Chmod(f.merged+"/h", 0o600))
				require.NoError(t, os.Chmod(f.merged+"/m", 0o600))
				set, err := f.Diff(t.Context(), nil, true)
				require.NoError(t, err)
				staged := stagePath(stagedName(0))
				if at != "the first is staged" {
					staged = stagePath(stagedName(len(set.Entries) - 1))
				}
				asked := 0
				ctx := &during{Context: t.Context(), do: func() { require.NoError(t, change(f)) }, when: func() bool {
					_, err := os.Lstat(f.state + "/" + staged)
					if err == nil {
						asked++
					}
					return asked == len(set.Entries) || asked > 0 && at != "all but one is hashed"
				}}
				before := tree(t, f.merged)
				r, err := f.Commit(ctx, Options{Hash: set.Hash, Conflicts: Theirs}) // the link has changed h
				require.True(t, ctx.did)
				if err != nil {
					require.ErrorIs(t, err, ErrChanged)
					return
				}
				require.Empty(t, texts(r.Conflicts))
				assert.Equal(t, before, tree(t, f.base))
				for _, name := range []string{"m", "n"} {
					_, err = unix.Getxattr(f.base+"/"+name, "system.posix_acl_access", nil)
					assert.ErrorIs(t, err, unix.ENODATA)
				}
				for _, name := range []string{"a", "m", "y"} {
					var st unix.Stat_t
					require.NoError(t, unix.Lstat(f.base+"/"+name, &st))
					assert.Zero(t, st.Uid)
				}
			})
		}
	}
}

// TestHashDiscard: a discard with a hash drops what has the hash, and nothing that a client has changed since.
func TestHashDiscard(t *testing.T) {
	f := newFork(t, "c=1", "m=1", "r=1")
	f.make(f.merged, "a=1", "b=1", "c=2")
	require.NoError(t, os.Chmod(f.merged+"/m", 0o600))
	f.remove(f.merged, "r")
	require.NoError(t, os.Link(f.merged+"/a", f.merged+"/a2"))
	set, err := f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	for name, change := range map[string]func() error{
		"a file more":  func() error { return os.WriteFile(f.merged+"/more", nil, 0o600) },
		"content":      func() error { return os.WriteFile(f.merged+"/b", []byte("2"), 0o600) },
		"mode":         func() error { return os.Chmod(f.merged+"/m", 0o4755) },
		"by the host":  func() error { return os.WriteFile(f.base+"/c", []byte("3"), 0o600) },
		"what is gone": func() error { return os.WriteFile(f.merged+"/r", []byte("2"), 0o600) },
	} {
		require.NoError(t, change(), name)
		was := f.diff()
		done, _, err := f.Discard(t.Context(), nil, set.Hash)
		assert.ErrorIs(t, err, ErrChanged, name)
		assert.Zero(t, done)
		assert.Equal(t, was, f.diff(), name)
		set, err = f.Diff(t.Context(), nil, true)
		require.NoError(t, err)
	}
	// Between the hash and the removal.
	ctx := &during{Context: t.Context(), when: func() bool { _, err := os.Lstat(f.state + "/upper/more"); return os.IsNotExist(err) }, do: func() {
		f.make(f.merged, "b=newer")
	}}
	_, _, err = f.Discard(ctx, nil, set.Hash)
	require.True(t, ctx.did)
	assert.ErrorContains(t, err, "b: changed since it was shown")
	assert.Equal(t, []string{"added b"}, f.diff())
	text, err := os.ReadFile(f.merged + "/b")
	require.NoError(t, err)
	assert.Equal(t, "newer", string(text))
}

// TestCommitCheck: a commit that is only checked changes nothing, and returns what the commit would do.
func TestCommitCheck(t *testing.T) {
	f := newFork(t, "a=1", "b=1", "c=1")
	f.make(f.merged, "a=2", "b=2", "new=1")
	require.NoError(t, os.Remove(f.merged+"/c"))
	set, err := f.Diff(t.Context(), nil, true)
	require.NoError(t, err)
	before := tree(t, f.base)
	opt := Options{Check: true, Hash: set.Hash}
	r, err := f.Commit(t.Context(), opt)
	require.NoError(t, err)
	assert.Equal(t, texts(set.Entries), texts(r.Taken))
	opt.Hash = "other"
	_, err = f.Commit(t.Context(), opt)
	require.ErrorIs(t, err, ErrChanged)
	r, err = f.Commit(t.Context(), Options{Check: true, Paths: []string{"new"}})
	require.NoError(t, err)
	assert.Len(t, r.Taken, 1)
	r, err = f.Commit(t.Context(), Options{Check: true, May: func(rel string) error {
		if rel == "b" {
			return ErrBusy
		}
		return nil
	}})
	require.NoError(t, err)
	assert.Len(t, r.Conflicts, 1)
	assert.Empty(t, r.Taken)
	assert.Equal(t, before, tree(t, f.base))
}

// TestDiscardMore: a discard of paths drops what a diff of them lists, and nothing more.
func TestDiscardMore(t *testing.T) {
	f := newFork(t, "d/e/", "d/a=1")
	f.rename(f.merged, "d", "x")
	f.make(f.merged, "d=junk", "x/e/n=work")
	was := f.diff()
	_, _, err := f.Discard(t.Context(), []string{"d"}, "")
	require.ErrorContains(t, err, "1 more would go with them: give their paths, too: x/e/n")
	assert.Equal(t, was, f.diff())
	done, _, err := f.Discard(t.Context(), []string{"d", "x/e/n"}, "")
	require.NoError(t, err)
	assert.Equal(t, 3, done)
	assert.Empty(t, f.diff())
}
