package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"net"
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

// hostOf is a server on loopback, to which tunnels of agents lead.
type hostOf struct {
	net.Listener
	t     *testing.T
	conns chan net.Conn
}

func newHostOf(t *testing.T) *hostOf {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	s := &hostOf{l, t, make(chan net.Conn, 4096)}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			s.conns <- c
		}
	}()
	return s
}

// far is the host's end of a tunnel.
type far struct {
	net.Conn
	r *bufio.Reader
}

// next returns the next connection.
func (s *hostOf) next() *far {
	select {
	case c := <-s.conns:
		s.t.Cleanup(func() { c.Close() })
		return &far{c, bufio.NewReader(c)}
	case <-time.After(30 * time.Second):
		s.t.Fatal("no connection")
		return nil
	}
}

// echoes sends a line, and waits for it to come back.
func (f *far) echoes(t *testing.T, line string) {
	t.Helper()
	_ = f.SetDeadline(time.Now().Add(20 * time.Second))
	_, err := fmt.Fprintln(f, line)
	require.NoError(t, err)
	back, err := f.r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, line+"\n", back)
}

// ends waits for the end of the tunnel.
func (f *far) ends(t *testing.T, limit time.Duration) {
	t.Helper()
	_ = f.SetReadDeadline(time.Now().Add(limit))
	_, err := f.r.ReadByte()
	require.Error(t, err)
	var timeout net.Error
	require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "the tunnel is open")
}

// The openers of a tunnel to raw.test:25 in bash(1), on descriptor 3.
const (
	byConnect = `exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT raw.test:25 HTTP/1.1\r\nHost: raw.test:25\r\n\r\n' >&3; read -r status <&3; read -r empty <&3`
	bySocks   = `exec 3<>/dev/tcp/127.0.0.1/3128; printf '\5\1\0\5\1\0\3\10raw.test\0\31' >&3; dd bs=1 count=12 <&3 >answer 2>err`
	echo      = `; echo open; while read -r line <&3; do echo "$line" >&3; done; echo closed; exit 7`
)

// reaches returns the rules of an agent that reaches raw.test.
func (s *hostOf) reaches(more string) string {
	return fmt.Sprintf("network: {allow: [{host: raw.test, ports: [25], address: '%s'}]%s}", s.Addr(), more)
}

// connections returns the events of an agent's tunnels, but their begins.
func connections(h *harness.Host, agent string) (ends []audit.Event) {
	for _, e := range h.Events(agent) {
		if e.Event == audit.KindNetwork && e.Op == "connect" && e.Outcome != audit.OutcomeBegin {
			ends = append(ends, e)
		}
	}
	return ends
}

// agentProcesses returns the processes of a daemon's agents that have used the network. It fails the test unless there are n.
func agentProcesses(h *harness.Host, n int) []int {
	all := harness.ChildrenOf(h.Cmd.Process.Pid, "scopefs-agent")
	require.Len(h.T, all, n)
	return all
}

// TestTakeOverTunnels: a tunnel passes bytes while the daemon ends and another one takes over. Its end is recorded once.
func TestTakeOverTunnels(t *testing.T) {
	need.All(t, "a daemon that ends, in one more place")
	need.Once(t)
	need.Program(t, "bash")
	for how, end := range map[string]func(*harness.Host){"SIGTERM": ends["SIGTERM"], "SIGKILL": ends["SIGKILL"], "upgrade": upgrade} {
		t.Run(how, func(t *testing.T) {
			s := newHostOf(t)
			h := onMemory(t, map[string]string{"a": s.reaches(""), "b": s.reaches(", limit: {bytes: 1GiB/day}")})
			h.Start()
			runs, fars := map[string]*started{}, map[string]*far{}
			for id, by := range map[string]string{"a": byConnect, "b": bySocks} {
				runs[id] = beginThin(h, "run", id, "--", "bash", "-c", by+echo)
				fars[id] = s.next()
				fars[id].echoes(t, "first")
			}
			pids := agentProcesses(h, len(runs))
			n := rounds(3)
			for i := range n {
				end(h)
				for _, f := range fars {
					f.echoes(t, fmt.Sprint("gap ", i))
				}
				h.Start()
				for _, f := range fars {
					f.echoes(t, fmt.Sprint("after ", i))
				}
			}
			for _, pid := range pids {
				assert.NotZero(t, harness.StateOf(pid))
			}
			bytes := int64(len("first\n") + n*len("gap 0\nafter 0\n"))
			for id, f := range fars {
				f.Close()
				code, errs := endThin(h, runs[id])
				assert.Equal(t, 7, code, errs)
				h.Eventually("its end is recorded", func() bool { return len(connections(h, id)) > 0 })
				h.Eventually("the sandbox has ended", func() bool { return h.Recorded(id, audit.Event{Event: audit.KindSandbox, Outcome: "ended"}) })
				all := connections(h, id)
				require.Len(t, all, 1, "%+v", all)
				e := all[0]
				assert.Equal(t, []any{"end", "raw.test:25", bytes, bytes, "at " + s.Addr().String()}, []any{e.Outcome, e.Target, e.Bytes, e.Sent, e.Detail})
				assert.NotEmpty(t, e.Session)
				assert.Contains(t, e.Rule, "network.allow: raw.test")
			}
			h.Stop()
			assert.Empty(t, harness.ProcessesOf(h.Base))
			for _, pid := range pids {
				h.Eventually("the process ends", func() bool { return strings.ContainsRune("\x00Z", rune(harness.StateOf(pid))) })
			}
			h.Unbroken()
		})
	}
}

// TestTunnelsGap: without a daemon, a tunnel ends with its sandbox, and moves no byte beyond its limit. The next daemon ends those
// that its rules do not allow. Each end is recorded once.
func TestTunnelsGap(t *testing.T) {
	need.Program(t, "bash")
	const most = 1 << 20
	for how, end := range ends {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := newHostOf(t)
			agents := map[string]string{"denied": s.reaches(""), "address": s.reaches(""), "closed": s.reaches(""), "killed": s.reaches(""), "limited": s.reaches(", limit: {bytes: 1MiB/day}")}
			h := harness.NewHost(t, agents)
			runs, fars, pids := map[string]*started{}, map[string]*far{}, map[string]int{}
			for id := range agents {
				script := byConnect + echo
				if id == "limited" {
					script = byConnect + `; read -r line <&3; echo $line; cat <&3 | wc -c`
				}
				runs[id] = beginThin(h, "run", id, "--", "bash", "-c", script)
				fars[id] = s.next()
				if id != "limited" {
					fars[id].echoes(t, "first")
				} else {
					fmt.Fprintln(fars[id], "open")
					h.Eventually("the tunnel passes bytes", func() bool { return harness.ReadAll(t, runs[id].out) == "open\n" })
				}
				pids[id] = sandboxOf(h, id)
			}
			end(h)
			h.Define("denied", "")
			h.Define("address", strings.Replace(s.reaches(""), "127.0.0.1", "127.0.0.2", 1))
			fars["closed"].Close()
			require.NoError(t, syscall.Kill(pids["killed"], syscall.SIGKILL))
			fars["killed"].ends(t, 10*time.Second)
			fars["denied"].echoes(t, "nobody has denied it yet")
			block := make([]byte, 64<<10)
			sent := 0
			for err := error(nil); err == nil && sent < 64*most; {
				_ = fars["limited"].SetWriteDeadline(time.Now().Add(time.Second))
				var n int
				n, err = fars["limited"].Write(block)
				sent += n
			}
			require.Less(t, sent, 64*most, "the sockets' buffers, and no more")
			h.Start()
			fars["denied"].ends(t, 10*time.Second)
			fars["address"].ends(t, 10*time.Second)
			fars["limited"].ends(t, 30*time.Second)
			code, errs := endThin(h, runs["limited"])
			require.Zero(t, code, errs)
			var got int
			_, err := fmt.Sscanf(harness.ReadAll(t, runs["limited"].out), "open\n%d\n", &got)
			require.NoError(t, err)
			assert.LessOrEqual(t, got+len("open\n"), most)
			assert.Greater(t, got, most/2)
			for id := range agents {
				if id != "killed" && id != "limited" {
					<-runs[id].ended
				}
				h.Eventually("the end of "+id+" is recorded", func() bool { return len(connections(h, id)) > 0 })
			}
			for id := range agents {
				all := connections(h, id)
				require.Len(t, all, 1, "%s: %+v", id, all)
				e := all[0]
				switch id {
				case "limited":
					assert.Equal(t, []any{"failed", audit.Deny, int64(got + len("open\n"))}, []any{e.Outcome, e.Verdict, e.Bytes})
					assert.Contains(t, e.Rule, "network.limit: bytes")
				default:
					assert.Equal(t, "end", e.Outcome, "%+v", e)
				}
			}
		})
	}
}

// TestTunnelsProcessEnds: when an agent's process is killed or hangs, clients and hosts see the end of their connections, the log
// has it, and the next tunnel has another process.
func TestTunnelsProcessEnds(t *testing.T) {
	need.Program(t, "bash")
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostOf(t)
			h := harness.NewHost(t, map[string]string{"a": s.reaches("")})
			for range 2 {
				run := beginThin(h, "run", "a", "--", "bash", "-c", byConnect+echo)
				f := s.next()
				f.echoes(t, "x")
				pid := agentProcesses(h, 1)[0]
				before := len(connections(h, "a"))
				require.NoError(t, syscall.Kill(pid, signal))
				f.ends(t, 20*time.Second)
				code, errs := endThin(h, run)
				assert.Equal(t, 7, code, errs)
				h.Eventually("the end is recorded", func() bool { return len(connections(h, "a")) > before })
				e := connections(h, "a")[before]
				assert.Equal(t, "failed", e.Outcome)
				assert.Contains(t, e.Detail, "the agent's process has ended")
			}
		})
	}
}

// TestTunnelsPassed: a tunnel ends with the sandbox that has opened it, with or without a daemon, though a process of another sandbox
// has its socket.
func TestTunnelsPassed(t *testing.T) {
	need.Program(t, "python3")
	for name, gap := range map[string]bool{"with a daemon": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostOf(t)
			h := harness.NewHost(t, map[string]string{"a": s.reaches("")})
			keep := beginThin(h, "run", "a", "--", "python3", "-c", `import socket
s = socket.socket(socket.AF_UNIX); s.bind("pass"); s.listen(); print("in", flush=True)
c, _ = s.accept(); _, fds, _, _ = socket.recv_fds(c, 1, 1); print("has", flush=True)
t = socket.socket(fileno=fds[0]); t.sendall(b"kept\n")
while t.recv(100): pass
print("over", flush=True)`)
			h.Eventually("the other sandbox listens", func() bool { return harness.ReadAll(t, keep.out) == "in\n" })
			other := sandboxOf(h, "a")
			beginThin(h, "run", "a", "--", "python3", "-c", `import socket, time
t = socket.create_connection(("127.0.0.1", 3128)); t.sendall(b"CONNECT raw.test:25 HTTP/1.1\r\nHost: raw.test:25\r\n\r\n"); t.recv(1000)
t.sendall(b"open\n"); p = socket.socket(socket.AF_UNIX); p.connect("pass"); socket.send_fds(p, [b"x"], [t.fileno()]); time.sleep(1000)`)
			f := s.next()
			for _, want := range []string{"open\n", "kept\n"} {
				line, err := f.r.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, want, line)
			}
			all := slices.DeleteFunc(h.Agent("a").Sandboxes, func(pid int) bool { return pid == other })
			require.Len(t, all, 1)
			if gap {
				h.Kill()
			}
			require.NoError(t, syscall.Kill(all[0], syscall.SIGKILL))
			f.ends(t, 10*time.Second)
			h.Eventually("whoever has the socket sees its end", func() bool { return strings.HasSuffix(harness.ReadAll(t, keep.out), "over\n") })
		})
	}
}

// TestTunnelsFlood: an agent's tunnels are bounded, and another agent's move meanwhile.
func TestTunnelsFlood(t *testing.T) {
	need.Long(t, "it opens thousands of tunnels")
	need.Program(t, "python3")
	s, other := newHostOf(t), newHostOf(t)
	h := harness.NewHost(t, map[string]string{"a": s.reaches(""), "b": other.reaches("")})
	beginThin(h, "run", "b", "--", "bash", "-c", byConnect+echo)
	f := other.next()
	f.echoes(t, "before")
	own := agentProcesses(h, 1)[0]
	run := beginThin(h, "run", "a", "--", "python3", "-c", `import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
all, refused = [], 0
for i in range(2148):
    t = socket.create_connection(("127.0.0.1", 3128))
    try:
        t.sendall(b"CONNECT raw.test:25 HTTP/1.1\r\nHost: raw.test:25\r\n\r\n")
        ok = t.recv(1000).startswith(b"HTTP/1.1 200")
        t.sendall(b"x")
    except OSError:
        ok = False
    refused += not ok
    all.append(t)
print(len(all) - refused, refused, flush=True)
for t in all: t.close()`)
	for open := true; open; {
		select {
		case <-run.ended:
			open = false
		case <-time.After(50 * time.Millisecond):
			f.echoes(t, "meanwhile")
		}
	}
	var opened, refused int
	_, err := fmt.Sscan(harness.ReadAll(t, run.out), &opened, &refused)
	require.NoError(t, err, run.errs.String())
	assert.Equal(t, []int{2048, 100}, []int{opened, refused})
	h.Eventually("each end is recorded", func() bool { return len(connections(h, "a")) >= 2048 })
	both := agentProcesses(h, 2)
	assert.Contains(t, both, own)
	for _, pid := range both {
		assert.Less(t, descriptors(t, pid), 200)
	}
	f.echoes(t, "after")
}
