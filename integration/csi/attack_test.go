package csi

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() { harness.Roles["exchange"] = exchange }

// exchange exchanges two names again and again, until its input ends. It prints how often, and the last error.
func exchange(args []string) error {
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	var last error
	for n := 0; ; {
		select {
		case <-ended:
			fmt.Println(n, harness.ErrnoOf(last))
			return nil
		default:
		}
		if err := harness.Exchange(args); err != nil {
			last = err
		} else {
			n++
		}
	}
}

// attack starts a process that exchanges two names. end ends it.
func (n *node) attack(a, b string) (end func()) {
	n.T.Helper()
	return n.attackBy(harness.Role("exchange", a, b))
}

// attackBy starts a command that exchanges names, at least once.
func (n *node) attackBy(cmd *exec.Cmd) (end func()) {
	n.T.Helper()
	in, err := cmd.StdinPipe()
	require.NoError(n.T, err)
	out, err := cmd.StdoutPipe()
	require.NoError(n.T, err)
	require.NoError(n.T, cmd.Start())
	ended := false
	end = func() {
		if ended {
			return
		}
		ended = true
		in.Close()
		line, _ := bufio.NewReader(out).ReadString('\n')
		assert.NoError(n.T, cmd.Wait())
		n.T.Logf("exchanges and last error: %s", line)
		assert.NotEqual(n.T, "0", strings.Fields(line + " 0")[0])
	}
	n.T.Cleanup(end)
	return end
}

// untouched checks a directory to which no link may lead the plugin.
func (n *node) untouched(dir string) {
	n.T.Helper()
	assert.Zero(n.T, n.Mounted(dir), "something is mounted in %s", dir)
	assert.FileExists(n.T, filepath.Join(dir, "secret"))
	assert.DirExists(n.T, filepath.Join(dir, "mount"), "the plugin has removed it")
}

func (n *node) outside() string {
	n.T.Helper()
	dir := filepath.Join(n.pods(), "outside")
	require.NoError(n.T, os.MkdirAll(filepath.Join(dir, "mount"), 0o755))
	require.NoError(n.T, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o644))
	return dir
}

// rounds is how often an attacker gets a chance.
const rounds = 30

// TestAttackTarget: a process exchanges a directory above the target for a link while kubelet publishes and unpublishes: CVE-2021-25741. The plugin
// mounts and removes nothing where the link leads.
func TestAttackTarget(t *testing.T) {
	n := newNode(t, "")
	p, out := builder("a"), n.outside()
	parent := filepath.Dir(n.target(p))
	require.NoError(t, os.MkdirAll(parent, 0o755))
	require.NoError(t, os.Symlink(out, parent+"-link"))
	end := n.attack(parent, parent+"-link")
	done := 0
	for range rounds {
		if n.send(n.request(p)) == nil {
			done++
		}
		_ = n.unpublish(p)
		n.untouched(out)
	}
	end()
	if info, err := os.Lstat(parent); assert.NoError(t, err) && !info.IsDir() {
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, parent, unix.AT_FDCWD, parent+"-link", unix.RENAME_EXCHANGE))
	}
	n.untouched(out)
	require.NoError(t, n.publish(p))
	n.reads(p, "file", "of one")
	require.NoError(t, n.unpublish(p))
	assert.Zero(t, n.Mounted(n.pods()))
	t.Logf("%d of %d published", done, rounds)
}

// TestAttackPrefix: a process that may write beside the agent's directory exchanges it for a link, while it becomes the root
// of the pod's view: CVE-2017-1002101. The pod has the directory, or nothing.
func TestAttackPrefix(t *testing.T) {
	n := newNode(t, "")
	out := n.outside()
	dir := filepath.Join(n.prefix, "b-1")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("mine"), 0o644))
	require.NoError(t, os.Symlink(out, dir+"-link"))
	p := pod{uid: "b", namespace: "team-b", account: "x", attributes: map[string]string{"agent": "b-1"}}
	defer n.attack(dir, dir+"-link")()
	done := 0
	for range rounds / 3 {
		if n.publish(p) == nil {
			done++
			entries, err := os.ReadDir(n.target(p))
			// The view ends at once when its directory is exchanged: there is nothing then, also in the middle of the request.
			if over := errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED); !over && assert.NoError(t, err) && assert.Len(t, entries, 1) {
				assert.Equal(t, "mine", entries[0].Name())
			}
		}
		require.NoError(t, n.unpublish(p))
	}
	n.untouched(out)
	t.Logf("%d of %d published", done, rounds/3)
}

// TestAttackVolume: another pod writes links into the volume, and exchanges one for a directory. Whoever reads the volume of
// the first pod on the node never gets what the link leads to.
func TestAttackVolume(t *testing.T) {
	n := newNode(t, "")
	p, q, out := builder("a"), builder("b"), n.outside()
	require.NoError(t, n.publish(p))
	require.NoError(t, n.publish(q))
	dir := filepath.Join(n.target(q), "dir")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("mine"), 0o644))
	require.NoError(t, os.Symlink(out, n.Scope("one", "dir-link")), "below the view, as from another node")
	defer n.attack(n.Scope("one", "dir"), n.Scope("one", "dir-link"))()
	for range 100 * rounds {
		text, err := os.ReadFile(filepath.Join(n.target(p), "dir/secret"))
		if err == nil {
			require.Equal(t, "mine", string(text))
		}
	}
	n.untouched(out)
	require.NoError(t, n.unpublish(p))
	require.NoError(t, n.unpublish(q))
}
