package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// asks returns the rules of an agent for which the operator decides about raw.test.
func (s *hostOf) asks() string {
	return fmt.Sprintf("network: {ask: [{host: raw.test, ports: [25], address: '%s'}]}", s.Addr())
}

// TestTunnelsApproval: a tunnel that the operator has approved lives on with the approval. One whose approval is withdrawn while
// there is no daemon ends with the start of the next daemon.
func TestTunnelsApproval(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Program(t, "bash")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newHostOf(t)
			h := harness.NewHost(t, map[string]string{"a": s.asks()})
			run := beginThin(h, "run", "a", "--", "bash", "-c", byConnect+echo)
			var waiting []struct{ ID string }
			h.Eventually("the connection waits for the operator", func() bool {
				require.NoError(t, json.Unmarshal([]byte(h.Must("approvals", "--json")), &waiting))
				return len(waiting) == 1
			})
			h.Must("approvals", "approve", waiting[0].ID)
			f := s.next()
			f.echoes(t, "approved")
			end(h)
			f.echoes(t, "in the gap")
			h.Start()
			f.echoes(t, "the approval holds")
			end(h)
			voided, err := filepath.Glob(filepath.Join(h.Base, "state/approvals/*"))
			require.NoError(t, err)
			require.NotEmpty(t, voided)
			for _, file := range voided {
				require.NoError(t, os.Remove(file))
			}
			f.echoes(t, "nobody has read that yet")
			h.Start()
			f.ends(t, 10*time.Second)
			code, errs := endThin(h, run)
			assert.Equal(t, 7, code, errs)
			h.Eventually("the end is recorded", func() bool { return len(connections(h, "a")) > 0 })
			all := connections(h, "a")
			require.Len(t, all, 1, "%+v", all)
			sent := int64(len("approved\nin the gap\nthe approval holds\nnobody has read that yet\n"))
			assert.Equal(t, []any{"end", sent, sent}, []any{all[0].Outcome, all[0].Sent, all[0].Bytes})
			h.Unbroken()
		})
	}
}

// TestTunnelsProcessKilled: SIGKILL of agents' processes ends all their tunnels at once. The log has each end once, with the cause,
// and the next connection works.
func TestTunnelsProcessKilled(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Program(t, "bash")
	s := newHostOf(t)
	agents := []string{"a", "b"}
	h := harness.NewHost(t, map[string]string{"a": s.reaches(""), "b": s.reaches(", limit: {bytes: 1GiB/day}")})
	var runs []*started
	var fars []*far
	for range 3 {
		for i, id := range agents {
			runs = append(runs, beginThin(h, "run", id, "--", "bash", "-c", []string{byConnect, bySocks}[i]+echo))
			f := s.next()
			f.echoes(t, "x")
			fars = append(fars, f)
		}
	}
	pids := agentProcesses(h, len(agents))
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	for _, pid := range pids {
		h.Eventually("it is gone", func() bool { return strings.ContainsRune("\x00Z", rune(harness.StateOf(pid))) })
	}
	for _, f := range fars { // the kernel closes what the process had
		f.ends(t, 2*time.Second)
	}
	for _, run := range runs {
		code, errs := endThin(h, run)
		assert.Equal(t, 7, code, errs)
	}
	for _, id := range agents {
		h.Eventually("the ends are recorded", func() bool { return len(connections(h, id)) >= 3 })
		run := beginThin(h, "run", id, "--", "bash", "-c", byConnect+echo)
		f := s.next()
		f.echoes(t, "the next one")
		f.Close()
		code, errs := endThin(h, run)
		assert.Equal(t, 7, code, errs)
		h.Eventually("its end is recorded", func() bool { return len(connections(h, id)) >= 4 })
		all := connections(h, id)
		require.Len(t, all, 4, "%+v", all)
		for _, e := range all[:3] {
			assert.Equal(t, "failed", e.Outcome)
			assert.Contains(t, e.Detail, "the agent's process has ended: what has moved is unknown")
		}
		assert.Equal(t, "end", all[3].Outcome)
	}
	for _, pid := range agentProcesses(h, len(agents)) {
		assert.NotContains(t, pids, pid)
	}
	h.Unbroken()
}

// TestTunnelsGapFlood: an agent that closes 1,000 tunnels while there is no daemon, and opens as many, does not stop the tunnel of
// another agent, nor the next daemon. The log has each end once.
func TestTunnelsGapFlood(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Long(t, "it opens thousands of tunnels")
	need.Program(t, "python3")
	const count = 1000
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			s, other := newHostOf(t), newHostOf(t)
			h := harness.NewHost(t, map[string]string{"a": s.reaches(""), "b": other.reaches("")})
			quiet := beginThin(h, "run", "b", "--", "bash", "-c", byConnect+echo)
			f := other.next()
			f.echoes(t, "before")
			flood := beginThin(h, "run", "a", "--", "python3", "-c", fmt.Sprintf(`import os, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
head = b"CONNECT raw.test:25 HTTP/1.1\r\nHost: raw.test:25\r\n\r\n"
all = []
for i in range(%[1]d):
    t = socket.create_connection(("127.0.0.1", 3128)); t.sendall(head); assert b"200" in t.recv(1000); t.sendall(b"x"); all.append(t)
for t in all: assert t.recv(1) == b"y" # the process of tunnels has it
print("open", flush=True)
while not os.path.exists("go"): pass
for t in all: t.close()
for i in range(%[1]d):
    t = socket.socket(); t.setblocking(False)
    try: t.connect(("127.0.0.1", 3128))
    except BlockingIOError: pass
    try: t.send(head + b"x")
    except OSError: pass
    t.close()
print("closed", flush=True)`, count))
			said := func(text string) func() bool {
				return func() bool { return strings.Contains(harness.ReadAll(t, flood.out), text) }
			}
			for range count {
				_, err := s.next().Write([]byte("y"))
				require.NoError(t, err)
			}
			h.Eventually("all are open", said("open"))
			end(h)
			require.NoError(t, os.WriteFile(h.Scope("a", "go"), nil, 0o644))
			for i := 0; !said("closed")(); i++ {
				f.echoes(t, fmt.Sprint("in the gap ", i))
			}
			h.Start()
			f.echoes(t, "after")
			<-flood.ended
			third := beginThin(h, "run", "b", "--", "bash", "-c", byConnect+echo)
			g := other.next()
			g.echoes(t, "a new one")
			g.Close()
			code, errs := endThin(h, third)
			assert.Equal(t, 7, code, errs)
			f.echoes(t, "still")
			f.Close()
			code, errs = endThin(h, quiet)
			assert.Equal(t, 7, code, errs)
			h.Eventually("each end is recorded", func() bool { return len(connections(h, "a")) >= count })
			h.Eventually("the others', too", func() bool { return len(connections(h, "b")) >= 2 })
			assert.Len(t, connections(h, "b"), 2)
			var sent []int64
			for _, e := range connections(h, "a") {
				sent = append(sent, e.Sent)
			}
			whole := len(slices.DeleteFunc(sent, func(n int64) bool { return n != 1 }))
			assert.GreaterOrEqual(t, whole, count, "of tunnels that were open")
			h.Unbroken()
		})
	}
}

// TestTakeOverRequests: a connection whose requests are decided lives on, too: a request while there is no daemon waits for the next one,
// which decides by its rules and records it. A connection that is opened meanwhile works as well.
func TestTakeOverRequests(t *testing.T) {
	need.Program(t, "python3")
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) }))
			t.Cleanup(server.Close)
			h := harness.NewHost(t, map[string]string{"a": fmt.Sprintf(
				"network: {allow: [{host: web.test, ports: [80], address: '%s', paths: [/ok/**]}]}", server.Listener.Addr())})
			run := beginThin(h, "run", "a", "--", "python3", "-c", `import http.client, os, sys, time
def get(c, path):
    c.request("GET", "http://web.test" + path); r = c.getresponse(); text = r.read().decode()
    print(path, r.status, flush=True)
    return text
c = http.client.HTTPConnection("127.0.0.1", 3128); c.connect(); own = c.sock.getsockname()
get(c, "/ok/before")
while not os.path.exists("gone"): time.sleep(.01)
print("asks", flush=True)
get(c, "/ok/during")
d = http.client.HTTPConnection("127.0.0.1", 3128)
get(d, "/ok/new")
get(c, "/no/denied"); get(c, "/ok/after")
print("same" if c.sock.getsockname() == own else "another", flush=True)`)
			said := func(text string) func() bool {
				return func() bool { return strings.Contains(harness.ReadAll(t, run.out), text) }
			}
			h.Eventually("it has connected", said("/ok/before 200"))
			end(h)
			require.NoError(t, os.WriteFile(h.Scope("a", "gone"), nil, 0o644))
			h.Eventually("it asks without a daemon", said("asks"))
			time.Sleep(100 * time.Millisecond) // the request is on its way, or not: both are to work
			h.Start()
			code, errs := endThin(h, run)
			require.Zero(t, code, errs)
			assert.Equal(t, "/ok/before 200\nasks\n/ok/during 200\n/ok/new 200\n/no/denied 403\n/ok/after 200\nsame\n", harness.ReadAll(t, run.out))
			seen := map[string]int{}
			for _, e := range h.Events("a") {
				if e.Event == audit.KindNetwork && e.Op == "request" && e.Outcome != audit.OutcomeBegin {
					seen[e.Target]++
				}
			}
			for _, path := range []string{"/ok/before", "/ok/during", "/ok/new", "/no/denied", "/ok/after"} {
				assert.Equal(t, 1, seen["GET http://web.test"+path], path)
			}
			h.Unbroken()
		})
	}
}
