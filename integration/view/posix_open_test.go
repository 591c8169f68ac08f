package view

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// fronts are the kinds of view that an open file may be in.
var fronts = map[string]string{
	"private":  "user: 4321",
	"shared":   "user: 4321\nview: {allow_other: true}",
	"mediated": "user: 4321\nview: {data: mediated}",
	"caller":   "identity: caller\nview: {allow_other: true}",
}

// TestExecuteUnreadable: execve(2) takes the right to execute, not to read.
func TestExecuteUnreadable(t *testing.T) {
	passthrough := harness.ThisKernel(t).Passthrough
	for name, front := range fronts {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			dir := h.Scope("a")
			for _, file := range []string{"own", "root"} {
				out, err := exec.Command("cp", "/bin/true", filepath.Join(dir, file)).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.NoError(t, os.Chmod(filepath.Join(dir, file), 0o111))
			}
			harness.Plant(t, dir, "script=#!/bin/sh\n", "secret=x", "plain=x")
			require.NoError(t, os.Chown(filepath.Join(dir, "own"), 4321, 4321))
			require.NoError(t, os.Chmod(filepath.Join(dir, "script"), 0o111))
			require.NoError(t, os.Chmod(filepath.Join(dir, "secret"), 0))
			require.NoError(t, os.Chmod(filepath.Join(dir, "plain"), 0o600))
			h.Start()
			run := func(file string) string {
				cmd := exec.Command(h.View("a", file))
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4321, Gid: 4321}}
				return harness.ErrnoOf(cmd.Run())
			}
			want := "ok"
			if name == "mediated" || !passthrough {
				want = "EACCES" // the view itself may not read it: docs/limits.md
			}
			for range 2 {
				assert.Equal(t, want, run("own"))
				assert.Equal(t, want, run("root"))
				assert.Equal(t, "EACCES", run("secret"))
				assert.Equal(t, "EACCES", run("plain"))
				assert.NotEqual(t, "ok", run("script"), "its interpreter may not read it")
				assert.Equal(t, []string{"EACCES", "EACCES", "EACCES", "EACCES"}, h.OpsAsUser(4321, h.View("a"), "read own", "read root", "read secret", "append root"))
			}
		})
	}
}

// TestSearchClosed: a directory that may be searched, and not read, is one on the way. In a shared view the kernel asks
// for its ACL, which the view reads without opening it.
func TestSearchClosed(t *testing.T) {
	for name, front := range fronts {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			harness.Plant(t, h.Scope("a"), "closed/f=text")
			require.NoError(t, os.Chmod(h.Scope("a", "closed"), 0o711))
			h.Start()
			assert.Equal(t, []string{"ok"}, h.OpsAsUser(4321, h.View("a"), "read closed/f"))
		})
	}
}

// unlinked opens a file that has no name any more by /proc/self/fd; its arguments
// are the flags by which it is open.
func unlinked(args []string) error {
	how := map[string]int{"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR}
	if err := os.WriteFile("gone", []byte("0123456789"), 0o600); err != nil {
		return err
	}
	fd, err := unix.Open("gone", how[args[0]]|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Unlink("gone")
	}
	if err != nil {
		return err
	}
	name := fmt.Sprintf("/proc/self/fd/%d", fd)
	again := func(flags int, do func(fd int) error) string { return harness.ErrnoOf(harness.Opened(name, flags, do)) }
	b := make([]byte, 20)
	fmt.Println("read", again(unix.O_RDONLY, func(fd int) error {
		n, err := unix.Pread(fd, b, 0)
		if err == nil && string(b[:n]) != "0123456789" {
			return fmt.Errorf("read %q", b[:n])
		}
		return err
	}))
	fmt.Println("write", again(unix.O_WRONLY, func(fd int) error { _, err := unix.Write(fd, []byte("ab")); return err }))
	fmt.Println("append", again(unix.O_RDWR|unix.O_APPEND, func(fd int) error {
		if _, err := unix.Write(fd, []byte("cd")); err != nil {
			return err
		}
		n, err := unix.Pread(fd, b, 0)
		if err == nil && string(b[:n]) != "ab23456789cd" {
			return fmt.Errorf("read %q", b[:n])
		}
		return err
	}))
	fmt.Println("truncate", harness.ErrnoOf(unix.Truncate(name, 3)))
	fmt.Println("o-trunc", again(unix.O_WRONLY|unix.O_TRUNC, nil))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Nlink != 0 {
		return fmt.Errorf("fstat: %v, %d links", err, st.Nlink)
	}
	fmt.Println("size", st.Size)
	if err := unix.Fchmod(fd, 0); err != nil {
		return err
	}
	fmt.Println("closed", again(unix.O_RDONLY, nil))
	return os.WriteFile("gone", []byte("another"), 0o600)
}

func init() { harness.Roles["unlinked"] = unlinked }

// TestOpenUnlinked: what is open can be opened again by /proc, also when its last
// name is gone or is another's by now.
func TestOpenUnlinked(t *testing.T) {
	passthrough := harness.ThisKernel(t).Passthrough
	for name, front := range fronts {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, map[string]string{"a": front})
			plain := filepath.Join(h.Base, "plain")
			require.NoError(t, os.Mkdir(plain, 0o755))
			for _, at := range []string{h.Scope("a"), plain} {
				require.NoError(t, os.Chown(at, 4321, 4321))
			}
			h.Start()
			for _, how := range []string{"rw", "r", "w"} {
				run := func(dir string) string {
					out, err := h.RoleAs(4321, dir, "unlinked", how).Output()
					require.NoError(t, err, "%s", out)
					return string(out)
				}
				want := run(plain)
				switch {
				case how == "rw":
					assert.Equal(t, "read ok\nwrite ok\nappend ok\ntruncate ok\no-trunc ok\nsize 0\nclosed EACCES\n", want)
				case name == "mediated" || !passthrough || how == "r":
					// Not in ways that it is not open: docs/limits.md.
					got := run(h.View("a"))
					assert.NotContains(t, got, "ESTALE")
					assert.Contains(t, got, map[string]string{"r": "read ok", "w": "write ok"}[how])
					assert.Contains(t, got, "closed EACCES")
					continue
				case how == "w": // the data is right, though a descriptor of ours cannot read it
					assert.Contains(t, want, "append ok")
				}
				assert.Equal(t, want, run(h.View("a")), how)
			}
			assert.Equal(t, "another", strings.TrimSpace(harness.ReadAll(t, h.Scope("a", "gone"))))
		})
	}
}
