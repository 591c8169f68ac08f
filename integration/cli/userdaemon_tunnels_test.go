package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
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

// TestUserDaemonTunnels: a tunnel in a sandbox of an ordinary user's daemon ends with that daemon, as the sandbox does, and its
// process with it. Connections of the next daemon work. The log has the end of a tunnel once, after SIGKILL at most once.
func TestUserDaemonTunnels(t *testing.T) {
	need.Program(t, "bash")
	for name, end := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			host, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer host.Close()
			a := newAccount(t)
			a.define("a", fmt.Sprintf("network: {allow: [{host: raw.test, ports: [25], address: '%s'}]}", host.Addr()))
			for round := range 2 {
				daemon, _ := a.start()
				conn := a.tunnel(host)
				require.Len(t, tunnelers(), 1)
				require.NoError(t, daemon.Process.Signal(end))
				_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
				_, err := conn.Read(make([]byte, 1))
				require.Error(t, err)
				assert.NotErrorIs(t, err, context.DeadlineExceeded)
				_ = daemon.Wait()
				a.Eventually("the process has ended", func() bool { return len(tunnelers()) == 0 })
				a.Eventually("all processes have ended", func() bool { return len(harness.ProcessesOf(a.Base)) == 0 })
				ends := 0
				for e, err := range audit.Read(context.Background(), filepath.Join(a.Base, ".local/state/scopefs/daemon/audit"), audit.Filter{Agent: "a"}, false) {
					require.NoError(t, err)
					if e.Event == audit.KindNetwork && e.Op == "connect" && e.Outcome != audit.OutcomeBegin {
						ends++
					}
				}
				if assert.LessOrEqual(t, ends, round+1); end == syscall.SIGTERM {
					assert.Equal(t, round+1, ends)
				}
			}
		})
	}
}

// tunnelers returns the ids of the user's processes that carry tunnels.
func tunnelers() []string {
	out, _ := exec.Command("pgrep", "-u", fmt.Sprint(accountUID), "-f", "^scopefs-agent").Output() // exit status 1: none
	return strings.Fields(string(out))
}

// tunnel returns the host's end of a tunnel that passes bytes.
func (a *account) tunnel(host net.Listener) net.Conn {
	a.T.Helper()
	cmd := exec.Command("setpriv", append([]string{"--reuid", fmt.Sprint(accountUID), "--regid", fmt.Sprint(accountUID), "--clear-groups", "--"},
		harness.Program, "run", "a", "--", "bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/3128
printf 'CONNECT raw.test:25 HTTP/1.1\r\nHost: raw.test:25\r\n\r\n' >&3; read -r status <&3; read -r empty <&3
while read -r line <&3; do echo "$line" >&3; done`)...)
	cmd.Env = a.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(a.T, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	a.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	_ = host.(*net.TCPListener).SetDeadline(time.Now().Add(30 * time.Second))
	conn, err := host.Accept()
	require.NoError(a.T, err, &errs)
	a.T.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, err = fmt.Fprintln(conn, "line")
	require.NoError(a.T, err)
	back, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(a.T, err)
	require.Equal(a.T, "line\n", back)
	return conn
}
