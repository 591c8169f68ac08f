package fleet

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// permissions returns the subjects of docs/fleet.md for a node.
func permissions(t *testing.T, node string) *server.Permissions {
	t.Helper()
	page, err := os.ReadFile("../../docs/fleet.md")
	require.NoError(t, err)
	_, list, ok := strings.Cut(string(page), "### Permissions\n")
	require.True(t, ok)
	list, _, _ = strings.Cut(list, "\nAn operator")
	var subjects []string
	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, "    ") {
			subjects = append(subjects, strings.Fields(strings.ReplaceAll(line, "NODE", node))...)
		}
	}
	require.Len(t, subjects, 15)
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: subjects},
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX." + node + ".>"}},
	}
}

// TestFleetPermissions: a node needs no more of the server than docs/fleet.md says, and with that it cannot speak for another node.
func TestFleetPermissions(t *testing.T) {
	n := &natsd{t: t, opts: server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, Users: []*server.User{
		{Username: "one", Password: "s3cret", Permissions: permissions(t, "one")}, {Username: "ada", Password: "s3cret"},
	}}}
	t.Setenv("FLEET_SECRET", "s3cret")
	n.start()
	defer n.kill()
	h, operator := newNode(t, n, "one"), newNode(t, n, "two")
	write := func(user, more string) string {
		return fmt.Sprintf("fleet: {nats: 'nats://127.0.0.1:%d', user: %s, credential: {env: FLEET_SECRET}%s}\n", n.opts.Port, user, more)
	}
	operator.Put("scopefs.yaml", write("ada", ""))
	operator.Must("fleet", "init")
	ada := newOperator(t, operator, "ada")
	h.Put("scopefs.yaml", write("one", fmt.Sprintf(", name: one, definitions: true, trust: ['%s']", ada.public)))
	h.Start()
	operator.Eventually("the node is heard", func() bool { return regexp.MustCompile(`(?m)^one +heard `).MatchString(operator.Must("fleet", "ps")) })
	id := h.Connect("a").Waits("write_file", map[string]any{"path": "new", "content": "x"})
	operator.Eventually("the request is there", func() bool { return strings.Contains(operator.Must("fleet", "approvals"), id) })
	_, hash, _ := strings.Cut(strings.TrimSpace(operator.Must("fleet", "approvals", "show", "one", id)), "hash ")
	operator.Must("fleet", "approvals", "approve", "one", id, "--key", ada.file, "--shown", hash)
	operator.Eventually("it waits no more", func() bool { return !strings.Contains(operator.Must("fleet", "approvals"), id) })
	operator.Eventually("its events are there", func() bool { return exactOf(t, h, operator, "one") })

	operator.Must("fleet", "definitions", "put", definition(t, "c", "view: {changes: direct}"), "--key", ada.file)
	operator.Eventually("the definition is there", func() bool {
		return regexp.MustCompile(`(?m)^c +one +holds `).MatchString(operator.Must("fleet", "definitions", "--nodes"))
	})

	refusals := make(chan error, 16)
	conn, err := nats.Connect(n.s.ClientURL(), nats.UserInfo("one", "s3cret"), nats.CustomInboxPrefix("_INBOX.one"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refusals <- err }))
	require.NoError(t, err)
	defer conn.Close()
	for _, subject := range []string{"scopefs.events.two.a", "$KV.scopefs_nodes.state.two", "$KV.scopefs_approvals.two.x", "scopefs.orders.one", "$KV.scopefs_definitions.c", "$JS.API.STREAM.DELETE.scopefs_events"} {
		require.NoError(t, conn.Publish(subject, []byte("x")))
		select {
		case err := <-refusals:
			assert.ErrorIs(t, err, nats.ErrPermissionViolation, subject)
		case <-time.After(time.Minute):
			t.Fatal("it may publish to " + subject)
		}
	}
}
