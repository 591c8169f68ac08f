package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// setIDOps change the content of a file; each by a descriptor or a name.
var setIDOps = map[string]func(a []string) error{
	"sid-write":  func(a []string) error { return harness.Opened(a[0], unix.O_WRONLY, harness.Overwrite) },
	"sid-append": func(a []string) error { return harness.Opened(a[0], unix.O_WRONLY|unix.O_APPEND, harness.Overwrite) },
	"sid-pwrite": func(a []string) error {
		return harness.Opened(a[0], unix.O_RDWR, func(fd int) error { _, err := unix.Pwrite(fd, []byte("X"), 3); return err })
	},
	"sid-direct-sync": func(a []string) error { return harness.Opened(a[0], unix.O_WRONLY|unix.O_SYNC, harness.Overwrite) },
	"sid-fallocate":   setIDAllocate(0),
	"sid-keep":        setIDAllocate(unix.FALLOC_FL_KEEP_SIZE),
	"sid-punch":       setIDAllocate(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE),
	"sid-zero":        setIDAllocate(unix.FALLOC_FL_ZERO_RANGE),
	"sid-copyrange": func(a []string) error {
		return harness.Opened("source", unix.O_RDONLY, func(from int) error {
			return harness.Opened(a[0], unix.O_WRONLY, func(to int) error {
				n, err := unix.CopyFileRange(from, nil, to, nil, 4, 0)
				return notZero(n, err)
			})
		})
	},
	"sid-sendfile": func(a []string) error {
		return harness.Opened("source", unix.O_RDONLY, func(from int) error {
			return harness.Opened(a[0], unix.O_WRONLY, func(to int) error {
				n, err := unix.Sendfile(to, from, nil, 4)
				return notZero(n, err)
			})
		})
	},
	"sid-truncate": func(a []string) error { return unix.Truncate(a[0], 2) },
	"sid-ftruncate": func(a []string) error {
		return harness.Opened(a[0], unix.O_WRONLY, func(fd int) error { return unix.Ftruncate(fd, 2) })
	},
	"sid-o-trunc": func(a []string) error { return harness.Opened(a[0], unix.O_WRONLY|unix.O_TRUNC, nil) },
}

func setIDAllocate(mode uint32) func(a []string) error {
	return func(a []string) error {
		return harness.Opened(a[0], unix.O_RDWR, func(fd int) error { return unix.Fallocate(fd, mode, 0, 8) })
	}
}

func init() {
	for name, op := range setIDOps {
		harness.Ops[name] = op
	}
	harness.Roles["write-late"] = func(args []string) error { // when a line has come
		return harness.Opened(args[0], unix.O_RDWR, func(fd int) error {
			fmt.Println("opened")
			_, err := fmt.Scanln()
			if err == nil || err.Error() == "unexpected newline" {
				err = harness.Overwrite(fd)
			}
			fmt.Println(harness.ErrnoOf(err))
			return nil
		})
	}
}

// fileCapability is security.capability of a file with CAP_NET_RAW: struct
// vfs_cap_data, revision 2, linux/capability.h.
var fileCapability = []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")

// TestAttackSetIDBits: whoever changes a file's content takes its set-id bits and
// its capabilities away, as without a view, whoever else has it open.
func TestAttackSetIDBits(t *testing.T) {
	fronts := map[string]string{
		"caller passthrough": "identity: caller\nview: {allow_other: true, xattrs: true}",
		"caller mediated":    "identity: caller\nview: {allow_other: true, data: mediated}",
		"user passthrough":   "user: 4321\nview: {allow_other: true}",
		"user mediated":      "user: 4321\nview: {allow_other: true, data: mediated, xattrs: true}",
	}
	modes := []uint32{0o6777, 0o4777, 0o2767, 0o6766, 0o2777, 0o0777}
	for name, front := range fronts {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			dir, plain := h.Scope("a"), filepath.Join(h.Base, "plain")
			for _, at := range []string{dir, plain} {
				harness.Plant(t, at, "source=0123456789")
				require.NoError(t, os.Chmod(at, 0o777))
			}
			h.Start()
			users := []uint32{4321}
			if name[:6] == "caller" {
				users = append(users, 0)
			}
			for _, held := range []bool{false, true} { // open, by root
				for _, uid := range users {
					var ops, files []string
					var open []*os.File
					for op := range setIDOps {
						for _, mode := range modes {
							file := fmt.Sprintf("%s-%o-%d-%t", op, mode, uid, held)
							ops, files = append(ops, op+" "+file), append(files, file)
							for _, at := range []string{dir, plain} {
								setIDFile(t, filepath.Join(at, file), mode)
							}
							if held {
								f, err := os.OpenFile(h.View("a", file), os.O_RDWR, 0)
								if uid == 0 || name[:6] == "caller" {
									require.NoError(t, err)
								}
								if err == nil {
									open = append(open, f)
								}
							}
						}
					}
					for _, file := range files { // the kernel has their attributes now
						_, _ = os.Lstat(h.View("a", file))
					}
					want := h.OpsAsUser(uid, plain, append([]string(nil), ops...)...)
					got := h.OpsAsUser(uid, h.View("a"), ops...)
					for i, file := range files {
						assert.Equal(t, want[i], got[i], file)
						assert.Equal(t, setIDLeft(t, filepath.Join(plain, file)), setIDLeft(t, filepath.Join(dir, file)), "%s of user %d, held open %t", ops[i], uid, held)
						h.Eventually("the view shows it", func() bool {
							var below, above unix.Stat_t
							return unix.Lstat(filepath.Join(dir, file), &below) == nil && unix.Lstat(h.View("a", file), &above) == nil && below.Mode == above.Mode
						})
					}
					for _, f := range open {
						f.Close()
					}
				}
			}
			// The bits come when another has it open for writing.
			for _, at := range []string{dir, plain} {
				setIDFile(t, filepath.Join(at, "late"), 0o777)
			}
			root, err := os.OpenFile(h.View("a", "late"), os.O_RDWR, 0)
			if name[:6] == "caller" {
				require.NoError(t, err)
			}
			if err == nil {
				defer root.Close()
			}
			cmd := h.RoleAs(4321, h.View("a"), "write-late", "late")
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			next := harness.Stream(t, cmd)
			require.Equal(t, "opened", next())
			require.NoError(t, unix.Chmod(filepath.Join(dir, "late"), 0o6777))
			if name[:6] == "caller" {
				require.NoError(t, unix.Chmod(h.View("a", "late"), 0o6777))
			}
			_, err = in.Write([]byte("\n"))
			require.NoError(t, err)
			require.Equal(t, "ok", next())
			assert.Equal(t, "777", setIDLeft(t, filepath.Join(dir, "late")))
		})
	}
}

func setIDFile(t *testing.T, at string, mode uint32) {
	t.Helper()
	require.NoError(t, os.WriteFile(at, []byte("0123456789"), 0o600))
	require.NoError(t, unix.Lsetxattr(at, "security.capability", fileCapability, 0))
	require.NoError(t, unix.Chmod(at, mode))
}

// setIDLeft is a file's mode, and whether it has capabilities.
func setIDLeft(t *testing.T, at string) string {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Lstat(at, &st))
	left := fmt.Sprintf("%o", st.Mode&0o7777)
	if _, err := unix.Lgetxattr(at, "security.capability", make([]byte, 100)); err == nil {
		left += " with capabilities"
	}
	return left
}
