package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
)

// patience is how long a package may take to end by a signal.
const patience = 5 * time.Second

// processor begins the line with the processor time of a package, which depends less than its time on what else the machine does: of the
// tests and of the processes that they have waited for.
const processor = "processor: "

// heard notes when the tests have printed something.
type heard struct {
	w  io.Writer
	at atomic.Int64 // nanoseconds of the Unix time
}

func (h *heard) Write(b []byte) (int, error) {
	h.at.Store(time.Now().UnixNano())
	return h.w.Write(b)
}

// limited runs the tests of a package, and returns their exit code. It ends tests that print nothing for limit, not even that one begins:
// it prints the processes in state D and all goroutines, aborts the package's FUSE connections and kills the package. A process that waits
// in the kernel for a view ends by no signal before that. The package has a TMPDIR of its own, by which limited finds its mounts, and of
// root a mount namespace of its own: a sandbox of another package would copy its views, and a view ends with the last copy of its mount.
// With memory, TMPDIR is an ext4 in memory: see mountMemory.
func limited(limit time.Duration, memory bool, program string, args []string) int {
	dir := fmt.Sprintf("%s/scopefs-%d", strings.TrimSuffix(os.TempDir(), "/"), os.Getpid())
	err := os.Mkdir(dir, 0o777)
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky) // tests start programs of other users
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		return 1
	}
	runtime.LockOSThread() // the namespace and Pdeathsig are by thread: unshare(2), prctl(2)
	if os.Geteuid() == 0 {
		err = errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		if memory && err == nil {
			err = mountMemory(dir)
		}
	}
	before, readErr := os.ReadFile(ownMounts)
	if err := errors.Join(err, readErr); err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		return 1
	}
	tests := exec.Command(program, args...)
	tests.Env = append(os.Environ(), "TMPDIR="+dir)
	said := &heard{w: os.Stdout}
	said.at.Store(time.Now().UnixNano())
	tests.Stdout, tests.Stderr = said, os.Stderr
	tests.WaitDelay = patience // for a program that a test has left, with the output
	tests.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	if err := tests.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "progress:", err)
		return 1
	}
	ended := make(chan struct{})
	go func() {
		_ = tests.Wait()
		close(ended)
	}()
	parent := os.Getppid()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return code(tests.ProcessState, dir, string(before))
		case s := <-signals:
			_ = tests.Process.Signal(s)
		case <-tick.C:
			silent := time.Since(time.Unix(0, said.at.Load())) > limit
			if os.Getppid() == parent && !silent {
				continue
			}
			if silent { // else go test was killed, and nobody reads what the tests print
				fmt.Fprintf(os.Stderr, "progress: %s has printed nothing for %v\n", filepath.Base(program), limit)
				uninterruptible(os.Stderr)
			}
			end(tests.Process, ended, dir)
			return 2
		}
	}
}

// memorySize is the size of the disk of mountMemory. Memory holds the part of it that tests have written.
const memorySize = 8 << 30

// mountMemory mounts an ext4 with a journal on a directory. Its disk is a file in memory that shrinks as files are removed. Inodes, names
// and links behave as on a disk, and fsync costs little. An ext4 without a journal, which virtual machines often have, searches all inodes
// removed in the last minutes before it makes one: a tenth of the processor time of all tests. Where the host has no loop devices or too
// little memory, the directory stays on the disk.
func mountMemory(dir string) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil || uint64(info.Totalram)*uint64(info.Unit) < 2*memorySize-(1<<30) {
		return err
	}
	disk := filepath.Join(dir, "disk")
	if err := unix.Mount("scopefs-test", dir, "tmpfs", 0, fmt.Sprint("mode=1777,size=", memorySize)); err != nil {
		return err
	}
	err := os.WriteFile(disk, nil, 0o600)
	if err == nil {
		err = os.Truncate(disk, memorySize)
	}
	var out []byte
	for _, words := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", disk}, {"mount", "-o", "loop,discard", disk, dir}} {
		if err == nil {
			out, err = exec.Command(words[0], words[1:]...).CombinedOutput()
		}
	}
	if err == nil {
		return os.Chmod(dir, 0o777|os.ModeSticky)
	}
	fmt.Fprintf(os.Stderr, "progress: no file system in memory: %v: %s\n", err, out)
	return unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// ownMounts are the mounts of the namespace of this thread: proc_pid_mountinfo(5).
const ownMounts = "/proc/thread-self/mountinfo"

// code returns the exit code of a package that has ended by itself: a failure if a mount is left that was not there before.
func code(state *os.ProcessState, dir, before string) int {
	now, _ := os.ReadFile(ownMounts)
	left := slices.DeleteFunc(slices.Collect(strings.Lines(string(now))), func(line string) bool {
		id, _, _ := strings.Cut(line, " ")
		return strings.Contains("\n"+before, "\n"+id+" ")
	})
	for _, m := range mounts(dir) {
		left = append(left, m.at+"\n")
	}
	for _, at := range left {
		fmt.Fprint(os.Stderr, "progress: left mounted: ", at)
	}
	switch status := state.Sys().(syscall.WaitStatus); {
	case len(left) > 0:
		return 1
	case status.Signaled():
		fmt.Fprintln(os.Stderr, "progress: the tests ended by", status.Signal())
		return 2
	}
	for unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil { // until what mountMemory has mounted is gone
	}
	_ = os.RemoveAll(dir)
	fmt.Printf("%s%.0f s\n", processor, (state.UserTime() + state.SystemTime()).Seconds())
	return state.ExitCode()
}

// end ends tests that hang. SIGQUIT makes the runtime print all goroutines: os/signal.
func end(tests *os.Process, ended <-chan struct{}, dir string) {
	waits := func() bool {
		select {
		case <-ended:
			return false
		case <-time.After(patience):
			return true
		}
	}
	_ = tests.Signal(syscall.SIGQUIT)
	running := waits()
	abort(os.Stderr, dir)
	if running && waits() {
		_ = tests.Kill()
		if waits() {
			fmt.Fprintln(os.Stderr, "progress: the tests are killed, and have not ended")
			uninterruptible(os.Stderr)
		}
	}
}

// uninterruptible prints the threads in state D, with the kernel function in which each sleeps: proc_pid_stat(5), proc_pid_wchan(5).
func uninterruptible(w io.Writer) {
	stats, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, name := range stats {
		text, _ := os.ReadFile(name)
		_, rest, _ := strings.Cut(string(text), ") ")
		if strings.HasPrefix(rest, "D") {
			wait, _ := os.ReadFile(filepath.Dir(name) + "/wchan")
			line, _ := os.ReadFile(filepath.Dir(name) + "/cmdline")
			fmt.Fprintf(w, "progress: state D: %s waits in %s: %q\n", filepath.Dir(name), wait, line)
		}
	}
}

// mount is a mount below the directory of a package.
type mount struct {
	minor uint32 // of its device
	fuse  bool
	at    string
}

// mounts returns the mounts below a directory, in whichever mount namespace; one for each device.
func mounts(dir string) (all []mount) {
	tables, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	seen := map[string]bool{}
	for _, table := range tables {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // proc_pid_mountinfo(5): id, parent, major:minor, root, mount point
			if len(f) < 5 || seen[f[2]] || !strings.Contains(f[4], dir+"/") {
				continue
			}
			seen[f[2]] = true
			_, number, _ := strings.Cut(f[2], ":")
			minor, _ := strconv.ParseUint(number, 10, 32)
			all = append(all, mount{minor: uint32(minor), fuse: strings.Contains(line, " - fuse"), at: f[4]})
		}
	}
	return all
}

// abort aborts the FUSE connections of the mounts below a directory, fuse(4), and detaches the mounts.
func abort(w io.Writer, dir string) {
	control := fusemount.OpenControl()
	defer control.Close()
	for _, m := range mounts(dir) {
		if m.fuse {
			conn := control.Connection(m.minor, m.at)
			fmt.Fprintf(w, "progress: abort %s: %v\n", m.at, conn.Abort())
			conn.Close()
		}
		_ = unix.Unmount(m.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) // in this namespace
	}
}
