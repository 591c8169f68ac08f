package foreign

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/statictest"
)

func TestMain(m *testing.M) {
	statictest.Main(m, map[string]func() int{child.YAML: attack})
}

// attack does what code can try that has taken over the process.
func attack() int {
	if err := limit(); err != nil {
		fmt.Println("limit:", err)
		return 1
	}
	parent := os.Getppid()
	for name, try := range map[string]func() error{
		"read a file":         func() error { _, err := os.ReadFile("/etc/hostname"); return err },
		"list a directory":    func() error { _, err := os.ReadDir("/"); return err },
		"write a file":        func() error { return os.WriteFile("/tmp/scopefs-yaml-attack", nil, 0o600) },
		"look at a file":      func() error { _, err := os.Stat("/etc/passwd"); return err },
		"connect":             func() error { _, err := net.DialTimeout("tcp", "127.0.0.1:1", time.Second); return err },
		"connect by a socket": func() error { _, err := net.Dial("unix", "/run/scopefs/control.sock"); return err },
		"execute":             func() error { return unix.Exec("/proc/self/exe", []string{"x"}, nil) },
		"start":               func() error { return exec.Command("/bin/true").Run() },
		"kill its parent":     func() error { return unix.Kill(parent, 0) },
		"look into it":        func() error { return unix.PtraceAttach(parent) },
		"become another":      func() error { return unix.Setuid(12345) },
		"mount":               func() error { return unix.Mount("none", "/tmp", "tmpfs", 0, "") },
		"make a namespace":    func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	} {
		if err := try(); err == nil || strings.Contains(err.Error(), "refused") {
			fmt.Println("can", name, err)
		}
	}
	return 0
}

// TestAttackParser: code that has taken over the process opens nothing, connects to nothing, starts nothing and signals nobody.
func TestAttackParser(t *testing.T) {
	cmd, err := child.Command(child.YAML)
	require.NoError(t, err)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Empty(t, string(out))
}
