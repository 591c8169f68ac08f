// Package kubernetes runs packaging/kubernetes on the node of a real cluster: make test-kubernetes.
package kubernetes

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	targetEnv   = "SCOPEFS_TEST_KUBERNETES"          // 1 of make test-kubernetes
	nodeEnv     = "SCOPEFS_TEST_KUBERNETES_NODE"     // 1 in the node's namespaces
	programsEnv = "SCOPEFS_TEST_KUBERNETES_PROGRAMS" // the directory of Kubernetes' programs
	cgroupEnv   = "SCOPEFS_TEST_KUBERNETES_CGROUP"   // the control group of the node
	testTime    = 30 * time.Minute                   // of all
	cgroups     = "/sys/fs/cgroup"
)

// TestNode runs TestCluster in namespaces of its own, with a process that reaps its orphans. When it ends, the kernel ends every
// process of the cluster, and with them their mounts and network. -run TestNode/NAME runs a part.
func TestNode(t *testing.T) {
	need.Target(t, "test-kubernetes", targetEnv, "1")
	need.Root(t, "kubelet")
	group := "scopefs-test-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() { removeGroups(t, group) })
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testTime)
	defer cancel()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM) // its control groups are removed then, too
	defer stop()
	_, part, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--",
		self, self, "-test.v", "-test.timeout="+testTime.String(), "-test.run=^TestCluster$/"+part)
	cmd.Env = append(os.Environ(), harness.RoleEnv+"=init", nodeEnv+"=1", cgroupEnv+"="+group, harness.BuiltEnv+"="+harness.Program)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Run())
}

func init() { harness.Roles["init"] = reap }

// reap runs a command, and reaps the processes that lose their parent until it ends, as the first process of a namespace does.
func reap(args []string) error {
	os.Unsetenv(harness.RoleEnv)
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		switch ended, err := syscall.Wait4(-1, &status, 0, nil); {
		case err == syscall.EINTR:
		case err != nil:
			return err
		case ended == pid:
			os.Exit(min(status.ExitStatus()&0xff, 255))
		}
	}
}

// makeGroups makes a control group in each hierarchy.
func makeGroups(t testing.TB, group string) {
	t.Helper()
	all, err := filepath.Glob(cgroups + "/*/cgroup.procs")
	require.NoError(t, err)
	for _, procs := range all {
		require.NoError(t, os.MkdirAll(filepath.Join(filepath.Dir(procs), group), 0o755))
	}
}

// removeGroups removes the control groups of the node, in which no process is any more.
func removeGroups(t testing.TB, group string) {
	t.Helper()
	tops, err := filepath.Glob(cgroups + "/*/" + group)
	require.NoError(t, err)
	for _, top := range append(tops, cgroups+"/"+group) {
		var dirs []string
		_ = filepath.WalkDir(top, func(name string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{name}, dirs...) // children first
			}
			return nil
		})
		for _, dir := range dirs {
			assert.NoError(t, os.Remove(dir))
		}
	}
}

// tail returns the end of a file.
func tail(name string, lines int) string {
	text, _ := os.ReadFile(name)
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
