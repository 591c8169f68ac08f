package harness

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// DoOps runs operations in the process of a command that has the role "ops", and returns how
// each ended: "ok" or the name of the errno.
func DoOps(t testing.TB, cmd *exec.Cmd, ops []string) []string {
	t.Helper()
	cmd.Stdin = strings.NewReader(strings.Join(ops, "\n") + "\n")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	require.Len(t, lines, len(ops), "%s", out)
	return lines
}

// HostOps runs operations in a directory as another process of the host.
func HostOps(t testing.TB, dir string, ops ...string) []string {
	t.Helper()
	cmd := Role("ops")
	cmd.Dir = dir
	return DoOps(t, cmd, ops)
}

// OpsAsUser runs operations in a directory as another user of the host.
func (h *Host) OpsAsUser(uid uint32, dir string, ops ...string) []string {
	h.T.Helper()
	return DoOps(h.T, h.RoleAs(uid, dir, "ops"), ops)
}

// doAll is the role "ops": it does the operation of each line of its input and prints how
// that ended.
func doAll([]string) error {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(ErrnoOf(DoOp(in.Text())))
	}
	return nil
}

// DoOp does the operation of a line "name argument...".
func DoOp(line string) error {
	words := strings.Fields(line)
	do := Ops[words[0]]
	if do == nil {
		return fmt.Errorf("no operation %q", words[0])
	}
	return do(append(words[1:], "", ""))
}

// ErrnoOf returns "ok", the name of an errno, or the text of another error.
func ErrnoOf(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return "error: " + err.Error()
}

// Ops are the operations of the role "ops". Each does one thing
// once and succeeds only when the thing was done.
var Ops = map[string]func(a []string) error{
	"stat":     func(a []string) error { var st unix.Stat_t; return unix.Lstat(a[0], &st) },
	"read":     func(a []string) error { _, err := os.ReadFile(a[0]); return err },
	"list":     func(a []string) error { return Listed(a[0], a[1]) },
	"readlink": func(a []string) error { _, err := os.Readlink(a[0]); return err },
	"getxattr": func(a []string) error { _, err := unix.Lgetxattr(a[0], a[1], make([]byte, 100)); return err },
	"create":   func(a []string) error { return Opened(a[0], unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, nil) },
	"write":    func(a []string) error { return Opened(a[0], unix.O_WRONLY, Overwrite) },
	"put": func(a []string) error { // a[1], in a new file
		return Opened(a[0], unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, func(fd int) error {
			_, err := unix.Write(fd, []byte(a[1]))
			return err
		})
	},
	"append":   func(a []string) error { return Opened(a[0], unix.O_WRONLY|unix.O_APPEND, Overwrite) },
	"trunc":    func(a []string) error { return unix.Truncate(a[0], 1) },
	"o-trunc":  func(a []string) error { return Opened(a[0], unix.O_RDONLY|unix.O_TRUNC, nil) },
	"mkdir":    func(a []string) error { return unix.Mkdir(a[0], 0o755) },
	"fifo":     func(a []string) error { return unix.Mknod(a[0], unix.S_IFIFO|0o644, 0) },
	"node":     func(a []string) error { return unix.Mknod(a[0], unix.S_IFREG|0o644, 0) },
	"chr":      func(a []string) error { return unix.Mknod(a[0], unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
	"blk":      func(a []string) error { return unix.Mknod(a[0], unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) },
	"symlink":  func(a []string) error { return unix.Symlink(a[0], a[1]) },
	"link":     func(a []string) error { return unix.Link(a[0], a[1]) },
	"rename":   func(a []string) error { return unix.Rename(a[0], a[1]) },
	"xchg":     Exchange,
	"unlink":   func(a []string) error { return unix.Unlink(a[0]) },
	"rmdir":    func(a []string) error { return unix.Rmdir(a[0]) },
	"access-r": func(a []string) error { return unix.Access(a[0], unix.R_OK) },
	"access-w": func(a []string) error { return unix.Access(a[0], unix.W_OK) },
	"access-x": func(a []string) error { return unix.Access(a[0], unix.X_OK) },
	"chmod":    func(a []string) error { return unix.Chmod(a[0], 0o600) },
	"chown":    func(a []string) error { return unix.Lchown(a[0], 1, 1) },
	"utimes":   func(a []string) error { return unix.Utimes(a[0], make([]unix.Timeval, 2)) },
	"setxattr": func(a []string) error { return unix.Lsetxattr(a[0], "user.x", []byte("1"), 0) },
	"setacl":   func(a []string) error { return unix.Lsetxattr(a[0], "system.posix_acl_access", openACL, 0) },
	"setattr":  func(a []string) error { return unix.Lsetxattr(a[0], a[1], []byte("1"), 0) },
	"fchmod": func(a []string) error {
		return Opened(a[0], unix.O_RDONLY, func(fd int) error { return unix.Fchmod(fd, 0o600) })
	},
	"futimes": func(a []string) error {
		return Opened(a[0], unix.O_RDONLY, func(fd int) error { return unix.Futimes(fd, make([]unix.Timeval, 2)) })
	},
	"fallocate": func(a []string) error {
		return Opened(a[0], unix.O_RDWR, func(fd int) error { return unix.Fallocate(fd, 0, 0, 1<<16) })
	},
	"mmap": func(a []string) error {
		return Opened(a[0], unix.O_RDWR, func(fd int) error {
			m, err := unix.Mmap(fd, 0, 1, unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				m[0] = 'X'
				err = unix.Munmap(m)
			}
			return err
		})
	},
	// A descriptor for reading becomes one for writing by way of /proc.
	"reopen": func(a []string) error {
		return Opened(a[0], unix.O_RDONLY, func(fd int) error {
			return Opened(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, Overwrite)
		})
	},
	"repath": func(a []string) error { // the same from O_PATH
		return Opened(a[0], unix.O_PATH, func(fd int) error {
			return Opened(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, Overwrite)
		})
	},
	"retrunc": func(a []string) error {
		return Opened(a[0], unix.O_PATH, func(fd int) error { return unix.Truncate(fmt.Sprintf("/proc/self/fd/%d", fd), 0) })
	},
	"fdlink": func(a []string) error { // link by descriptor, so that the name is not walked
		return Opened(a[0], unix.O_RDONLY, func(fd int) error {
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
		})
	},
	"copyrange": func(a []string) error {
		return Opened(a[0], unix.O_RDONLY, func(from int) error {
			return Opened(a[1], unix.O_WRONLY, func(to int) error {
				_, err := unix.CopyFileRange(from, nil, to, nil, 1, 0)
				return err
			})
		})
	},
	"tmplink": func(a []string) error { // made without a name in a[0], named a[1]
		return Opened(a[0], unix.O_TMPFILE|unix.O_RDWR, func(fd int) error {
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, a[1], unix.AT_SYMLINK_FOLLOW)
		})
	},
	"connect": connect,
	"bind": func(a []string) error { // and connect to it
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: a[0]}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 1); err != nil {
			return err
		}
		return connect(a)
	},
	"byhandle": func(a []string) error { // a[0] named by its handle, opened on a[1]
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, a[0], 0)
		if err != nil {
			return err
		}
		return Opened(a[1], unix.O_RDONLY|unix.O_DIRECTORY, func(mount int) error {
			fd, err := unix.OpenByHandleAt(mount, handle, unix.O_RDONLY)
			if err == nil {
				unix.Close(fd)
			}
			return err
		})
	},
	"ioctl": func(a []string) error { // a[1] is the number
		var call uintptr
		if _, err := fmt.Sscanf(a[1], "%v", &call); err != nil {
			return err
		}
		return Opened(a[0], unix.O_RDONLY|unix.O_NONBLOCK, func(fd int) error {
			var arg [256]byte
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), call, uintptr(unsafe.Pointer(&arg))); errno != 0 {
				return errno
			}
			return nil
		})
	},
}

// openACL is an access ACL u::rwx,g::rwx,o::rwx; acl(5), linux/posix_acl_xattr.h.
var openACL = []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x04\x00\x07\x00\xff\xff\xff\xff\x20\x00\x07\x00\xff\xff\xff\xff")

// Exchange swaps two names.
func Exchange(a []string) error {
	return unix.Renameat2(unix.AT_FDCWD, a[0], unix.AT_FDCWD, a[1], unix.RENAME_EXCHANGE)
}

func connect(a []string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: a[0]}) // "@": abstract
}

// Overwrite writes the word WRITTEN to an open file.
func Overwrite(fd int) error {
	_, err := unix.Write(fd, []byte("WRITTEN"))
	return err
}

// Opened opens a file, calls do with its descriptor unless do is nil, and closes it. It returns the first error.
func Opened(name string, flags int, do func(fd int) error) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	if do != nil {
		err = do(fd)
	}
	return cmp.Or(err, unix.Close(fd))
}

// Listed returns ENOENT unless a directory lists a name.
func Listed(dir, name string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.EqualFold(e.Name(), name) }) {
		return unix.ENOENT
	}
	return nil
}
