package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// silences are what a silent client sends before it says nothing more, and what the last line
// is that it reads.
var silences = map[string]struct {
	socket func(h *harness.Host) string
	uid    uint32
	send   string
	last   string
	more   string // sent after last
}{
	"run: nothing after 101":       {ofUser, alice, runOf("sleep", "4714.5"), "\r\n", ""},
	"run: half a line after 101":   {ofUser, alice, runOf("sleep", "4714.5"), "\r\n", `{"go":tr`},
	"run: no reader of streams":    {ofUser, alice, runOf("yes"), "\r\n", `{"go":true}` + "\n"},
	"run: half a body":             {ofUser, alice, "POST /v1/agents/a/run HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "", ""},
	"run: half a header":           {ofUser, alice, "POST /v1/agents/a/run HT", "", ""},
	"run of the operator":          {ofOperator, 0, runOf("sleep", "4714.5"), "\r\n", ""},
	"watch of approvals":           {ofOperator, 0, "GET /v1/approvals/watch HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n", ""},
	"top":                          {ofOperator, 0, "GET /v1/top HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n", ""},
	"tools: nothing":               {ofTools, alice, "", "", ""},
	"tools: half a context":        {ofTools, alice, "context 1000\n{", "", ""},
	"tools: half a message":        {ofTools, alice, `{"jsonrpc"`, "", ""},
	"tools: a call":                {ofTools, alice, harness.Hello + harness.Request(1, "bash", `{"command":"sleep 4714.5"}`), "\n", ""},
	"tools: no reader of answers":  {ofTools, alice, harness.Hello, "\n", strings.Repeat(harness.Request(1, "read_file", `{"path":"large"}`), 100)},
	"tools: an answer is not read": {ofTools, alice, harness.Hello, "\n", harness.Request(1, "read_file", `{"path":"large"}`)},
}

func ofUser(h *harness.Host) string     { return userSocket(h, alice) }
func ofTools(h *harness.Host) string    { return h.Door("a") }
func ofOperator(h *harness.Host) string { return filepath.Join(h.Base, "run", "control.sock") }

// runOf returns a request to run a command.
func runOf(argv ...string) string {
	body := fmt.Sprintf(`{"argv":["%s"]}`, strings.Join(argv, `","`))
	return fmt.Sprintf("POST /v1/agents/a/run HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func init() {
	// A client that connects to a socket, sends the beginning of what silences names, and
	// then neither sends nor reads.
	harness.Roles["silent"] = func(args []string) error {
		c := silences[args[1]]
		conn, err := net.Dial("unix", args[0])
		if err != nil {
			return err
		}
		if _, err := io.WriteString(conn, c.send); err != nil {
			return err
		}
		in := bufio.NewReader(conn)
		for line := ""; line != c.last; {
			if line, err = in.ReadString('\n'); err != nil {
				return err
			}
			if c.last == "\n" {
				break
			}
		}
		go func() { _, _ = io.WriteString(conn, c.more) }() // it may block
		fmt.Println("silent")
		_, err = os.Stdin.Read(make([]byte, 1))
		return err
	}
}

// TestDaemonStopSilent: no client keeps the daemon from ending, whatever it has begun and
// whatever it does not read. Each is a process of the user that the socket is for.
func TestDaemonStopSilent(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": ""})
	h.Timeout = 5 * time.Minute // for all of them
	own(t, h, "a", alice)
	require.NoError(t, os.WriteFile(h.Scope("a", "large"), []byte(strings.Repeat("0123456\n", 20_000)), 0o644))
	client := harness.TestBinary(t, h)
	for name, c := range silences {
		t.Run(name, func(t *testing.T) {
			h.Start()
			cmd := harness.Role("silent", c.socket(h), name)
			cmd.Path = client
			as(cmd, c.uid)
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			defer in.Close()
			next := harness.Stream(t, cmd)
			require.Equal(t, "silent", next())
			began := time.Now()
			h.Stop()
			assert.Less(t, time.Since(began), stopTime)
			assert.Zero(t, h.Cmd.ProcessState.ExitCode())
			assert.Zero(t, h.Mounted(h.Base))
		})
	}
}

// stopTime is how long a daemon may take to end, on a host with other work.
const stopTime = 15 * time.Second

// After its own SIGKILL a daemon replaces the dead mounts that are left.
func TestDaemonKilled(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "", "b": ""})
	h.Put("scopefs.yaml", "grace: 0s\n") // the views and the sandbox die with the daemon
	h.Start()
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), nil, 0o644))
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep "+harness.Seconds(12))
	out.Expect("ready")
	open, err := os.Open(h.View("b")) // busy
	require.NoError(t, err)
	defer open.Close()
	for range 2 {
		h.Kill()
		h.Start()
		assert.FileExists(t, h.View("a", "file"))
		assert.Equal(t, 2, h.Mounted(h.Base))
		assert.Zero(t, m.Run("a", "--", "touch", "x").Code, "at once")
	}
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	h.Eventually("the sandbox is gone", func() bool { return m.Sandboxed(harness.Seconds(12)) == 0 })
}

// The view of an agent with a user of its own lets not even root look whether it
// is dead. A daemon that was killed with its holder leaves such views below the run
// directory and at places that the operator chose.
func TestDaemonKilledPrivate(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": `user: "4211"`, "b": `user: "4212"`})
	h.Put("scopefs.yaml", "grace: 0s\n") // the views die with the daemon
	h.Start()
	h.Must("down", "b")
	at := filepath.Join(h.Base, "other")
	h.Must("up", "b", "--at", at)
	h.KillAll()
	require.Equal(t, 2, h.Mounted(h.Base), "both are left")
	h.Start()
	for id, at := range map[string]string{"a": h.View("a"), "b": at} {
		got := h.Agent(id)
		assert.Equal(t, "mounted", got.State, "%+v", got)
		assert.Equal(t, at, got.Mount)
	}
	assert.Equal(t, 2, h.Mounted(h.Base))

	// A view that failed leaves its dead mount to the next.
	require.NoError(t, os.Rename(h.Scope("a"), h.Scope("moved")))
	h.Eventually("the view of a has failed", func() bool { return h.Agent("a").State != "mounted" })
	h.Must("down", "a")
	require.NoError(t, os.Rename(h.Scope("moved"), h.Scope("a")))
	h.Must("up", "a")
	assert.Equal(t, "mounted", h.Agent("a").State)
}

// SIGTERM: all down within the grace time though files are open, and recorded.
func TestDaemonStopBusy(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	m := &harness.Way{Host: h, Tmp: t.TempDir()}
	require.NoError(t, os.WriteFile(h.Scope("a", "file"), []byte("x"), 0o644))
	open, err := os.Open(h.View("a", "file"))
	require.NoError(t, err)
	defer open.Close()
	cmd, out := harness.StartTalking(t, m, "echo ready; exec sleep 4713.5")
	out.Expect("ready")
	began := time.Now()
	h.Stop()
	assert.Less(t, time.Since(began), 15*time.Second)
	assert.Zero(t, h.Cmd.ProcessState.ExitCode())
	assert.Zero(t, h.Mounted(h.Base))
	_ = cmd.Wait()
	assert.Equal(t, 125, cmd.ProcessState.ExitCode())
	assert.NoFileExists(t, filepath.Join(h.Base, "run", "control.sock"))
	for _, want := range []audit.Event{{Op: "exec", Outcome: "sandbox ended"}, {Event: audit.KindSandbox, Outcome: "ended"}} {
		assert.True(t, h.Recorded("a", want), want)
	}
	assert.True(t, h.Recorded("", audit.Event{Event: audit.KindDaemon, Outcome: "stopped"}))
}
