package tools

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
)

// allowed returns the rules that allow hosts. All hosts are at one server.
func allowed(at net.Addr, hosts ...string) string {
	var list []string
	for _, host := range hosts {
		list = append(list, fmt.Sprintf("{host: %s, address: '%s'}", host, at))
	}
	return "network: {allow: [" + strings.Join(list, ", ") + "]}"
}

// webServer starts a server on loopback that names the host of each request.
func webServer(t *testing.T, handler http.HandlerFunc) net.Addr {
	if handler == nil {
		handler = func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s\n", r.Host) }
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr()
}

// networkEvents returns the decisions about an agent's connections.
func networkEvents(h *harness.Host, id string) (list []audit.Event) {
	for _, e := range h.Events(id) {
		if e.Event == audit.KindNetwork {
			list = append(list, e)
		}
	}
	return list
}

// TestNetworkRules: a sandbox reaches the hosts that the definition allows, and what is
// refused fails at once and says which rule is missing.
func TestNetworkRules(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	at := webServer(t, nil)
	_, port, _ := net.SplitHostPort(at.String())
	h := harness.NewHost(t, map[string]string{
		"a":    strings.TrimSuffix(allowed(at, "ok.test", "two.test"), "]}") + ", {host: localhost, ports: [" + port + "]}], deny: [two.test]}",
		"none": "",
	})
	curl := func(args string) string { // what waits for the time limit has another answer
		out, _, _ := h.Try("run", "a", "--", "sh", "-c", "curl -sS -m 20 "+args+" 2>&1")
		return out
	}
	for args, want := range map[string]string{
		"http://ok.test/":     "hello from ok.test",
		"-p http://ok.test/":  "hello from ok.test", // by a tunnel
		"http://two.test/":    `"rule":"network.deny: two.test","hint":"it is a rule of your operator: do without this host, or ask"`,
		"http://other.test/":  `"hint":"ask your operator: scopefs allow other.test"`,
		"https://other.test/": `"error":"other.test:443 is not allowed","rule":"network.allow","hint":"ask your operator: scopefs allow other.test"`,
		"--socks5-hostname 127.0.0.1:3128 http://ok.test/":    "hello from ok.test",
		"--socks5-hostname 127.0.0.1:3128 http://other.test/": "(97)",
		"--noproxy '' http://localhost:" + port + "/":         "has an address that is not public",
		"--noproxy '' http://" + at.String() + "/":            "ask your operator: scopefs allow 127.0.0.1:" + port,
		"--noproxy '*' http://" + at.String() + "/":           "Failed to connect", // the host's loopback
		"--noproxy '*' http://192.0.2.1/":                     "Failed to connect",
		"--noproxy '*' http://ok.test/":                       "Could not resolve host",
	} {
		assert.Contains(t, curl(args), want, args)
	}
	for _, url := range []string{"http://ok.test/", "https://ok.test/"} {
		out, errs, _ := h.Try("run", "none", "--", "curl", "-sS", "-m", "20", url)
		assert.Contains(t, out, `"rule":"network: none","hint":"ask your operator: scopefs allow ok.test"`)
		assert.Regexp(t, `^scopefs: network of none: .*ok\.test.* is not allowed: scopefs allow ok\.test --base \S+ --agent none\n$`, errs)
	}
	// A host of a preset: the preset is the narrower remedy.
	out, errs, _ := h.Try("run", "none", "--", "curl", "-sS", "-m", "20", "http://registry.npmjs.org/x")
	assert.Contains(t, out, `"hint":"ask your operator: scopefs allow npm"`)
	assert.Regexp(t, `is not allowed: scopefs allow npm --base \S+ --agent none\n$`, errs)
	for _, command := range []string{"curl -sS --noproxy '*' http://192.0.2.1/", "curl -sS --noproxy '*' http://" + at.String() + "/", "getent ahosts example.org"} {
		_, _, code := h.Try("run", "none", "--", "sh", "-c", command)
		assert.NotZero(t, code, command)
	}
	h.Stop()

	events := networkEvents(h, "a")
	rules := map[scope.Kind]audit.Verdict{}
	for _, e := range events {
		assert.NotEmpty(t, e.Session)
		rules[scope.Kind(e.RuleKind)] = e.Verdict
		if e.Target == "GET http://ok.test/" && e.Outcome == "end" {
			assert.Equal(t, http.StatusOK, e.Status)
			assert.NotZero(t, e.Bytes)
			assert.NotZero(t, e.DurationUS)
		}
	}
	assert.Contains(t, rules, scope.KindHost)
	assert.Equal(t, audit.Violation, rules[scope.KindAddress])
	assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindNetwork, Target: "other.test:443", Verdict: audit.Deny, Rule: "network.allow"}))
	for _, e := range networkEvents(h, "none") {
		assert.Equal(t, audit.Deny, e.Verdict)
	}
	assert.True(t, h.Recorded("none", audit.Event{Event: audit.KindNetwork, Target: "ok.test:443", Verdict: audit.Deny, Rule: "network: none"}))
}

// TestNetworkNotes: the operator sees which rule a command misses, once for each host and
// while the command runs.
func TestNetworkNotes(t *testing.T) {
	t.Parallel()
	h := harness.NewHost(t, map[string]string{
		"a": "network: {allow: [ok.test]}",
		"b": "network: {allow: [{host: down.test, address: '127.0.0.1:1'}, {host: tunnel.test, address: '127.0.0.1:1', methods: [GET]}]}",
	})
	_, errs, _ := h.Try("run", "b", "--", "sh", "-c", "for i in 1 2; do curl -s http://down.test/; curl -sk https://tunnel.test/; curl -s https://down.test/; done >/dev/null; true")
	assert.Equal(t, "scopefs: network of b: down.test cannot be reached\nscopefs: network of b: tunnel.test cannot be reached\n", errs)

	_, errs, _ = h.Try("run", "a", "--", "sh", "-c", "for i in 1 2; do for n in $(seq 18); do curl -s http://h$n.test/; done; done >/dev/null; echo no more 1>&2")
	var want []string
	for i := range 16 {
		host := fmt.Sprintf("h%d.test", i+1)
		want = append(want, "scopefs: network of a: GET http://"+host+"/ is not allowed: scopefs allow "+host+" --base "+h.Base+" --agent a")
	}
	want = append(want, "scopefs: network of a: more hosts were refused or not reached: scopefs audit --agent a lists them", "no more")
	assert.ElementsMatch(t, want, strings.Split(strings.TrimSpace(errs), "\n"))

	cmd := exec.Command(harness.Program, "--base", h.Base, "run", "a", "--", "sh", "-c", "curl -s http://x.test/; until [ -e go ]; do sleep 0.1; done")
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(said).ReadString('\n')
	assert.NoError(t, err)
	assert.Contains(t, line, "x.test")
	assert.NoError(t, os.WriteFile(h.Scope("a", "go"), nil, 0o644))
	assert.NoError(t, cmd.Wait())

	// A terminal that a command draws on is not disturbed: the note comes when the terminal is the user's again.
	for mode, end := range map[string]string{"icanon": "\r\n", "-icanon": "\n"} {
		_, errs, code := h.Try("run", "-t", "a", "--", "sh", "-c", "stty "+mode+"; curl -s http://x.test/")
		assert.Zero(t, code)
		assert.Equal(t, "scopefs: network of a: GET http://x.test/ is not allowed: scopefs allow x.test --base "+h.Base+" --agent a"+end, errs, mode)
	}
}

// TestNetworkPrograms: programs find the proxy by themselves.
func TestNetworkPrograms(t *testing.T) {
	t.Parallel()
	repo := t.TempDir()
	for _, words := range [][]string{
		{"git", "init", "-q", "-b", "main", repo + "/x.git"}, {"git", "-C", repo + "/x.git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"},
		{"git", "-C", repo + "/x.git", "update-server-info"},
	} {
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	at := webServer(t, http.FileServer(http.Dir(repo)).ServeHTTP)
	require.NoError(t, os.WriteFile(repo+"/f", []byte("content\n"), 0o644))
	h := harness.NewHost(t, map[string]string{"a": allowed(at, "ok.test")})
	for program, script := range map[string]string{
		"git":     "git ls-remote http://ok.test/x.git/.git && ! git ls-remote http://other.test/x.git/.git",
		"wget":    "wget -q -O - http://ok.test/f && ! wget -q -O - http://other.test/f && ! wget -nv https://other.test/ 2>/tmp/said && grep -q 'ask your operator: scopefs allow other.test' /tmp/said",
		"python3": `/usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen("http://ok.test/f").read())' && ! /usr/bin/python3 -c 'import urllib.request as u; u.urlopen("http://other.test/f")' && /usr/bin/python3 -c 'import urllib.request as u; u.urlopen("https://other.test/")' 2>&1 | grep -q 'ask your operator: scopefs allow other.test'`,
		"node":    `node -e 'fetch("http://ok.test/f").then(r => r.text()).then(console.log)'`,
	} {
		if _, err := exec.LookPath(program); err != nil {
			t.Log("not here: ", program)
			continue
		}
		if program == "node" {
			if out, _ := exec.Command("node", "--version").Output(); string(out) < "v24" {
				t.Logf("node %s has no NODE_USE_ENV_PROXY", out)
				continue
			}
		}
		out, errs, code := h.Try("run", "a", "--", "sh", "-c", script)
		assert.Zero(t, code, "%s: %s%s", program, out, errs)
	}
}

// TestNetworkReload: new rules hold at the next connection, and a connection to a host
// that was taken away is closed.
func TestNetworkReload(t *testing.T) {
	t.Parallel()
	speaking := make(chan bool, 10)
	at := webServer(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		if r.URL.Path == "/stream" {
			speaking <- true
			<-r.Context().Done()
		}
	})
	h := harness.NewHost(t, map[string]string{"a": allowed(at, "ok.test", "kept.test")})
	u := h.Connect("a")
	assert.Equal(t, "first", u.Bash("curl -sS http://ok.test/"))
	ended := make(chan string, 2)
	stream := func(options, host string) {
		go func() {
			out, _, _ := h.Try("run", "a", "--", "sh", "-c", "curl -sS -N -m 50 "+options+" http://"+host+"/stream 2>&1; echo $?")
			ended <- host + " " + out
		}()
		<-speaking
	}
	stream("", "ok.test")
	stream("-p", "ok.test")
	stream("", "kept.test")
	h.Define("a", allowed(at, "kept.test"))
	h.Must("reload")
	for range 2 {
		select {
		case out := <-ended:
			assert.Regexp(t, `^ok\.test first\n(.*\n)?(18|56)\n$`, out)
		case <-time.After(20 * time.Second):
			require.Fail(t, "a connection to a host that was taken away is open")
		}
	}
	assert.Contains(t, u.Bash("curl -sS http://ok.test/"), "ask your operator: scopefs allow ok.test")
	assert.Equal(t, "first", u.Bash("curl -sS http://kept.test/"))
	h.Define("a", "network: none")
	h.Must("reload")
	assert.Contains(t, <-ended, "kept.test first")
	assert.Contains(t, u.Bash("curl -sS http://kept.test/ 2>&1; true"), `"rule":"network: none"`)
	h.Define("a", allowed(at, "kept.test"))
	h.Must("reload")
	assert.Equal(t, "first", u.Bash("curl -sS http://kept.test/"))
}

// TestNetworkWithin: a member reaches what its caller reaches too, and a runner what
// scopefs.yaml allows runners.
func TestNetworkWithin(t *testing.T) {
	t.Parallel()
	at := webServer(t, nil)
	h := harness.Delegating(t, "delegation: {"+allowed(at, "runner.test")+"}\n", map[string]string{
		"boss":  "members: [hand]\n" + allowed(at, "one.test"),
		"mute":  "members: [hand]",
		"trust": "members: {hand: {may: widen}}",
		"hand":  allowed(at, "one.test", "two.test"),
	})
	try := func(caller, task string) string {
		r, err := h.Connect(caller).Send(h.Soon(), "delegate", args{"member": "hand", "task": task})
		require.NoError(t, err)
		return harness.Said(r)
	}
	fetch := func(host string) string {
		return "scopefs call bash command='curl -sS http://" + host + "/ 2>&1; true'"
	}
	assert.Contains(t, try("boss", fetch("one.test")), "hello from one.test")
	out := try("boss", fetch("two.test"))
	assert.Contains(t, out, "caller boss: network.allow")
	assert.Contains(t, out, "do without this host, or ask")
	assert.Contains(t, try("mute", fetch("one.test")), "caller mute: network: none")
	assert.Contains(t, try("trust", fetch("two.test")), "hello from two.test")
	assert.Contains(t, try("boss", "curl -sS http://runner.test/"), "hello from runner.test")
	assert.Contains(t, try("boss", "curl -sS http://one.test/"), `"hint":"ask your operator"`)
	assert.True(t, h.Recorded("hand", audit.Event{Event: audit.KindNetwork, Chain: "boss>hand", Verdict: audit.Deny}))
}

// TestNetworkEnds: the proxy of a sandbox ends with it, whatever its clients do.
func TestNetworkEnds(t *testing.T) {
	t.Parallel()
	held := make(chan bool, 100)
	at := webServer(t, func(_ http.ResponseWriter, r *http.Request) {
		held <- true
		<-r.Context().Done()
	})
	h := harness.NewHost(t, map[string]string{"a": allowed(at, "ok.test")})
	u := h.Connect("a")
	u.Bash("for i in 1 2 3; do curl -s http://ok.test/ >/dev/null 2>&1 & done; for i in 1 2 3; do (exec 3<>/dev/tcp/127.0.0.1/3128; sleep 100) >/dev/null 2>&1 & done; true")
	for range 3 {
		<-held
	}
	before := descriptors(t, h)
	h.Must("down", "a")
	h.Eventually("the connections are closed", func() bool { return descriptors(t, h) <= before-9 })
	ends := 0
	for _, e := range networkEvents(h, "a") {
		if e.Outcome == "end" || e.Outcome == "failed" {
			ends++
		}
	}
	assert.Equal(t, 3, ends, "each end is recorded")
}

// descriptors counts those of the daemon.
func descriptors(t *testing.T, h *harness.Host) int {
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.Cmd.Process.Pid))
	require.NoError(t, err)
	return len(list)
}

// TestNetworkAsk: a host under ask waits for the operator, for a bounded time; the
// decision holds for the next connections.
func TestNetworkAsk(t *testing.T) {
	t.Parallel()
	at := webServer(t, nil)
	h := harness.NewHost(t, map[string]string{
		"a": fmt.Sprintf("network: {ask: [{host: ok.test, address: '%s'}, {host: no.test, address: '%s'}]}", at, at),
	})
	u := h.Connect("a")
	for host, word := range map[string]string{"ok.test": "approve", "no.test": "deny"} {
		got := make(chan string, 1)
		go func() {
			out, _, _ := h.Try("run", "a", "--", "curl", "-sS", "http://"+host+"/")
			got <- out
		}()
		var waits []string
		h.Eventually(host+" waits", func() bool {
			list, _, _ := h.Try("approvals")
			for line := range strings.Lines(list) {
				if strings.Contains(line, " waits ") && strings.Contains(line, host) {
					waits = strings.Fields(line)
				}
			}
			return waits != nil
		})
		assert.Contains(t, h.Must("approvals", word, waits[0]), "network of a")
		want := map[string]string{"approve": "hello from ok.test", "deny": "the operator has denied GET http://no.test/"}[word]
		assert.Contains(t, <-got, want)
		assert.Contains(t, u.Bash("curl -sS http://"+host+"/"), want, "it holds for other sandboxes of the agent")
		assert.True(t, h.Recorded("a", audit.Event{Event: audit.KindApproval, Op: "network", Outcome: "asked", Rule: "network.ask: " + host}))
	}
	// As the operator sees it.
	denied := ""
	for _, e := range networkEvents(h, "a") {
		if e.Verdict == audit.Deny {
			denied = fmt.Sprint(e.Seq)
		}
	}
	out := h.Must("why", denied)
	assert.Contains(t, out, "a request \"GET http://no.test/\"\nthen: deny (network.ask: no.test)\nreached the agent: nothing was sent or received: the proxy decides before it connects\nnow: ask (network.ask: no.test)\nby the rules of: ")
	assert.Contains(t, out, "\nto allow it: approve the connection")
	assert.Contains(t, h.Must("audit"), "status 200")
}

// TestNetworkAskEnds: a connection ends with its approval.
func TestNetworkAskEnds(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	speaking := make(chan bool, 10)
	at := webServer(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		speaking <- true
		<-r.Context().Done()
	})
	h := harness.NewHost(t, map[string]string{"a": fmt.Sprintf("network: {ask: [{host: ok.test, address: '%s'}]}", at)})
	for options, terms := range map[string][]string{"": nil, "-p": nil, "-N": {"--for", "1s"}} {
		ended := make(chan string, 1)
		go func() {
			out, _, _ := h.Try("run", "a", "--", "sh", "-c", "curl -sS -m 50 "+options+" http://ok.test/ 2>&1; echo $?")
			ended <- out
		}()
		var id string
		h.Eventually("the host waits", func() bool {
			list, _, _ := h.Try("approvals")
			for line := range strings.Lines(list) {
				if strings.Contains(line, " waits ") {
					id = strings.Fields(line)[0]
				}
			}
			return id != ""
		})
		h.Must(append([]string{"approvals", "approve", id}, terms...)...)
		<-speaking
		if terms == nil {
			h.Must("approvals", "revoke", id)
		}
		select {
		case out := <-ended:
			assert.Regexp(t, `(^|\n)(18|56)\n$`, out)
		case <-time.After(20 * time.Second):
			require.Fail(t, "a connection without its approval is open")
		}
	}
}

// TestNetworkCall: the records of a connection have the call that it is of, unless
// processes of two calls are in the sandbox.
func TestNetworkCall(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	at := webServer(t, nil)
	h := harness.NewHost(t, map[string]string{"a": allowed(at, "one.test", "two.test", "three.test")})
	h.Must("run", "a", "--", "curl", "-sS", "http://one.test/", "http://other.test/")
	u := h.Connect("a")
	u.Bash("curl -sS -p http://two.test/ http://other.test/; (sleep 600 & disown) >/dev/null 2>&1")
	u.Bash("curl -sS http://three.test/")
	h.Stop()
	calls := []string{}
	for _, e := range h.Events("a") {
		switch {
		case e.Event == audit.KindCall && e.Outcome == audit.OutcomeBegin:
			calls = append(calls, e.Call)
		case e.Event != audit.KindNetwork:
		case len(calls) == 1:
			assert.Equal(t, calls[0], e.Call, e.Target)
		default:
			assert.Empty(t, e.Call, e.Target)
		}
	}
	assert.Len(t, calls, 2)
}
