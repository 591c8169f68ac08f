package tools

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// sshHost is an sshd of OpenSSH, and the user's own ssh-agent with the keys key and other. HOME knows the host as git.test.
type sshHost struct {
	dir, port, login string
	log              string // of sshd
}

func newSSHHost(t *testing.T) *sshHost {
	sshd := "/usr/sbin/sshd"
	if _, err := os.Stat(sshd); err != nil {
		need.Skip(t, "no openssh-server here: ", err)
	}
	need.Program(t, "ssh-agent")
	me, err := user.Current()
	require.NoError(t, err)
	if me.Uid == "0" {
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755)) // sshd of root wants it
	}
	s := &sshHost{dir: t.TempDir(), login: me.Username + "@git.test"}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, s.port, _ = net.SplitHostPort(free.Addr().String())
	free.Close()
	s.log = s.dir + "/sshd.log"
	for _, name := range []string{"host", "key", "other"} {
		s.run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", s.dir+"/"+name)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		require.NoError(t, err)
		return string(text)
	}
	s.put(t, "authorized", read("key.pub")+read("other.pub"))
	s.put(t, "home/.ssh/known_hosts", "git.test "+read("host.pub"))
	s.put(t, "home/.gitconfig", "[user]\n\tname = a\n\temail = a@b\n[init]\n\tdefaultBranch = main\n")
	s.put(t, "signers", "a@b "+read("key.pub"))
	s.put(t, "sshd_config", fmt.Sprintf("ListenAddress 127.0.0.1\nPort %s\nHostKey %s/host\nPidFile none\nAuthorizedKeysFile %s/authorized\n"+
		"StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel VERBOSE\n", s.port, s.dir, s.dir))
	t.Setenv("HOME", s.dir+"/home")
	t.Setenv("SSH_AUTH_SOCK", s.dir+"/agent")
	s.start(t, sshd, "-D", "-E", s.log, "-f", s.dir+"/sshd_config")
	s.start(t, "ssh-agent", "-D", "-a", s.dir+"/agent")
	require.Eventually(t, func() bool {
		out, err := exec.Command("ssh-add", "-q", s.dir+"/key", s.dir+"/other").CombinedOutput()
		return err == nil && len(out) == 0
	}, time.Minute, 20*time.Millisecond)
	require.Eventually(t, func() bool { text, _ := os.ReadFile(s.log); return strings.Contains(string(text), "Server listening") }, time.Minute, 20*time.Millisecond)
	s.run(t, "git", "init", "-q", "--bare", s.dir+"/remote.git")
	return s
}

func (s *sshHost) put(t *testing.T, name, text string) {
	at := filepath.Join(s.dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(t, os.WriteFile(at, []byte(text), 0o600))
}

func (s *sshHost) run(t *testing.T, words ...string) string {
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", words, out)
	return string(out)
}

// start starts a program that ends with the test.
func (s *sshHost) start(t *testing.T, words ...string) {
	cmd := exec.Command(words[0], words[1:]...)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// network is the rule that lets an agent reach the host.
func (s *sshHost) network() string {
	return fmt.Sprintf("network: {allow: [{host: git.test, address: '127.0.0.1:%s', ports: [22]}]}", s.port)
}

// TestSSH: with a named key of the user's agent, git pushes over ssh and signs commits; each use is recorded. Nothing else can be done with
// the user's agent: not with another key, by a forwarded agent, to another host, or for a text that is not shown.
func TestSSH(t *testing.T) {
	need.Program(t, "python3")
	s := newSSHHost(t)
	h := harness.LayOut(t, nil)
	h.Define("a", s.network())
	h.Define("none", s.network())
	fingerprint := strings.Fields(s.run(t, "ssh-keygen", "-lf", s.dir+"/key.pub"))[1]
	h.Define("asks", s.network()+"\nssh_keys: {'"+fingerprint+"': ask}")
	for _, id := range []string{"a", "none", "asks"} {
		require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	}
	h.Start()
	run := func(script string) string {
		out, errs, _ := h.Try("run", "a", "-q", "--ssh-agent", s.dir+"/key:allow", "--", "bash", "-c", script)
		return out + errs
	}
	out := run("git init -q r && cd r && git commit -qS --allow-empty -m 'The first' && git push -q " + s.login + ":" + s.dir + "/remote.git HEAD:main && echo pushed")
	assert.Contains(t, out, "pushed")
	assert.Contains(t, s.run(t, "git", "-C", s.dir+"/remote.git", "-c", "gpg.ssh.allowedSignersFile="+s.dir+"/signers", "verify-commit", "-v", "main"), `Good "git" signature for a@b`)
	for op, target := range map[string]string{"login": s.login, "sign": "commit The first"} {
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindKey, Op: op, Target: target, Verdict: audit.Allow, Detail: fingerprint}), op)
	}

	out = run("ssh-add -l; ssh-add -D; ssh-add -L >/tmp/key.pub; ls $SSH_AUTH_SOCK; find / -name 'known_hosts*' 2>/dev/null; wc -l </etc/ssh/ssh_known_hosts")
	assert.Contains(t, out, fingerprint)
	assert.NotContains(t, out, strings.Fields(s.run(t, "ssh-keygen", "-lf", s.dir+"/other.pub"))[1], "a key that was not named")
	assert.NotContains(t, out, s.dir)
	assert.Contains(t, s.run(t, "ssh-add", "-l"), fingerprint, "the user's agent still has it")

	sign := "ssh-add -L >/tmp/key.pub; echo x >/tmp/x; ssh-keygen -Y sign -n %s -f /tmp/key.pub /tmp/x; ls /tmp/x.sig"
	for namespace, says := range map[string]string{"git": "the text of a commit is not shown", "file": `namespace "file" is not shown`} {
		out = run(fmt.Sprintf(sign, namespace))
		assert.Contains(t, out, says)
		assert.Contains(t, out, "cannot access '/tmp/x.sig'")
	}
	out = run("echo x >/tmp/x; ssh-add -L >/tmp/key.pub; /run/scopefs/ssh -Y sign -n git -f /tmp/key.pub /tmp/x")
	assert.Contains(t, out, "this is no commit and no tag")

	// A refusal that quotes the client is short: the command's client goes on, and its terminal gets no sequence.
	hostile := `import os, socket, struct
field = lambda b: struct.pack('>I', len(b)) + b
bind = field(field(b'\x1b]0;title\x07' + b'x' * 600000)) + field(b'id') + field(b'') + b'\0'
body = b'\x1b' + field(b'session-bind@openssh.com') + bind
s = socket.socket(socket.AF_UNIX)
s.connect(os.environ['SSH_AUTH_SOCK'])
s.sendall(field(body))
print(s.recv(5))
`
	out, errs, status := h.Try("run", "a", "-q", "--ssh-agent", s.dir+"/key:allow", "--", "python3", "-c", hostile)
	assert.Zero(t, status)
	assert.Contains(t, out, "x05", "a failure")
	assert.Contains(t, errs, "unknown key algorithm")
	assert.NotContains(t, errs, "\x1b")
	assert.Less(t, len(errs), 4<<10)

	at := "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p " + s.port + " " + strings.TrimSuffix(s.login, "git.test") + "127.0.0.1 echo escaped"
	out = run("ssh -A " + s.login + ` 'ssh-add -l; exec ` + at + `'`)
	assert.Contains(t, out, "a forwarded agent is refused")
	assert.NotContains(t, out, "escaped")
	assert.Contains(t, run("ssh -o BatchMode=yes other.test"), "other.test:22 is not allowed")
	s.put(t, "home/.ssh/known_hosts", "elsewhere.test "+strings.Join(strings.Fields(s.run(t, "cat", s.dir+"/host.pub"))[:2], " ")+"\n")
	out = run("ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null " + s.login + " echo escaped")
	assert.Contains(t, out, "no host that the agent may connect to has this host key in known_hosts")
	assert.NotContains(t, out, "escaped")
	s.put(t, "home/.ssh/known_hosts", "git.test "+s.run(t, "cat", s.dir+"/host.pub"))

	// Without a key.
	out, errs, code := h.Try("run", "none", "-q", "--", "bash", "-c", "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; ssh "+s.login)
	assert.NotZero(t, code)
	assert.Contains(t, out+errs, "this agent has no SSH key")
	_, errs, code = h.Try("run", "none", "-q", "--ssh-agent", "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU", "--", "true")
	assert.Zero(t, code)
	assert.Contains(t, errs, "your SSH agent does not have the key SHA256:47DEQ")

	// A definition that asks: what the operator decides about is the text.
	got := make(chan string, 1)
	go func() {
		out, errs, _ := h.Try("run", "asks", "-q", "--", "bash", "-c", "git init -q r && cd r && git commit -qS --allow-empty -m 'Asked for' && echo signed; ssh "+s.login+" echo in")
		got <- out + errs
	}()
	for _, ask := range []struct{ tool, word string }{{"ssh:sign", "approve"}, {"ssh:login", "deny"}} {
		id := ""
		h.Eventually(ask.tool+" waits", func() bool {
			list, _, _ := h.Try("approvals")
			found := regexp.MustCompile(`(?m)^(\S+) +waits +asks +` + ask.tool).FindStringSubmatch(list)
			if found != nil {
				id = found[1]
			}
			return found != nil
		})
		shown := h.Must("approvals", "show", id)
		assert.Contains(t, shown, fingerprint)
		if ask.tool == "ssh:sign" {
			assert.Contains(t, shown, "Asked for")
			assert.Contains(t, shown, `author a \u003ca@b\u003e`, "the text, as JSON")
		} else {
			assert.Contains(t, shown, s.login)
		}
		h.Must("approvals", ask.word, id)
	}
	out = <-got
	assert.Contains(t, out, "signed")
	assert.Contains(t, out, "the operator has denied it")
	assert.NotContains(t, out, "in\n")
	assert.Contains(t, h.Must("agents", "show", "asks"), fingerprint+" (ask)")

	// The user's git signs commits: with a key the agent's are signed, without one a line says that they are not.
	s.put(t, "home/.gitconfig", "[user]\n\tname = a\n\temail = a@b\n[commit]\n\tgpgsign = true\n")
	s.run(t, "git", "init", "-q", s.dir+"/project")
	for _, with := range [][]string{nil, {"--ssh-agent", s.dir + "/key.pub:allow"}} {
		words := append(append([]string{"run", "--dir", s.dir + "/project"}, with...), "--", "git", "commit", "-q", "--allow-empty", "-m", "x")
		cmd := exec.Command(harness.Program, words...)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+s.dir+"/state", "XDG_CONFIG_HOME="+s.dir+"/config", "XDG_RUNTIME_DIR=", "TMPDIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, string(out))
		commit := s.run(t, "git", "-C", s.dir+"/project", "cat-file", "commit", "HEAD")
		assert.Equal(t, with != nil, strings.Contains(commit, "BEGIN SSH SIGNATURE"), string(out))
		assert.Equal(t, with == nil, strings.Contains(string(out), "its commits are not signed: run --ssh-agent KEY"), string(out))
	}

	logged, err := os.Open(s.log)
	require.NoError(t, err)
	defer logged.Close()
	accepted := 0
	for lines := bufio.NewScanner(logged); lines.Scan(); {
		if strings.Contains(lines.Text(), "Accepted publickey") {
			accepted++
		}
	}
	assert.Equal(t, 2, accepted, "the push, and the host of the forwarded agent")
}
