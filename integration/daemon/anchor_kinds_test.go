package daemon

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// syslogFile returns a function that appends messages to a file, as receivers of syslog do.
func syslogFile(t *testing.T, name string) func(text []byte) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return func(text []byte) {
		assert.Regexp(t, `^<110>1 [0-9T:.-]+Z [!-~]+ scopefs - head \[scopefs@32473\] head of \d+ lines of scopefs\.log/[0-9a-f]+: checkpoint=[A-Za-z0-9+/]+=*$`, string(text))
		_, err := f.Write(append(text, '\n'))
		assert.NoError(t, err)
	}
}

// TestAnchorKinds: each kind of anchor keeps heads, scopefs audit verify takes what it has, and finds a log that was written
// anew with the log's own key. What goes wrong with one is no other's.
func TestAnchorKinds(t *testing.T) {
	need.Root(t, "it mounts")
	need.Program(t, "git")
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": ""})
	mount, remote, repo := t.TempDir(), t.TempDir(), "anchored"
	copies, kept := t.TempDir(), t.TempDir()
	require.NoError(t, unix.Mount("tmpfs", mount, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(mount, unix.MNT_DETACH)) })
	shell := func(text string) string {
		t.Helper()
		out, err := exec.Command("/bin/sh", "-ec", text).CombinedOutput()
		require.NoError(t, err, "%s: %s", text, out)
		return string(out)
	}
	shell("git init --quiet --bare " + remote)
	tcp := &syslogd{t: t, address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, took: syslogFile(t, copies+"/tcp")}
	tcp.start()
	defer tcp.all.Wait()
	defer tcp.kill()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: copies + "/socket", Net: "unixgram"})
	require.NoError(t, err)
	defer socket.Close()
	toFile := syslogFile(t, copies+"/datagrams")
	tcp.all.Go(func() {
		for text := make([]byte, 64<<10); ; {
			n, err := socket.Read(text)
			if err != nil {
				return
			}
			toFile(text[:n:n])
		}
	})
	unread, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer unread.Close()
	h.Put("scopefs.yaml", fmt.Sprintf(`log:
  anchors:
    - {name: mount, every: 1s, file: %[1]s/heads}
    - {name: repo, every: 1s, git: 'file://%[2]s', branch: %[3]s}
    - {name: copies, every: 1s, command: [/bin/sh, -c, 'cat >%[4]s/$(date +%%s%%N)']}
    - {name: absent, every: 1s, file: %[1]s/none/heads}
    - {name: tcp, every: 1s, syslog: 'tcp://%[5]s'}
    - {name: socket, every: 1s, syslog: 'unix://%[6]s/link'}
    - {name: unread, every: 1s, syslog: 'tcp://%[7]s'}
    - {name: agents, every: 1s, syslog: 'unix://%[6]s/agents'}
`, mount, remote, repo, kept, tcp.address, copies, unread.Addr()))
	require.NoError(t, os.Symlink(copies+"/socket", copies+"/link")) // as /dev/log
	private, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: h.Scope("a") + "/s", Net: "unixgram"})
	require.NoError(t, err)
	defer private.Close()
	require.NoError(t, os.Symlink(h.Scope("a")+"/s", copies+"/agents"))
	h.Start()
	all := []string{"mount", "repo", "copies", "tcp", "socket"}
	has := func(name string) bool {
		return regexp.MustCompile(`anchor ` + name + `: has the head of \d+ lines`).MatchString(h.Must("ps"))
	}
	for range 2 {
		h.Must("call", "--agent", "a", "write_file", "path=f", "content=x")
		for _, name := range all {
			h.Eventually(name+" has a head", func() bool { return has(name) })
		}
		anchored := strings.Count(h.Must("audit", "--json"), `"outcome":"anchored"`)
		h.Must("call", "--agent", "a", "write_file", "path=f", "content=y")
		h.Eventually("they have more", func() bool {
			return strings.Count(h.Must("audit", "--json"), `"outcome":"anchored"`) >= anchored+len(all)
		})
	}
	h.Eventually("the alarms", func() bool {
		ps, metrics := h.Must("ps"), h.Must("metrics")
		return strings.Contains(ps, "anchor absent: LATE, no head yet: ") &&
			regexp.MustCompile("anchor unread: LATE.* the receiver does not close the connection").MatchString(ps) &&
			regexp.MustCompile("anchor agents: LATE.* which is scopefs's own or an agent's").MatchString(ps) &&
			strings.Contains(metrics, `scopefs_anchor_late{name="absent"} 1`) && strings.Contains(metrics, `scopefs_anchor_late{name="mount"} 0`)
	})
	events := h.Must("audit", "--json")
	for _, name := range []string{"absent", "unread", "agents"} {
		assert.Equal(t, 1, strings.Count(events, `"detail":"`+name+`: `), name)
		assert.NotContains(t, events, `"detail":"`+name+` has the head`, "what is not read is not kept")
	}

	h.Stop()

	// Each is what scopefs audit verify takes.
	dir := h.Base + "/state/audit"
	key := filepath.Join(t.TempDir(), "key.pub")
	shell("cp " + dir + "/key.pub " + key)
	verify := func(name string) (string, error) {
		how := map[string]string{
			"mount": "%s --checkpoint " + mount + "/heads", "copies": "%s --checkpoint " + kept,
			"tcp": "%s --checkpoint " + copies + "/tcp", "socket": "%s --checkpoint - <" + copies + "/datagrams",
			"repo": "git -C " + remote + " log " + repo + " | %s --checkpoint -",
		}[name]
		out, err := exec.Command("/bin/sh", "-c", fmt.Sprintf(how, harness.Program+" audit verify --key "+key)+" "+dir).CombinedOutput()
		return string(out), err
	}
	for _, name := range all {
		out, err := verify(name)
		require.NoError(t, err, "%s: %s", name, out)
		assert.Regexp(t, `heads from elsewhere that match: ([2-9]|\d\d)`, out, name)
	}

	// Whoever has the log's key writes it anew.
	names, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	for _, name := range names {
		if !strings.HasPrefix(filepath.Base(name), "key") {
			require.NoError(t, os.RemoveAll(name))
		}
	}
	h.Put("scopefs.yaml", "")
	h.Start()
	u := h.Connect("a")
	for range 200 { // more lines than the first log had
		u.Call("write_file", args{"path": "f", "content": "z"})
	}
	h.Stop()
	for _, name := range all {
		out, err := verify(name)
		require.Error(t, err, "%s: %s", name, out)
		assert.Regexp(t, "has another root", out, name)
	}
}
