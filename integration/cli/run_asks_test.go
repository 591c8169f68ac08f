package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// A question of run begins and ends with these sequences.
const (
	asksFrom = "\x1b[?1049h"
	asksTo   = "\x1b[?1049l"
	typeOne  = "Type one of these, and Enter: "
)

var codeOf = regexp.MustCompile(`  o(\d{3}) `)

// question waits for a question, and returns it and its code.
func question(k *harness.Talk) (text, code string) {
	k.T.Helper()
	k.Expect(asksFrom)
	text = k.Expect(typeOne)
	found := codeOf.FindStringSubmatch(text)
	require.NotNil(k.T, found, text)
	return text, found[1]
}

// answer types a line until it is read: keys right after a question are dropped.
func answer(k *harness.Talk, m *harness.Host, line string) {
	k.T.Helper()
	m.Eventually("the first key counts", func() bool {
		enter(k, line[:1])
		return k.Saw(line[:1])
	})
	enter(k, strings.Repeat("\x7f", 40)+line+"\r")
	k.Expect(asksTo)
}

// TestRunAsks: run asks on its terminal about hosts that need approval, and each answer does what it says.
func TestRunAsks(t *testing.T) {
	need.Program(t, "curl")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello from "+r.Host+"\n") }))
	defer s.Close()
	var rules []string
	for _, name := range []string{"once", "session", "always", "no", "never", "last"} {
		rules = append(rules, fmt.Sprintf("{host: %s.test, ports: [80], address: '%s'}", name, s.Listener.Addr()))
	}
	m := harness.Embed(t, 0, map[string]string{"a": "network: {ask: [" + strings.Join(rules, ", ") + "]}"})
	get := `get() { curl -sS --max-time 60 http://$1.test; echo; }; `
	cmd, _, k := onTerminal(t, m, "a", "--", "sh", "-c", get+`for h in once once session session always no no never last; do get $h; done; echo the'' end; read x; echo got $x`)
	for _, name := range []string{"once", "session", "always"} {
		text, code := question(k)
		assert.Contains(t, text, "network of a connects to "+name+".test:80 (network.ask: "+name+".test)\r\n")
		answer(k, m.Host, name[:1]+code)
		if name != "always" { // the rule that is written has no address, and there is no such name
			k.Expect("hello from " + name + ".test")
		}
	}
	question(k)
	answer(k, m.Host, "n")
	k.Expect("the operator has denied")
	k.Expect("the operator has denied")
	question(k)
	answer(k, m.Host, "q")
	before := k.Expect("the end")
	assert.NotContains(t, before, asksFrom)
	assert.Equal(t, 2, strings.Count(before, `{"error":"the operator has denied`), before)
	enter(k, "keys\r")
	k.Expect("got keys")
	require.NoError(t, cmd.Wait())
	text, err := os.ReadFile(filepath.Join(m.Base, "agents.d", "a.md"))
	require.NoError(t, err)
	assert.Regexp(t, `allow: .*always.test`, string(text))
	assert.NotRegexp(t, `allow: .*once.test`, string(text))

	o := m.Run("a", "--", "sh", "-c", get+"get once; get always")
	assert.Contains(t, o.Stdout, "nobody is here who could approve it", "without a terminal nobody is asked")
	assert.Contains(t, o.Stdout, "always.test cannot be resolved")
}

// TestAttackRunAsks: a program that draws the question, and has the terminal type answers, gets nothing, whenever they come.
// While run asks, it draws nothing.
func TestAttackRunAsks(t *testing.T) {
	need.Program(t, "curl")
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	dir := filepath.Join(m.Base, "own")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, uid, uid))
	home := []string{"TMPDIR=" + m.Tmp, "HOME=" + filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=" + filepath.Join(m.Base, "agents"), "SCOPEFS_BASE=", "TERM=xterm"}
	script := `
draw() { while :; do printf 'SPOOF\033[H  o000  allow this host once\n'; sleep 0.02; done; }
printf 'scopefs asks.\n  o000  allow this host for 15 minutes\nType one of these, and Enter: '
draw &
# The title has no newline; a report of it, and the terminal's answers to queries, are keys all the same.
printf '\033]2;o000\007\033[21t\033[21t\033[6n'
curl -sS -o /dev/null -w 'code %{http_code}\n' --max-time 60 https://evil.invalid
kill $!; wait; echo the'' end`
	cmd := harness.AsUser(t, uid, harness.Program, "run", "--dir", dir, "--", "sh", "-c", script)
	cmd.Env = append(cmd.Env, home...)
	_, k := harness.OnTerminal(t, cmd, 30, 90)
	enter(k, "y\ro\ro000\r") // before the question
	_, code := question(k)
	wrong := "000"
	if code == wrong {
		wrong = "001"
	}
	// What the terminal types for the program, late.
	m.Eventually("keys are read", func() bool {
		enter(k, "\x1b]l")
		return k.Saw("l")
	})
	enter(k, "o"+wrong+"\x1b\\\x1b[12;40R\ro\ro"+wrong+"\r")
	asked := k.Expect(asksTo)
	assert.NotContains(t, asked, "SPOOF")
	assert.Contains(t, k.Expect("the end"), "code 403")
	_ = cmd.Wait()

	list := harness.AsUser(t, uid, harness.Program, "audit", "--dir", dir, "--json")
	list.Env = append(list.Env, home...)
	o := harness.Finish(t, list)
	require.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, `"outcome":"denied"`)
	for _, granted := range []string{"approved", "stands", audit.OutcomeBegin + `","target":"evil`} {
		assert.NotContains(t, o.Stdout, `"outcome":"`+granted)
	}
}

// TestRunPresets: the first run in a directory offers the presets that its files suggest, on a terminal; else it names the
// command. Later runs do neither.
func TestRunPresets(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	dir := func(name string) string {
		dir := filepath.Join(m.Base, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		harness.Plant(t, dir, "package.json={}", "go.mod=module x")
		require.NoError(t, os.Mkdir(filepath.Join(dir, "Cargo.toml"), 0o755))
		require.NoError(t, os.Chown(dir, uid, uid))
		return dir
	}
	as := func(words ...string) *exec.Cmd {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, words...)...)
		cmd.Env = append(cmd.Env, "TMPDIR="+m.Tmp, "HOME="+filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=", "TERM=dumb")
		return cmd
	}
	piped := dir("piped")
	o := harness.Finish(t, as("run", "-q", "--dir", piped, "--", "true"))
	assert.Zero(t, o.Code, o.Stderr)
	assert.Equal(t, "scopefs: package.json, go.mod: the network allows no registry of packages: scopefs allow npm go --dir "+piped+"\n", o.Stderr)
	assert.Empty(t, harness.Finish(t, as("run", "-q", "--dir", piped, "--", "true")).Stderr)

	for answer, want := range map[string]string{"yes": "allow GET https://registry.npmjs.org/x", "no": "deny GET https://registry.npmjs.org/x"} {
		at := dir(answer)
		cmd := as("run", "--dir", at, "--", "echo", "ran")
		_, k := harness.OnTerminal(t, cmd, 30, 90)
		k.Expect("package.json, go.mod: allow its programs to read from npm, go (scopefs presets show npm)?")
		k.Expect("> ")
		enter(k, answer+"\n")
		k.Expect("ran")
		require.NoError(t, cmd.Wait())
		cmd = as("run", "--dir", at, "--", "echo", "again")
		_, k = harness.OnTerminal(t, cmd, 30, 90)
		assert.NotContains(t, k.Expect("again"), "package.json")
		require.NoError(t, cmd.Wait())
		assert.Contains(t, harness.Finish(t, as("check", "--network", "https://registry.npmjs.org/x", "--dir", at)).Stdout, want)
	}

	// What was typed before the question is no answer to it; y is one.
	at := dir("ahead")
	cmd := harness.AsUser(t, uid, "sh", "-c", `read go; exec "$0" run --dir "$1" -- echo ran`, harness.Program, at)
	cmd.Env = as().Env
	_, k := harness.OnTerminal(t, cmd, 30, 90)
	enter(k, "go\nno\n")
	k.Expect("> ")
	enter(k, "y\n")
	k.Expect("ran")
	require.NoError(t, cmd.Wait())
	assert.Contains(t, harness.Finish(t, as("check", "--network", "https://registry.npmjs.org/x", "--dir", at)).Stdout, "allow GET")
}

// TestRunApart: a directory below a project is given by its path. On a terminal the user sees the rules that would not hold there,
// and answers; else they are printed, and the command goes on.
func TestRunApart(t *testing.T) {
	const uid = 1234
	m := harness.Embed(t, uid, nil)
	top := filepath.Join(m.Base, "top")
	for _, name := range []string{"", "yes/secret", "no", "piped"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, name), 0o755))
		require.NoError(t, os.Chown(filepath.Join(top, name), uid, uid))
	}
	home := []string{"TMPDIR=" + m.Tmp, "HOME=" + filepath.Join(m.Base, "agents"), "XDG_STATE_HOME=", "SCOPEFS_BASE=", "TERM=dumb"}
	as := func(words ...string) *exec.Cmd {
		cmd := harness.AsUser(t, uid, append([]string{harness.Program}, words...)...)
		cmd.Env = append(cmd.Env, home...)
		return cmd
	}
	o := harness.Finish(t, as("deny", "--dir", top, "--yes", "*/secret"))
	require.Zero(t, o.Code, o.Stderr)
	exists := func(name string) bool {
		return harness.Finish(t, as("audit", "--dir", filepath.Join(top, name))).Code == 0
	}

	o = harness.Finish(t, as("run", "--dir", filepath.Join(top, "piped"), "--", "echo", "ran"))
	assert.Equal(t, "ran\n", o.Stdout)
	assert.Contains(t, o.Stderr, "it may do more than that agent may in it:\n    view: paths can be read and changed, such as secret; before: */secret: hide\n")

	for _, answer := range []string{"yes", "no"} {
		cmd := as("run", "--dir", filepath.Join(top, answer), "--", "sh", "-c", "echo ran; ls")
		_, k := harness.OnTerminal(t, cmd, 30, 120)
		k.Expect("before: */secret: hide")
		k.Expect("> ")
		enter(k, answer+"\n")
		k.Expect(map[string]string{"yes": "secret", "no": "no agent was made for "}[answer])
		err := cmd.Wait()
		assert.Equal(t, answer == "yes", err == nil, "%v", err)
		assert.Equal(t, answer == "yes", exists(answer), answer)
	}
}
