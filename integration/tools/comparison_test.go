package tools

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// A newcomer is an ordinary user with a project of node, Python and Go in one repository, and an agent program that installs
// its dependencies, edits, tests, commits and writes a pull request for it. The registries of packages and the models are on
// loopback.
type newcomer struct {
	*harness.Way
	t        *testing.T
	home     string
	tmp      string       // TMPDIR
	path     string       // PATH
	at       net.Addr     // of the registries and models, by their real names
	ca       string       // of their certificates
	network  string       // a network namespace for commands; "": that of the test
	others   string       // of sh: makes the names lead there, for programs without presets
	mu       sync.Mutex   // of the next two: the server of models uses them, too
	model    http.Handler // of the next session
	results  []string     // of the session's steps
	commands []string     // that the user has typed
	wrong    []string     // that failed
}

const newcomerUser = 1234

// newcomerHosts are the hosts on loopback, by the preset that allows them.
var newcomerHosts = map[string][]string{
	"anthropic": {"api.anthropic.com"}, "openai": {"api.openai.com"}, "npm": {"registry.npmjs.org"}, "pypi": {"pypi.org", "files.pythonhosted.org"}, "go": {"proxy.golang.org"},
}

func newNewcomer(t *testing.T) *newcomer {
	n := &newcomer{Way: harness.Embed(t, newcomerUser, nil), t: t}
	n.home, n.tmp = filepath.Join(n.Base, "home"), n.Tmp
	bin := filepath.Join(n.Base, "bin")
	clients, err := filepath.Abs("../../bin/clients")
	require.NoError(t, err)
	for _, dir := range []string{n.home, bin} {
		require.NoError(t, os.Mkdir(dir, 0o755))
	}
	require.NoError(t, os.Chown(n.home, newcomerUser, newcomerUser))
	for name, to := range map[string]string{
		"claude": "node_modules/" + agentPrograms[runtime.GOARCH]["claude"], "codex": "node_modules/" + agentPrograms[runtime.GOARCH]["codex"],
		"srt": "node_modules/@anthropic-ai/sandbox-runtime/dist/cli.js",
	} {
		require.NoError(t, os.Symlink(filepath.Join(clients, to), filepath.Join(bin, name)))
	}
	require.NoError(t, os.Symlink(harness.Program, filepath.Join(bin, "scopefs")))
	n.path = bin + ":" + os.Getenv("SCOPEFS_COMPARE") + ":/usr/local/bin:/usr/local/go/bin:/usr/bin:/bin"
	r := newRegistry(t)
	var names []string
	for _, hosts := range newcomerHosts {
		names = append(names, hosts...)
	}
	n.at, n.ca = secureServer(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.Host, "api.") {
			n.serveModel(w, req)
		} else {
			r.ServeHTTP(w, req)
		}
	}, names...)
	for preset, hosts := range newcomerHosts { // in the place of those that lead to the real hosts
		text := "description: on loopback\nallow:\n"
		for _, host := range hosts {
			rule := "methods: [GET, HEAD]"
			if preset == "npm" {
				rule = "methods: [GET, HEAD, POST]"
			}
			switch preset {
			case "anthropic":
				rule = "credential: {header: x-api-key, from: {env: ANTHROPIC_API_KEY}}"
			case "openai":
				rule = `credential: {header: Authorization, format: "Bearer %s", from: {env: OPENAI_API_KEY}}`
			}
			text += fmt.Sprintf("  - {host: %s, address: '%s', ca: %q, %s}\n", host, n.at, n.ca, rule)
		}
		n.write("home/.config/scopefs/presets.d/"+preset+".yaml", text)
	}
	n.write("home/.profile", "PATH=$PATH:/usr/local/go/bin\n") // as go.dev says
	n.write("home/.gitconfig", "[user]\n\tname = New\n\temail = new@example.org\n[init]\n\tdefaultBranch = main\n")
	return n
}

// write writes a file of the user's.
func (n *newcomer) write(rel, text string) {
	n.t.Helper()
	at := filepath.Join(n.Base, rel)
	require.NoError(n.t, os.MkdirAll(filepath.Dir(at), 0o755))
	require.NoError(n.t, os.WriteFile(at, []byte(text), 0o644))
	for dir := at; dir != n.Base; dir = filepath.Dir(dir) {
		require.NoError(n.t, os.Lchown(dir, newcomerUser, newcomerUser))
	}
}

// shell runs a line of the user's in a directory of HOME.
func (n *newcomer) shell(dir, line string) harness.Outcome {
	n.t.Helper()
	cmd := n.command(dir, line)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errs, 10*time.Second
	_ = cmd.Run()
	n.t.Logf("%s$ %s\n%s%s", dir, line, &out, &errs)
	return harness.Outcome{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
}

func (n *newcomer) command(dir, line string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	n.t.Cleanup(cancel)
	argv := harness.Setpriv(newcomerUser, "bash", "-c", `cd "$0" && eval "$1"`, filepath.Join(n.home, dir), line)
	if n.network != "" {
		argv = append([]string{"nsenter", "--net=" + n.network}, argv...)
	}
	private := harness.Privately(n.t, `mknod -m 666 "$D/fuse" c 10 229; mount --bind "$D/fuse" /dev/fuse; `+n.others,
		argv...)
	cmd := exec.CommandContext(ctx, private.Path, private.Args[1:]...)
	cmd.Env = append(private.Env, "HOME="+n.home, "USER=new", "PATH="+n.path, "TMPDIR="+n.tmp, "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "SCOPEFS_BASE=", "GOTMPDIR=",
		"ANTHROPIC_API_KEY=sesame-open-4711-4712", "OPENAI_API_KEY=sesame-open-4711-4712")
	return cmd
}

// types is shell for a command that counts.
func (n *newcomer) types(dir, line string) {
	n.t.Helper()
	n.commands = append(n.commands, line)
	if o := n.shell(dir, line); o.Code != 0 {
		n.wrong = append(n.wrong, line)
	}
}

// byName makes the names of the hosts lead to this host, for programs that have no presets. The proxy of sandbox-runtime
// connects to other hosts alone: comparison.sh makes a network namespace that is one.
func (n *newcomer) byName() {
	var at string
	all, err := net.InterfaceAddrs()
	require.NoError(n.t, err)
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			at = ip.IP.String()
		}
	}
	require.NotEmpty(n.t, at, "this host has no address but loopback")
	l, err := net.Listen("tcp", at+":443")
	require.NoError(n.t, err)
	n.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", n.at.String())
			if err != nil {
				from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); to.Close() }()
			go func() { _, _ = io.Copy(from, to); from.Close() }()
		}
	}()
	names := ""
	for _, hosts := range newcomerHosts {
		names += " " + strings.Join(hosts, " ")
	}
	n.write("ca.pem", n.ca)
	n.write("others/x", "")
	n.tmp = filepath.Join(n.Base, "others") // they leave files
	const bundle = "/etc/ssl/certs/ca-certificates.crt"
	n.others = fmt.Sprintf(`printf '127.0.0.1 localhost\n%s%s\n' >"$D/hosts"; mount --bind "$D/hosts" /etc/hosts; cat %s %s >"$D/ca"; chmod 644 "$D/ca" "$D/hosts"; mount --bind "$D/ca" %s; `+
		"export NODE_EXTRA_CA_CERTS=%s SSL_CERT_FILE=%s PIP_CERT=%s; ", at, names, bundle, filepath.Join(n.Base, "ca.pem"), bundle, bundle, bundle, bundle)
}

// project makes a repository whose tests fail until the session has edited it.
func (n *newcomer) project(name string) {
	n.t.Helper()
	for file, text := range map[string]string{
		"package.json":     `{"name": "shop", "private": true, "dependencies": {"greet": "1.0.0"}, "scripts": {"test": "node --test"}}` + "\n",
		"web.js":           "exports.hello = require('greet') + '?'\n",
		"web.test.js":      "require('node:test')('hello', () => require('node:assert').equal(require('./web').hello, 'hello of npm!'))\n",
		"requirements.txt": "greet==1.0\n",
		"test_jobs.py":     "import unittest, greet\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(greet.word, 'hello of pip')\n",
		"go.mod":           "module example.org/shop\n\ngo 1.21\n\nrequire example.test/greet v1.0.0\n",
		"main.go":          "package shop\n\nimport _ \"example.test/greet\"\n",
		"go.sum": "example.test/greet v1.0.0 " + moduleSum(map[string]string{"example.test/greet@v1.0.0/go.mod": "module example.test/greet\n", "example.test/greet@v1.0.0/greet.go": "package greet\n"}) +
			"\nexample.test/greet v1.0.0/go.mod " + moduleSum(map[string]string{"go.mod": "module example.test/greet\n"}) + "\n",
		".gitignore": "node_modules/\nvendor-py/\npatches/\n",
	} {
		n.write("home/"+name+"/"+file, text)
	}
	o := n.shell(name, "git init -q && git add -A && git commit -qm 'A shop'")
	require.Zero(n.t, o.Code, "%s%s", o.Stdout, o.Stderr)
}

// moduleSum returns the h1 hash of files, as in go.sum.
func moduleSum(files map[string]string) string {
	var all string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(files[name])), name)
	}
	sum := sha256.Sum256([]byte(all))
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
}

// steps are what the session does, by the command of a shell; the edit of web.js has its own tool.
var steps = []struct{ name, command string }{
	{"npm install", "npm install"},
	{"pip install", "python3 -m pip install --target vendor-py -r requirements.txt"},
	{"go mod download", "go mod download"},
	{"edit", ""},
	{"npm test", "npm test"},
	{"python tests", "PYTHONPATH=vendor-py python3 -m unittest"},
	{"go build", "go build ./..."}, // go test would compile the standard library first
	{"git commit", "git checkout -qb fix && git commit -qam 'Greet aloud' && git log --oneline"},
	{"pull request", "git format-patch -o patches main | grep ."},
}

// session begins to count anew, and sets a model that does the steps once.
func (n *newcomer) session(c programCase, dir string) {
	c.api.lax = true
	n.commands, n.wrong = nil, nil
	var turns []func(string) turn
	for i, step := range steps {
		turns = append(turns, func(last string) turn {
			if i > 0 {
				n.result(last)
			}
			if step.command == "" {
				return c.edit(filepath.Join(dir, "web.js"), "exports.hello = require('greet') + '?'", "exports.hello = require('greet') + '!'")
			}
			return c.bash(step.command + " && echo STEP-DONE; git diff --stat")
		})
		if step.command == "" { // these programs want to read a file before they edit it
			read := func(last string) turn {
				n.result(last)
				return c.read(filepath.Join(dir, "web.js"))
			}
			edit := func(string) turn {
				return c.edit(filepath.Join(dir, "web.js"), "exports.hello = require('greet') + '?'", "exports.hello = require('greet') + '!'")
			}
			turns = append(turns[:len(turns)-1], read, edit)
		}
	}
	turns = append(turns, func(last string) turn { n.result(last); return turn{answer: "all is done"} })
	_, model := newModel(n.t, c.api, turns...)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.model, n.results = model, nil
}

func (n *newcomer) serveModel(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	model := n.model
	n.mu.Unlock()
	model.ServeHTTP(w, r)
}

// result keeps what a step said.
func (n *newcomer) result(said string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.results = append(n.results, said)
}

// done returns the steps that worked, and logs the others.
func (n *newcomer) done() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	worked := map[string]bool{}
	for i, step := range steps {
		var said string
		if i < len(n.results) {
			said = n.results[i]
		}
		worked[step.name] = strings.Contains(said, "STEP-DONE") || step.command == "" && strings.Contains(n.after(i), "web.js")
		if !worked[step.name] {
			n.t.Logf("%s: %s", step.name, said)
		}
	}
	return worked
}

// after returns the result of the step after one. The caller holds mu.
func (n *newcomer) after(i int) string {
	if i+1 < len(n.results) {
		return n.results[i+1]
	}
	return ""
}

// TestClientsProjects: a new user of scopefs needs few commands, and none of them is wrong: for the first project six, for the
// second one, and a colleague who clones the first one two. docs/comparison.md has the figures.
func TestClientsProjects(t *testing.T) {
	need.Once(t)
	needClients(t)
	n := newNewcomer(t)
	n.project("shop")
	const run = "scopefs run --dir . --for claude -- --print --dangerously-skip-permissions 'do it'"
	n.session(programCases()["claude"], "/workspace")
	n.types("shop", "scopefs allow npm pypi go --yes --dir .")
	n.types("shop", run)
	n.worked("shop")
	assert.LessOrEqual(t, 2+len(n.commands), 6) // and sudo apt install ./scopefs.deb, export ANTHROPIC_API_KEY=KEY

	// Another project, on a terminal: one command, and the answer to a question.
	n.project("other")
	n.session(programCases()["claude"], "/workspace")
	cmd := n.command("other", run)
	_, k := harness.OnTerminal(t, cmd, 40, 110)
	k.Wait = time.Minute
	k.Expect("to read from npm, go, pypi")
	k.Expect("> ")
	_, err := k.R.WriteString("yes\r")
	require.NoError(t, err)
	k.Expect("all is done")
	k.Drain()
	require.NoError(t, cmd.Wait())
	n.worked("other")

	// A colleague clones what the first user has committed.
	n.write("home/shop/.scopefs.yaml", "network: {presets: [npm, pypi, go]}\n")
	o := n.shell("shop", "git checkout -q main && git add .scopefs.yaml && git commit -qm 'Rules for agents' && git clone -q . ../clone")
	require.Zero(t, o.Code, o.Stderr)
	n.session(programCases()["claude"], "/workspace")
	o = n.shell("clone", "scopefs trust --show --json")
	require.Zero(t, o.Code, o.Stderr)
	var shown struct{ Hash string }
	require.NoError(t, json.Unmarshal([]byte(o.Stdout), &shown))
	n.types("clone", "scopefs trust --yes --hash "+shown.Hash) // a person types scopefs trust, and answers its question
	n.types("clone", run)
	n.worked("clone")
	assert.Len(t, n.commands, 2)
}

// TestClientsOtherSandboxes takes the steps of TestClientsProjects in other sandboxes, which docs/comparison.md has in a table.
func TestClientsOtherSandboxes(t *testing.T) {
	if os.Getenv("SCOPEFS_COMPARE") == "" {
		return // integration/tools/comparison.sh sets it, to the directory of socat and rg
	}
	var made []string // by them; git takes /tmp/.git for a repository
	for _, dir := range []string{"/tmp/.git", "/tmp/.codex", "/tmp/.agents", "/tmp/claude"} {
		if _, err := os.Lstat(dir); os.IsNotExist(err) {
			made = append(made, dir)
		}
	}
	t.Cleanup(func() {
		for _, dir := range made {
			_ = os.RemoveAll(dir)
		}
	})
	srt := func(network, write string) string {
		return `{"network": {"allowedDomains": [` + network + `], "deniedDomains": []}, "filesystem": {"denyRead": [], "allowWrite": [` + write + `], "denyWrite": []}}`
	}
	const hosts = `"api.anthropic.com", "registry.npmjs.org", "pypi.org", "files.pythonhosted.org", "proxy.golang.org"`
	const claude = "srt claude --print --dangerously-skip-permissions 'do it'"
	const provider = "model_provider = \"own\"\n[model_providers.own]\nname = \"own\"\nwire_api = \"responses\"\nenv_key = \"OPENAI_API_KEY\"\nsupports_websockets = false\nbase_url = \"MODEL/v1\"\n"
	const dirs = "mkdir -p ~/.claude ~/.npm ~/.cache ~/go /tmp/claude && echo '{}' >~/.claude.json && " // srt leaves out what does not exist
	const codex = "codex exec --sandbox workspace-write 'do it'"
	const open = "[sandbox_workspace_write]\nnetwork_access = true\n"
	for _, test := range []struct{ name, program, file, text, command string }{
		{"srt, no settings", "claude", "", "", claude},
		{"srt, hosts", "claude", ".srt-settings.json", srt(hosts, ``), dirs + claude},
		{"srt, hosts, project", "claude", ".srt-settings.json", srt(hosts, `".", "/tmp/claude"`), dirs + claude},
		{"srt, hosts, project, directories of HOME", "claude", ".srt-settings.json", srt(hosts, `".", "/tmp/claude", "~/.claude", "~/.claude.json", "~/.npm", "~/.cache", "~/go"`), dirs + claude},
		{"Codex, workspace-write", "codex", ".codex/config.toml", provider, codex},
		{"Codex, network", "codex", ".codex/config.toml", provider + open, codex},
		{"Codex, network, directories of HOME and .git", "codex", ".codex/config.toml", provider + open + "writable_roots = [\"HOME/shop/.git\", \"HOME/.npm\", \"HOME/.cache\", \"HOME/go\"]\n", dirs + codex},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNewcomer(t)
			n.byName()
			if test.program == "claude" {
				n.network = os.Getenv("SCOPEFS_COMPARE_NET")
			}
			n.project("shop")
			// rustls, in Codex, takes no certificate of an authority for a host's.
			model := httptest.NewServer(http.HandlerFunc(n.serveModel))
			defer model.Close()
			if test.file != "" {
				n.write("home/"+test.file, strings.NewReplacer("HOME", n.home, "MODEL", model.URL).Replace(test.text))
			}
			n.session(programCases()[test.program], filepath.Join(n.home, "shop"))
			o := n.shell("shop", test.command)
			worked := n.done()
			var not []string
			for _, step := range steps {
				if !worked[step.name] {
					not = append(not, step.name)
				}
			}
			fmt.Printf("| %s | status %d | %d of %d steps; not: %s |\n", test.name, o.Code, len(steps)-len(not), len(steps), strings.Join(not, ", "))
		})
	}
}

// worked checks that all steps of a session worked, and no command was wrong.
func (n *newcomer) worked(dir string) {
	n.t.Helper()
	for step, worked := range n.done() {
		assert.True(n.t, worked, "%s: %s", dir, step)
	}
	assert.Empty(n.t, n.wrong)
	patches, err := filepath.Glob(filepath.Join(n.home, dir, "patches", "*.patch"))
	require.NoError(n.t, err)
	assert.Len(n.t, patches, 1)
}
