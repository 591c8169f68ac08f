package tools

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
)

// freePort returns a port of the host that nobody has.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// running starts scopefs run, and returns what ends it and returns its standard error.
func running(t *testing.T, h *harness.Host, args ...string) (end func() string) {
	var errs strings.Builder
	cmd := exec.Command(harness.Program, append([]string{"--base", h.Base, "run"}, args...)...)
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := false
	end = func() string {
		if !ended {
			ended = true
			in.Close()
			_ = cmd.Wait()
		}
		return errs.String()
	}
	t.Cleanup(func() { end() })
	return end
}

// serving is a command that serves the view at a port of the sandbox until its standard input ends.
func serving(port int) []string {
	return []string{"sh", "-c", fmt.Sprintf("python3 -m http.server --bind 127.0.0.1 %d 2>/dev/null & cat; kill $!", port)}
}

// fetched returns what a program of the host gets from a port, and its error.
func fetched(port int, as ...string) (string, error) {
	out, err := exec.Command("sh", append([]string{"-c", `exec "$@"`, "sh"}, append(as,
		"curl", "-sS", "-m", "20", fmt.Sprintf("http://127.0.0.1:%d/f", port))...)...).CombinedOutput()
	return string(out), err
}

// TestPublish: programs of the agent's user, and other sessions of the agent if a rule says so, reach a server in the sandbox at a port of
// the host. Another user does not, nor a sandbox of another agent: by a port of the host, by a rule with the address, or by the host's
// network.
func TestPublish(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	need.Program(t, "python3")
	port := freePort(t)
	h := harness.LayOut(t, nil)
	for id, network := range map[string]string{
		"a": fmt.Sprintf("{publish: ['%d:8080'], host: {ports: [%d]}}", port, port), "host": "host",
		"port": fmt.Sprintf("{host: {ports: [%d]}}", port), "rule": fmt.Sprintf("{allow: [{host: x.test, address: '127.0.0.1:%d'}]}", port),
	} {
		h.Define(id, "network: "+network)
		require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	}
	require.NoError(t, os.WriteFile(h.Scope("a", "f"), []byte("content"), 0o644))
	h.Start()
	_, err := fetched(port)
	assert.Error(t, err, "nothing runs")
	end := running(t, h, append([]string{"a", "--"}, serving(8080)...)...)
	h.Eventually("the server in the sandbox answers", func() bool { out, _ := fetched(port); return out == "content" })

	out, err := fetched(port, harness.Setpriv(4711)...)
	assert.Error(t, err, "another user: %s", out)
	assert.NotContains(t, out, "content")
	out, errs, code := h.Try("run", "port", "--", "curl", "-sS", "-m", "20", fmt.Sprintf("http://127.0.0.1:%d/f", port))
	assert.NotZero(t, code, out)
	assert.Contains(t, errs, "is published for another agent")
	out, _, _ = h.Try("run", "rule", "--", "curl", "-sS", "-m", "20", "http://x.test/f")
	assert.NotContains(t, out, "content")
	out, _, code = h.Try("run", "a", "--", "curl", "-sS", "-m", "20", fmt.Sprintf("http://127.0.0.1:%d/f", port))
	assert.Zero(t, code)
	assert.Equal(t, "content", out, "another session of the agent")
	out, _, code = h.Try("run", "host", "--", "curl", "-sS", "-m", "20", fmt.Sprintf("http://127.0.0.1:%d/f", port))
	assert.NotZero(t, code)
	assert.NotContains(t, out, "content")
	out, err = fetched(port)
	require.NoError(t, err, "that sandbox has ended")
	assert.Equal(t, "content", out)

	_, errs, code = h.Try("run", "--publish", fmt.Sprint(port), "port", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "is published for a sandbox of a already")
	_, errs, code = h.Try("run", "--publish", "80", "host", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "the sandbox has the host's ports already")
	_, errs, code = h.Try("run", "--publish", "80:3128", "a", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "that of its proxy")

	slow, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	defer slow.Close()
	require.NoError(t, slow.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(slow, "GET /f HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	_, err = slow.Read(make([]byte, 1))
	require.NoError(t, err)
	h.Define("a", fmt.Sprintf("network: {publish: ['%d:8080']}", freePort(t))) // it leads to the same server
	h.Must("reload")
	_, err = io.Copy(io.Discard, slow)
	assert.NoError(t, err, "a connection ends with its rule")
	_, err = fetched(port)
	assert.Error(t, err)
	assert.NotContains(t, end(), "--publish")
	h.Stop()

	found := map[string]audit.Event{}
	for _, id := range []string{"a", "port", "rule"} {
		for _, e := range networkEvents(h, id) {
			found[strings.Join([]string{id, e.Op, e.Target, string(e.Verdict), e.Outcome}, " ")] = e
		}
	}
	assert.Equal(t, fmt.Sprintf("network.publish: %d:8080", port), found["a publish 127.0.0.1:8080 allow begin"].Rule)
	assert.NotZero(t, found["a publish 127.0.0.1:8080 allow end"].Bytes)
	assert.Contains(t, found, "a publish 127.0.0.1:8080 deny ")
	assert.Contains(t, found, fmt.Sprintf("port host-port 127.0.0.1:%d deny failed", port))
	assert.Contains(t, found, fmt.Sprintf("a host-port 127.0.0.1:%d allow end", port))
}

// TestPublishHost: while a sandbox of another agent has the host's network, a published port refuses whoever connects.
func TestPublishHost(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	need.Program(t, "python3")
	port := freePort(t)
	h := harness.NewHost(t, map[string]string{"a": fmt.Sprintf("network: {publish: ['%d:8080']}", port), "host": "network: host"})
	require.NoError(t, os.WriteFile(h.Scope("a", "f"), []byte("content"), 0o644))
	running(t, h, append([]string{"a", "--"}, serving(8080)...)...)
	h.Eventually("the server answers", func() bool { out, _ := fetched(port); return out == "content" })
	_, errs, code := h.Try("run", "host", "--", "curl", "-sS", "-m", "20", fmt.Sprintf("http://127.0.0.1:%d/f", port))
	assert.NotZero(t, code, errs)
	h.Eventually("the log says why", func() bool {
		for _, e := range networkEvents(h, "a") {
			if e.Verdict == audit.Deny && strings.Contains(e.Rule, "a sandbox of host has the network of the host") {
				return true
			}
		}
		return false
	})
	out, err := fetched(port)
	require.NoError(t, err)
	assert.Equal(t, "content", out)
}

// TestPublishRestart: a published port, and a port of the host, are there again with the next daemon, while the command goes on.
func TestPublishRestart(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	need.Program(t, "python3")
	port := freePort(t)
	at := servertest.Answer(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhost") })
	_, service, _ := net.SplitHostPort(at)
	h := harness.NewHost(t, map[string]string{"a": ""})
	script := fmt.Sprintf("python3 -m http.server --bind 127.0.0.1 8080 2>/dev/null & until [ -e go ]; do sleep 0.1; done; curl -sS -m 20 http://127.0.0.1:%s/ >got; cat; kill $!", service)
	end := running(t, h, "--publish", fmt.Sprintf("%d:8080", port), "--host-port", service, "a", "--", "sh", "-c", script)
	require.NoError(t, os.WriteFile(h.Scope("a", "f"), []byte("content"), 0o644))
	h.Eventually("the server answers", func() bool { out, _ := fetched(port); return out == "content" })
	h.Kill()
	h.Start()
	h.Eventually("the server answers again", func() bool { out, _ := fetched(port); return out == "content" })
	require.NoError(t, os.WriteFile(h.Scope("a", "go"), nil, 0o644))
	h.Eventually("the service of the host answers again", func() bool { text, _ := os.ReadFile(h.Scope("a", "got")); return string(text) == "host" })
	end()
	h.Eventually("the port is closed", func() bool { _, err := fetched(port); return err != nil })
}

// TestHostPort: a sandbox reaches the ports of the host that a rule or the operator of a run names, and no other: no port of the daemon.
func TestHostPort(t *testing.T) {
	t.Parallel()
	need.Program(t, "curl")
	at := servertest.Answer(t, func(c net.Conn) { _, _ = io.WriteString(c, "any protocol") })
	_, service, _ := net.SplitHostPort(at)
	own := freePort(t)
	h := harness.LayOut(t, map[string]string{"a": fmt.Sprintf("network: {host: {ports: [%s, %d]}}", service, own), "b": "", "none": ""})
	h.Start("--http", fmt.Sprintf("127.0.0.1:%d", own))
	hear := func(port any) []string {
		return []string{"bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%v && cat <&3", port)}
	}
	out, _, code := h.Try(append([]string{"run", "a", "--"}, hear(service)...)...)
	assert.Zero(t, code)
	assert.Equal(t, "any protocol", out)
	out, errs, _ := h.Try(append([]string{"run", "a", "--"}, hear(own)...)...)
	assert.Empty(t, out)
	assert.Contains(t, errs, "is the daemon's own")
	out, errs, code = h.Try(append([]string{"run", "b", "--"}, hear(service)...)...)
	assert.NotZero(t, code, out)
	assert.Contains(t, errs, "scopefs: a connection to 127.0.0.1 was refused inside, where it is the sandbox's own: --host-port PORT leads to a service of this host")
	out, errs, code = h.Try(append([]string{"run", "--host-port", service, "b", "--"}, hear(service)...)...)
	assert.Zero(t, code)
	assert.Equal(t, "any protocol", out)
	assert.NotContains(t, errs, "refused")
	_, errs, code = h.Try("run", "--host-port", service, "b", "--", "bash", "-c", "exec 3<>/dev/tcp/localhost/"+service+" && cat <&3")
	assert.Zero(t, code)
	assert.NotContains(t, errs, "refused", "localhost is ::1 first")
	_, errs, _ = h.Try(append([]string{"run", "--host-port", fmt.Sprint(freePort(t)), "b", "--"}, "sh", "-c", "bash -c 'exec 3<>/dev/tcp/127.0.0.1/$0 && cat <&3' "+fmt.Sprint(own)+"; true")...)
	assert.Contains(t, errs, "refused inside", "another port")
	_, errs, code = h.Try("run", "--host-port", "3128", "b", "--", "true")
	assert.Equal(t, 125, code)
	assert.Contains(t, errs, "that of its proxy")
	h.Stop()
	ways := map[string]string{}
	for _, id := range []string{"a", "b"} {
		for _, e := range networkEvents(h, id) {
			ways[id+" "+e.Op+" "+e.Target+" "+e.Outcome] = e.Rule
		}
	}
	assert.Equal(t, "network.host.ports: "+service, ways["a host-port 127.0.0.1:"+service+" begin"])
	assert.Equal(t, "--host-port "+service, ways["b host-port 127.0.0.1:"+service+" end"])
}

// TestPortLines: a run that listened says how to open the port; one that did not, and one whose ports are open, say nothing.
func TestPortLines(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	h := harness.NewHost(t, map[string]string{"a": ""})
	// The command ends when its servers listen, in the background: the last look finds them.
	listen := func(ports ...string) []string {
		server := "import socket, time\nall = [socket.create_server(('127.0.0.1', p)) for p in (" + strings.Join(ports, ",") + ",)]\n" +
			"open('/tmp/p', 'w').write('x\\n'); time.sleep(600)"
		return []string{"a", "--", "sh", "-c", `mkfifo /tmp/p; python3 -c "$0" & read x </tmp/p`, server}
	}
	_, errs, _ := h.Try(append([]string{"run", "-q"}, listen("3000")...)...)
	assert.Equal(t, "scopefs: it listened on 3000 inside: --publish 3000 opens it\n", errs)
	_, errs, _ = h.Try(append([]string{"run", "-q", "--publish", fmt.Sprintf("%d:3000", freePort(t))}, listen("3000", "40000", "0")...)...)
	assert.Empty(t, errs)
	_, errs, _ = h.Try(append([]string{"run", "-q"}, listen("5173", "3000", "9000", "9001")...)...)
	assert.Equal(t, "scopefs: it listened on 3000, 5173, 9000 inside: --publish 3000 opens the first\n", errs)

	// A look at ten seconds finds a server that ends with its command.
	_, errs, _ = h.Try("run", "-q", "a", "--", "python3", "-c", "import socket, time; s = socket.create_server(('127.0.0.1', 3000)); time.sleep(15)")
	assert.Equal(t, "scopefs: it listened on 3000 inside: --publish 3000 opens it\n", errs)
}
