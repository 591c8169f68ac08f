package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

const lasting = "sandbox: {home: lasting}"

// TestHome: HOME is the agent's own, outlives its sandboxes, and is shared by those that
// run at the same time.
func TestHome(t *testing.T) {
	agents := map[string]string{"a": lasting, "b": lasting, "brief": "", "lean": "sandbox: {home: temporary, caches: [npm, go]}"}
	for name, way := range map[string]func(t *testing.T) *harness.Way{
		"daemon": func(t *testing.T) *harness.Way {
			return &harness.Way{Host: harness.NewHost(t, agents), Tmp: t.TempDir()}
		},
		"user": func(t *testing.T) *harness.Way { return harness.Embed(t, 1234, agents) },
	} {
		t.Run(name, func(t *testing.T) {
			m := way(t)
			sh := func(id, script string) string {
				o := m.Run(id, "--", "sh", "-c", script)
				assert.Zero(t, o.Code, "%s: %s", script, o.Stderr)
				return o.Stdout
			}
			assert.Equal(t, "/home/agent\n", sh("a", "echo kept >~/file; echo $HOME"))
			assert.Equal(t, "kept\n", sh("a", "rm -rf /tmp/*; cat ~/file"))
			assert.Empty(t, sh("a", "ls -A /workspace"), "it is not in the view")
			assert.Empty(t, sh("b", "ls -A ~"), "a neighbour has another")
			assert.Equal(t, "/tmp/home\n", sh("brief", "echo x >~/file; ls /home 2>/dev/null; echo $HOME"))
			assert.Empty(t, sh("brief", "ls -A ~"))
			assert.Equal(t, "/home/agent/.npm /home/agent/go/pkg/mod\n", sh("lean", "mkdir $npm_config_cache; echo x >~/file; echo $npm_config_cache $GOMODCACHE $PIP_CACHE_DIR"))
			assert.Equal(t, ".npm\n", sh("lean", "ls -A ~ /home/agent | grep '^[.a-z]'"))
			assert.NoFileExists(t, m.Base+"/state/home/brief")
		})
	}
}

// TestHomeHostile: the host follows nothing that an agent leaves in its HOME, and no
// other user reaches it.
func TestHomeHostile(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": lasting + "\nuser: '1000'", "b": lasting + "\nuser: '1001'"})
	h.Put("outside/secret", strings.Repeat("x", 5<<20))
	h.Must("run", "b", "--", "true")
	h.Must("run", "a", "--", "bash", "-c", "umask 0; chmod 777 ~; cp /bin/true ~/suid; chmod 4755 ~/suid; mkfifo ~/fifo; ln -s "+h.Base+"/outside ~/link; ln -s / ~/root; ln "+
		"~/suid ~/again; cd; for i in {1..50}; do mkdir -p "+strings.Repeat("y", 200)+" && cd $_ || exit; done")
	var shown struct {
		Home struct {
			Path    string
			Bytes   int64
			AtLeast bool `json:"at_least"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(h.Must("agents", "show", "a", "--json")), &shown))
	at := filepath.Join(h.Base, "state/home/a")
	assert.Equal(t, at, shown.Home.Path)
	assert.False(t, shown.Home.AtLeast)
	assert.Less(t, shown.Home.Bytes, int64(5<<20), "no link was followed, and the two names are of one file")
	assert.Greater(t, shown.Home.Bytes, int64(20<<10))
	assert.Contains(t, h.Must("agents", "show", "a"), "lasting ("+at+": ")

	out, err := exec.Command("stat", "-c", "%U:%a", h.Base+"/state/home").Output()
	require.NoError(t, err)
	assert.Equal(t, "root:700\n", string(out))
	for _, uid := range []uint32{1000, 1001, 65534} {
		cmd := exec.Command(at + "/suid")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		assert.ErrorIs(t, cmd.Run(), os.ErrPermission, uid)
	}
	assert.NotContains(t, h.Must("run", "b", "--", "sh", "-c", "ls -R /home 2>&1; true"), "suid")

	h.Define("a", lasting+"\nuser: '1002'")
	h.Must("down", "a")
	h.Must("up", "a")
	_, errs, code := h.Try("run", "a", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "is of user 1000, and the agent runs as user 1002: move it away")
	require.NoError(t, os.Remove(h.Base+"/agents.d/a.md"))
	assert.Contains(t, h.Must("reload"), "a: definition removed, mounted until scopefs down; its HOME stays in "+at)
	assert.DirExists(t, at)
	require.NoError(t, exec.Command("rm", "-rf", at).Run()) // too deep for os.RemoveAll
}

// TestHomeOfOthers: a runner has a HOME of its own, and so has a member's sandbox whose
// caller may change nothing.
func TestHomeOfOthers(t *testing.T) {
	h := harness.Delegating(t, "", map[string]string{"boss": "members: [hand]", "reader": "members: [hand]\nview: {access: read}", "hand": lasting + "\nenv: {OWN: yes1}"})
	h.Must("run", "hand", "--", "sh", "-c", "echo kept >~/file")
	ask := func(caller, task string) string {
		return h.Must("call", "--agent", caller, "delegate", "member=hand", "task="+task)
	}
	look := "echo $HOME $OWN; cat ~/file; ls /home; true"
	assert.Contains(t, ask("boss", look), "/tmp/home\n")
	assert.NotContains(t, ask("boss", look), "kept")
	within := "scopefs call bash command='echo $HOME $OWN; cat ~/file 2>&1; true'"
	assert.Contains(t, ask("boss", within), "/home/agent yes1\nkept")
	out := ask("reader", within)
	assert.Contains(t, out, "/tmp/home yes1\n")
	assert.NotContains(t, out, "kept")
}

// TestHomeGit: git in a sandbox knows the name and address of the user who started
// scopefs, and nothing else of his configuration.
func TestHomeGit(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	require.NoError(t, os.WriteFile(home+"/more", []byte("[user]\n\temail = ada@example.org\n\tsigningkey = sesame-4712\n"), 0o600))
	require.NoError(t, os.WriteFile(home+"/.gitconfig", []byte("[user]\n\tname = Ada \\\"L\\\" Love\n[include]\n\tpath = more\n[credential]\n\thelper = !echo sesame-4712\n"+
		"[core]\n\tfsmonitor = touch "+home+"/ran\n[url \"https://sesame-4712@x\"]\n\tinsteadOf = https://x\n"), 0o600))
	h := harness.NewHost(t, map[string]string{"a": lasting})
	for range 2 { // by the daemon, and without one
		const unsigned = "commit.gpgsign=false\ntag.gpgsign=false\npush.gpgsign=false\n" // no key is there: TestSSH
		assert.Equal(t, "user.name=Ada \"L\" Love\nuser.email=ada@example.org\n"+unsigned, h.Must("run", "a", "--", "git", "config", "--list"))
		assert.Contains(t, h.Must("run", "a", "--", "sh", "-c", "cd && rm -rf r && git init -q r && cd r && git commit -q --allow-empty -m x && git log --format='%an <%ae>'"), "Ada \"L\" Love <ada@example.org>\n")
		h.Stop()
	}
	assert.NoFileExists(t, home+"/ran")
	h.Must("run", "a", "--", "git", "config", "--global", "user.name", "the agent")
	assert.Contains(t, h.Must("run", "a", "--", "git", "config", "--list"), "user.name=the agent")
}
