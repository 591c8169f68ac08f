package history

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() { harness.Roles["changes"] = change }

// change is the role "changes": it does each line of its input in each of its arguments, directories that have the same
// content, and prints how that ended in each of them.
func change(dirs []string) error {
	slots := make([]map[string]int, len(dirs))
	for i := range slots {
		slots[i] = map[string]int{}
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := append(strings.Fields(in.Text()), "", "", "")
		var results []string
		for i, dir := range dirs {
			if err := os.Chdir(dir); err != nil {
				return err
			}
			results = append(results, do(words, slots[i]))
		}
		fmt.Println(strings.Join(results, " "))
	}
	return nil
}

// do does one thing. held are descriptors by name.
func do(w []string, held map[string]int) string {
	a, b := w[1], w[2]
	n, _ := strconv.Atoi(w[3])
	var st unix.Stat_t
	fd, known := held[a]
	var err error
	switch w[0] {
	case "create":
		err = harness.Opened(a, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, func(fd int) error { return put(fd, b, 0, n) })
	case "write":
		err = harness.Opened(a, unix.O_WRONLY|unix.O_NONBLOCK, func(fd int) error { return put(fd, b, int64(n/2), n) })
	case "append":
		err = harness.Opened(a, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK, func(fd int) error { return put(fd, b, -1, n) })
	case "rewrite":
		err = harness.Opened(a, unix.O_WRONLY|unix.O_TRUNC|unix.O_NONBLOCK, func(fd int) error { return put(fd, b, 0, n) })
	case "empty":
		err = harness.Opened(a, unix.O_RDONLY|unix.O_TRUNC|unix.O_NONBLOCK, nil)
	case "truncate":
		err = unix.Truncate(a, int64(n))
	case "map":
		err = harness.Opened(a, unix.O_RDWR|unix.O_NONBLOCK, func(fd int) error { return scribble(fd, b, false) })
	case "unmapped": // the descriptor is closed before the mapping is written
		err = harness.Opened(a, unix.O_RDWR|unix.O_NONBLOCK, func(fd int) error { return scribble(fd, b, true) })
	case "punch":
		err = harness.Opened(a, unix.O_WRONLY|unix.O_NONBLOCK, func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(n)+1)
		})
	case "allocate":
		err = harness.Opened(a, unix.O_WRONLY|unix.O_NONBLOCK, func(fd int) error { return unix.Fallocate(fd, 0, 0, int64(n)+1) })
	case "copy":
		err = harness.Opened(a, unix.O_RDONLY|unix.O_NONBLOCK, func(from int) error {
			return harness.Opened(b, unix.O_WRONLY|unix.O_NONBLOCK, func(to int) error {
				_, err := unix.CopyFileRange(from, nil, to, nil, n+1, 0)
				return err
			})
		})
	case "mkdir":
		err = unix.Mkdir(a, 0o755)
	case "rmdir":
		err = unix.Rmdir(a)
	case "unlink":
		err = unix.Unlink(a)
	case "remove":
		err = os.RemoveAll(a)
	case "rename":
		err = unix.Rename(a, b)
	case "place":
		err = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_NOREPLACE)
	case "exchange":
		err = harness.Exchange([]string{a, b})
	case "link":
		err = unix.Linkat(unix.AT_FDCWD, a, unix.AT_FDCWD, b, 0)
	case "symlink":
		err = unix.Symlink(b, a)
	case "fifo":
		err = unix.Mknod(a, unix.S_IFIFO|0o644, 0)
	case "chmod":
		err = unix.Fchmodat(unix.AT_FDCWD, a, uint32(n), 0)
	case "touch":
		ts := unix.Timespec{Sec: 1_500_000_000 + int64(n), Nsec: int64(n)}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, a, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	case "setxattr":
		err = unix.Lsetxattr(a, "user."+b, []byte(w[3]), 0)
	case "removexattr":
		err = unix.Lremovexattr(a, "user."+b)
	case "setacl": // u::rwx u:7:rwx g::r-x m::rwx o::r--
		const acl = "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\x07\x00\x00\x00" +
			"\x04\x00\x05\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff"
		err = unix.Setxattr(a, "system.posix_acl_"+b, []byte(acl), 0)
	case "removeacl":
		err = unix.Removexattr(a, "system.posix_acl_"+b)
	case "unnamed": // O_TMPFILE and linkat(2)
		err = harness.Opened(filepath.Dir(a), unix.O_TMPFILE|unix.O_RDWR, func(fd int) error {
			if err := put(fd, b, 0, n); err != nil {
				return err
			}
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, a, unix.AT_SYMLINK_FOLLOW)
		})
	// With descriptors that stay open.
	case "hold":
		if known {
			unix.Close(fd)
			delete(held, a)
		}
		fd, err = unix.Open(b, n|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o644)
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			return "irregular"
		}
		if err == nil {
			held[a] = fd
		}
	case "close":
		if known {
			err = unix.Close(fd)
			delete(held, a)
		}
	case "held":
		if !known {
			return "none"
		}
		switch b {
		case "write":
			err = put(fd, "held", int64(n/3), n)
		case "truncate":
			err = unix.Ftruncate(fd, int64(n))
		case "chmod":
			err = unix.Fchmod(fd, uint32(0o600|n&0o77))
		case "touch":
			ts := unix.Timespec{Sec: 1_400_000_000 + int64(n)}
			err = unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), []unix.Timespec{ts, ts}, 0)
		case "reopen":
			err = harness.Opened(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, func(fd int) error { return put(fd, "again", 0, n) })
		case "stat":
			if err = unix.Fstat(fd, &st); err == nil {
				return fmt.Sprintf("%o:%d:%d", st.Mode, st.Nlink, st.Size)
			}
		case "link":
			err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, w[3], unix.AT_SYMLINK_FOLLOW)
		}
	default:
		return "unknown:" + w[0]
	}
	return strings.ReplaceAll(errnoOf(err), " ", "_")
}

// put writes n bytes of a text at an offset; at the end of the file if that is negative.
func put(fd int, text string, off int64, n int) error {
	b := []byte(strings.Repeat(text+" ", n/(len(text)+1)+1))[:n]
	if off < 0 {
		_, err := unix.Write(fd, b)
		return err
	}
	_, err := unix.Pwrite(fd, b, off)
	return err
}

// scribble changes a file by a mapping.
func scribble(fd int, text string, closed bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == 0 {
		return err
	}
	m, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if closed {
		if null, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err == nil {
			_ = unix.Dup2(null, fd)
			unix.Close(null)
		}
	}
	copy(m, text)
	copy(m[len(m)/2:], text)
	return unix.Munmap(m)
}

// program is a process with the role "changes".
type program struct {
	in    io.WriteCloser
	out   *bufio.Scanner
	cmd   *exec.Cmd
	count int // results of a line
}

func newProgram(t testing.TB, cmd *exec.Cmd, count int) *program {
	t.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &program{in, bufio.NewScanner(out), cmd, count}
	t.Cleanup(func() { p.end() })
	return p
}

func (p *program) end() {
	p.in.Close()
	_ = p.cmd.Wait()
}

// do has the process do a line, and returns the results.
func (p *program) do(t testing.TB, line string) []string {
	t.Helper()
	_, err := fmt.Fprintln(p.in, line)
	require.NoError(t, err, line)
	require.True(t, p.out.Scan(), "the process ended: %s", line)
	results := strings.Fields(p.out.Text())
	require.Len(t, results, p.count, line)
	return results
}
