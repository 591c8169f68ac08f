package daemon

import (
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/tools/approvals"
)

// TestAttackDesktop: a notification names the agent and a tool of scopefs, and has no text that an agent or a server chose.
// With desktop: false there is none.
func TestAttackDesktop(t *testing.T) {
	bus := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", bus)
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+bus)
	sent := make(chan string, 8)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "DATA\r\nOK x\r\n")
			text, buf := "", make([]byte, 4096)
			for !strings.Contains(text, "scopefs approvals") {
				n, err := conn.Read(buf)
				if text += string(buf[:n]); err != nil {
					break
				}
			}
			conn.Close()
			sent <- text
		}
	}()
	off := false
	for name, c := range map[string]struct {
		asked   approvals.Approval
		desktop *bool
		want    string
	}{
		"a tool":            {approvals.Approval{Agent: "a", Tool: "bash"}, nil, "a call of bash needs your approval"},
		"a tool of another": {approvals.Approval{Agent: "a", Tool: "mcp:s:EVIL", Arguments: []byte(`"EVIL"`)}, nil, "a call needs your approval"},
		"a client's":        {approvals.Approval{Agent: "a", Tool: "permission_prompt:<b>EVIL", Subject: "EVIL"}, nil, "a call needs your approval"},
		"a host":            {approvals.Approval{Agent: "a", Tool: "network", Kind: approvals.KindHost, Subject: "EVIL:443", Lasting: true}, nil, "a connection needs your approval"},
		"off":               {approvals.Approval{Agent: "a", Tool: "bash"}, &off, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Daemon{Shared: agent.Shared{Approvals: approvals.NewSet(nil), Shared: session.Shared{Host: &account.Host{}, Settings: config.Settings{
				Host: agents.Host{Tools: catalog.Tools{{Name: "bash"}}}, Approve: config.Approve{Desktop: c.desktop}}}}}
			d.Logger = slog.New(slog.DiscardHandler)
			stop := d.notifyApprovals()
			defer stop()
			if c.want == "" {
				_, _, err := d.Approvals.Ask(c.asked, func() error { return nil })
				require.NoError(t, err)
				stop() // it waits for what was begun
				assert.Empty(t, sent)
				return
			}
			_, _, err := d.Approvals.Ask(c.asked, func() error { return nil })
			require.NoError(t, err)
			text := <-sent
			assert.Contains(t, text, c.want)
			assert.Contains(t, text, "scopefs: a waits")
			assert.NotContains(t, text, "EVIL")
		})
	}
}
