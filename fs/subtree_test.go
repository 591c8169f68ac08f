package fs

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit/event"
	"github.com/scopefs/scopefs/scope"
)

// meanwhile calls do once, when the decision about a name is recorded.
type meanwhile struct {
	nothing
	name string
	do   *func()
}

func (m meanwhile) Record(_ context.Context, e event.Event) error {
	if do := *m.do; do != nil && filepath.Base(e.Path) == m.name {
		*m.do = nil
		do()
	}
	return nil
}

// packagesView returns a view with names that installed packages may have.
func packagesView(t *testing.T, base string, recorder Recorder) *View {
	v, _ := watchedView(t, base)
	policy, err := scope.Compile(scope.PolicySpec{Protect: []scope.Protect{{Name: "build", Paths: []string{"**/.npmrc"}, Packages: true}}})
	require.NoError(t, err)
	v.policy.Store(policy)
	v.opt.Recorder, v.opt.Record = recorder, scope.RecordWrites
	return v
}

// lookedUp returns the header of a request for a path.
func lookedUp(t *testing.T, v *View, names ...string) fuse.InHeader {
	head := fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}
	for _, name := range names {
		var out fuse.EntryOut
		require.Equal(t, fuse.OK, v.Lookup(nil, &head, name, &out))
		require.NotZero(t, out.NodeId, name)
		head.NodeId = out.NodeId
	}
	return head
}

// TestMovedSinceDecision: between the decision about a name in a package and the change, a directory above it leaves the package. Nothing
// gets a protected name outside, and no link is made that fits deeper down alone.
func TestMovedSinceDecision(t *testing.T) {
	stale := fuse.Status(unix.ESTALE)
	for name, act := range map[string]func(t *testing.T, v *View, dir fuse.InHeader) fuse.Status{
		"create": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Create(nil, &fuse.CreateIn{InHeader: dir, Flags: unix.O_WRONLY}, ".npmrc", &fuse.CreateOut{})
		},
		"mkdir": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Mkdir(nil, &fuse.MkdirIn{InHeader: dir, Mode: 0o755}, ".npmrc", &fuse.EntryOut{})
		},
		"mknod": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Mknod(nil, &fuse.MknodIn{InHeader: dir, Mode: unix.S_IFREG | 0o644}, ".npmrc", &fuse.EntryOut{})
		},
		"symlink": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Symlink(nil, &dir, "f", ".npmrc", &fuse.EntryOut{})
		},
		"a link upwards": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Symlink(nil, &dir, "../../../f", "up", &fuse.EntryOut{})
		},
		"link": func(t *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			return v.Link(nil, &fuse.LinkIn{InHeader: dir, Oldnodeid: lookedUp(t, v, "f").NodeId}, ".npmrc", &fuse.EntryOut{})
		},
		"rename": func(_ *testing.T, v *View, dir fuse.InHeader) fuse.Status {
			in := fuse.RenameIn{InHeader: fuse.InHeader{NodeId: fuse.FUSE_ROOT_ID}, Newdir: dir.NodeId}
			return v.Rename(nil, &in, "f", ".npmrc")
		},
	} {
		for _, by := range []string{"nobody", "a client", "a client of another view"} {
			t.Run(name+" and "+by, func(t *testing.T) {
				base, file := t.TempDir(), ".npmrc"
				if name == "a link upwards" {
					file = "up"
				}
				require.NoError(t, os.MkdirAll(filepath.Join(base, "node_modules/x/d"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(base, "f"), nil, 0o644))
				var do func()
				v := packagesView(t, base, meanwhile{name: file, do: &do})
				dir, other := lookedUp(t, v, "node_modules", "x", "d"), v
				if by != "a client" {
					other = packagesView(t, base, nothing{})
				}
				if by != "nobody" {
					do = func() {
						in := fuse.RenameIn{InHeader: lookedUp(t, other, "node_modules"), Newdir: fuse.FUSE_ROOT_ID}
						assert.Equal(t, fuse.OK, other.Rename(nil, &in, "x", "x"))
					}
				}
				want := map[bool]fuse.Status{true: fuse.OK, false: stale}[by == "nobody"]
				assert.Equal(t, want, act(t, v, dir))
				assert.Nil(t, do, "the move was made")
				_, err := os.Lstat(filepath.Join(base, "x/d", file))
				assert.ErrorIs(t, err, os.ErrNotExist)
			})
		}
	}
}
