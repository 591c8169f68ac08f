package messages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/messages"
)

const hush = "t0ken-of-the-operator"

// onServers runs a test over each kind of server.
func onServers(t *testing.T, limits Limits, test func(t *testing.T, store *Store)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, closed(t, OpenEmbedded(filepath.Join(t.TempDir(), "messages"), limits)))
	})
	t.Run("outside", func(t *testing.T) {
		t.Parallel()
		test(t, openOutside(t, startServer(t, nil).ClientURL(), limits))
	})
}

func closed(t *testing.T, s *Store) *Store {
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// startServer starts a server on loopback with a user "scopefs".
func startServer(t *testing.T, change func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), Username: "scopefs", Password: hush}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(10*time.Second))
	return s
}

func outsideServer(t *testing.T, address string) Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(hush), 0o600))
	u, err := url.Parse(address)
	require.NoError(t, err)
	return Server{Server: door.Server{URL: u, User: "scopefs", Password: &credential.Source{File: file}}}
}

// openServer opens a server that the test itself connects to.
func openServer(s Server, limits Limits) (*Store, error) {
	s.Dial, s.Secret = (&net.Dialer{}).DialContext, s.Password.Read
	return OpenServer(s, limits)
}

func openOutside(t *testing.T, address string, limits Limits) *Store {
	t.Helper()
	s, err := openServer(outsideServer(t, address), limits)
	require.NoError(t, err)
	return closed(t, s)
}

// client calls the tools as one agent.
type client struct{ *agenttest.Agent }

// grants are those of the tests.
var grants = door.Grants{
	Channels: map[string]func(scope.Principal) bool{
		"team": func(p scope.Principal) bool { return p.ID == "a" || p.ID == "ab" },
		"ab":   func(p scope.Principal) bool { return p.ID == "ab" },
	},
	Inboxes: map[string]func(scope.Principal) bool{"ab": func(p scope.Principal) bool { return p.ID == "a" }},
}

func newClient(t *testing.T, store *Store, id string) *client {
	t.Helper()
	ours, err := door.New(store, grants)
	require.NoError(t, err)
	return &client{agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, "", ours)}
}

type args map[string]any

// Limits are those of a store.
type Limits = door.Limits

// The results of the tools.
type (
	published struct{ Sequence uint64 }
	message   struct {
		Subject, From, Text string
		Time                time.Time
	}
	page struct {
		Messages        []message
		Cursor          string
		More, Discarded bool
	}
)

func (c *client) call(ctx context.Context, t *testing.T, tool string, in args, out any) error {
	t.Helper()
	err := c.Call(ctx, t, tool, in, out)
	if err != nil {
		assert.NotContains(t, err.Error(), hush)
		if code(err) == tools.Unavailable {
			t.Logf("%s: %v: %v", tool, err, errors.Unwrap(err))
		}
	}
	return err
}

// publish publishes and fails the test if it cannot.
func (c *client) publish(t *testing.T, in args) uint64 {
	t.Helper()
	var out published
	require.NoError(t, c.call(t.Context(), t, "publish", in, &out))
	return out.Sequence
}

// read returns a page.
func (c *client) read(t *testing.T, in args) page {
	t.Helper()
	var out page
	require.NoError(t, c.call(t.Context(), t, "subscribe", in, &out))
	return out
}

func (o page) texts() []string {
	all := []string{}
	for _, m := range o.Messages {
		all = append(all, m.Text)
	}
	return all
}

var code = agenttest.Code

func TestConformance(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{}, func(t *testing.T, store *Store) {
		a, ab, b := newClient(t, store, "a"), newClient(t, store, "ab"), newClient(t, store, "b")
		require.NoError(t, store.Ping(t.Context()))

		// The same subject of two agents.
		for i := range 3 {
			a.publish(t, args{"subject": "jobs.done", "text": fmt.Sprint("a", i)})
		}
		ab.publish(t, args{"subject": "jobs.done", "text": "ab"})
		a.publish(t, args{"subject": "b.jobs", "text": "other"})
		assert.Equal(t, []string{"ab"}, ab.read(t, args{"subject": "jobs.done"}).texts())
		assert.Equal(t, []string{"ab"}, ab.read(t, args{}).texts())
		assert.Empty(t, b.read(t, args{}).texts())
		assert.Empty(t, b.read(t, args{"subject": "jobs"}).texts())
		first := a.read(t, args{"subject": "jobs.done", "limit": 2})
		assert.Equal(t, []string{"a0", "a1"}, first.texts())
		assert.True(t, first.More)
		assert.Equal(t, message{Subject: "jobs.done", From: "a", Time: first.Messages[0].Time, Text: "a0"}, first.Messages[0])
		assert.WithinDuration(t, time.Now(), first.Messages[0].Time, time.Minute)

		// A cursor acknowledges; without one, messages come again.
		assert.Equal(t, first, a.read(t, args{"subject": "jobs.done", "limit": 2}))
		second := a.read(t, args{"subject": "jobs.done", "cursor": first.Cursor})
		assert.Equal(t, []string{"a2"}, second.texts())
		assert.False(t, second.More)
		assert.Equal(t, []string{"a2"}, a.read(t, args{"subject": "jobs.done"}).texts())
		third := a.read(t, args{"subject": "jobs.done", "cursor": second.Cursor})
		assert.Empty(t, third.texts())
		assert.Equal(t, second.Cursor, third.Cursor)
		assert.Empty(t, a.read(t, args{"subject": "jobs.done"}).texts())
		assert.Equal(t, []string{"a0", "a1", "a2", "other"}, a.read(t, args{}).texts(), "another position")
		assert.Equal(t, []string{"a1", "a2"}, a.read(t, args{"subject": "jobs.done", "cursor": "1" + first.Cursor[strings.Index(first.Cursor, "-"):]}).texts(), "back")

		// A channel: each of its agents has a position.
		a.publish(t, args{"channel": "team", "text": "hello"})
		ab.publish(t, args{"channel": "team", "text": "you"})
		for _, c := range []*client{a, ab} {
			p := c.read(t, args{"channel": "team"})
			assert.Equal(t, []string{"hello", "you"}, p.texts())
			assert.Equal(t, "a", p.Messages[0].From)
			assert.Empty(t, p.Messages[0].Subject)
			assert.Empty(t, c.read(t, args{"channel": "team", "cursor": p.Cursor}).texts())
		}

		// An inbox.
		a.publish(t, args{"to": "ab", "text": "for you"})
		p := ab.read(t, args{"inbox": true})
		assert.Equal(t, []string{"for you"}, p.texts())
		assert.Equal(t, "a", p.Messages[0].From)
		assert.NotContains(t, ab.read(t, args{}).texts(), "for you")
	})
}

// TestForget: what an agent was sent and where it has read go, also twice. What it said on a channel stays, and others' messages.
func TestForget(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{}, func(t *testing.T, store *Store) {
		a, ab := newClient(t, store, "a"), newClient(t, store, "ab")
		ab.publish(t, args{"subject": "s", "text": "its own"})
		a.publish(t, args{"subject": "s", "text": "stays"})
		a.publish(t, args{"to": "ab", "text": "for you"})
		ab.publish(t, args{"channel": "team", "text": "said"})
		for _, c := range []*client{a, ab} {
			c.read(t, args{"channel": "team", "cursor": c.read(t, args{"channel": "team"}).Cursor})
			assert.Empty(t, c.read(t, args{"channel": "team"}).texts())
		}
		assert.Len(t, ab.read(t, args{"inbox": true}).texts(), 1)
		what := door.Grants{Channels: map[string]func(scope.Principal) bool{"team": nil, "never": nil}}.Of("ab")
		for range 2 {
			require.NoError(t, store.Forget(t.Context(), what))
		}
		for _, stream := range what.Streams {
			size, err := store.Size(t.Context(), stream)
			require.NoError(t, err)
			assert.Zero(t, size, stream)
		}
		assert.Empty(t, ab.read(t, args{}).texts())
		assert.Empty(t, ab.read(t, args{"inbox": true}).texts())
		assert.Equal(t, []string{"said"}, ab.read(t, args{"channel": "team"}).texts(), "as one that has never read")
		assert.Empty(t, a.read(t, args{"channel": "team"}).texts())
		assert.Equal(t, []string{"stays"}, a.read(t, args{}).texts())
		ab.publish(t, args{"subject": "s", "text": "anew"})
		assert.Equal(t, []string{"anew"}, ab.read(t, args{"subject": "s"}).texts())
	})
}

// TestWait: a call waits for a message, until its own wait ends, and ends with its
// context.
func TestWait(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{}, func(t *testing.T, store *Store) {
		a := newClient(t, store, "a")
		var got page
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			err = a.call(t.Context(), t, "subscribe", args{"subject": "s", "wait_seconds": 30}, &got)
		}()
		require.Eventually(t, func() bool { // the call reads
			reads := false
			store.reading.Range(func(any, any) bool { reads = true; return false })
			return reads
		}, 10*time.Second, time.Millisecond)
		assert.Equal(t, tools.Conflict, code(a.call(t.Context(), t, "subscribe", args{"subject": "s"}, nil)))
		a.publish(t, args{"subject": "other", "text": "no"})
		a.publish(t, args{"subject": "s", "text": "yes"})
		<-done
		require.NoError(t, err)
		assert.Equal(t, []string{"yes"}, got.texts())

		began := time.Now()
		assert.Empty(t, a.read(t, args{"subject": "none", "wait_seconds": 1}).texts())
		assert.GreaterOrEqual(t, time.Since(began), 800*time.Millisecond)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began = time.Now()
		assert.Error(t, a.call(ctx, t, "subscribe", args{"subject": "none", "wait_seconds": 30}, nil))
		assert.Less(t, time.Since(began), 10*time.Second)
		a.publish(t, args{"subject": "none", "text": "later"})
		assert.Equal(t, []string{"later"}, a.read(t, args{"subject": "none"}).texts(), "nothing is lost to a call that was cancelled")
	})
}

// TestHostile: nothing that an agent writes leads out of its part.
func TestHostile(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{}, func(t *testing.T, store *Store) {
		a, ab := newClient(t, store, "a"), newClient(t, store, "ab")
		ab.publish(t, args{"subject": "secret", "text": "of ab"})
		ab.publish(t, args{"channel": "ab", "text": "of ab"})
		a.publish(t, args{"to": "ab", "text": "of a"})
		a.publish(t, args{"subject": "mine", "text": "of a"})
		theirs := ab.read(t, args{"subject": "secret"}).Cursor
		mine := a.read(t, args{"subject": "mine"}).Cursor
		at := func(position string) string { return position + mine[strings.Index(mine, "-"):] }
		before := streams(t, store)
		for _, subject := range []string{
			"*", ">", "a.>", "*.secret", "secret.>", ".", "..", "a.", ".a", "a..b", " ", "a b", "a\tb", "a\r\nPUB ab.secret 1\r\nx", "a\nb", "a\x00b", "\x00",
			"$JS.API.STREAM.LIST", "$SYS.REQ.SERVER.PING", "a.$JS.ACK", "a\u00a0b", "a\u2028b", "a\u0085b", "a\x7fb", strings.Repeat("a", 257), strings.Repeat("a", 5000),
		} {
			for _, call := range []struct {
				tool string
				in   args
			}{{"publish", args{"subject": subject, "text": "x"}}, {"subscribe", args{"subject": subject}}} {
				err := a.call(t.Context(), t, call.tool, call.in, nil)
				assert.Equal(t, tools.Invalid, code(err), "%s %.100q: %v", call.tool, subject, err)
			}
		}
		for name, c := range map[string]struct {
			tool string
			in   args
			want tools.Code
		}{
			"no place":                  {"publish", args{"text": "x"}, tools.Invalid},
			"two places":                {"publish", args{"text": "x", "subject": "s", "channel": "team"}, tools.Invalid},
			"two places, read":          {"subscribe", args{"inbox": true, "channel": "team"}, tools.Invalid},
			"channel, not granted":      {"publish", args{"text": "x", "channel": "ab"}, tools.Denied},
			"channel, not granted read": {"subscribe", args{"channel": "ab"}, tools.Denied},
			"channel, unknown":          {"subscribe", args{"channel": "none"}, tools.Denied},
			"channel, wildcard":         {"subscribe", args{"channel": "*"}, tools.Denied},
			"channel, tokens":           {"subscribe", args{"channel": "team.>"}, tools.Denied},
			"channel, CRLF":             {"publish", args{"channel": "team\r\nPUB", "text": "x"}, tools.Denied},
			"channel by its subject":    {"subscribe", args{"channel": "_channel.team"}, tools.Denied},
			"inbox, not granted":        {"publish", args{"to": "b", "text": "x"}, tools.Denied},
			"inbox, own":                {"publish", args{"to": "a", "text": "x"}, tools.Denied},
			"inbox, wildcard":           {"publish", args{"to": "*", "text": "x"}, tools.Denied},
			"inbox, none":               {"subscribe", args{"inbox": true}, tools.NotFound},
			"cursor of another agent":   {"subscribe", args{"subject": "secret", "cursor": theirs}, tools.Invalid},
			"cursor of another subject": {"subscribe", args{"subject": "secret", "cursor": a.read(t, args{"subject": "mine"}).Cursor}, tools.Invalid},
			"cursor beyond the end":     {"subscribe", args{"subject": "mine", "cursor": at("99")}, tools.Invalid},
			"cursor huge":               {"subscribe", args{"subject": "mine", "cursor": at("9223372036854775807")}, tools.Invalid},
			"cursor overflows":          {"subscribe", args{"subject": "mine", "cursor": at("18446744073709551615")}, tools.Invalid},
			"cursor, sign":              {"subscribe", args{"subject": "mine", "cursor": at("+1")}, tools.Invalid},
			"cursor, zeros":             {"subscribe", args{"subject": "mine", "cursor": at("01")}, tools.Invalid},
			"cursor, no number":         {"subscribe", args{"cursor": "$JS.ACK.ab_messages"}, tools.Invalid},
			"consumer":                  {"subscribe", args{"consumer": "ab_0123"}, tools.Invalid},
			"reply":                     {"publish", args{"subject": "s", "text": "x", "reply": "ab.secret"}, tools.Invalid},
			"headers":                   {"publish", args{"subject": "s", "text": "x", "headers": args{"Nats-Rollup": "all"}}, tools.Invalid},
			"from":                      {"publish", args{"subject": "s", "text": "x", "from": "ab"}, tools.Invalid},
			"text too long":             {"publish", args{"subject": "s", "text": strings.Repeat("x", door.MaxText+1)}, tools.Invalid},
			"text too long in bytes":    {"publish", args{"subject": "s", "text": strings.Repeat("ü", door.MaxText/2+1)}, tools.TooLarge},
			"wait":                      {"subscribe", args{"wait_seconds": 31}, tools.Invalid},
			"limit":                     {"subscribe", args{"limit": 101}, tools.Invalid},
		} {
			err := a.call(t.Context(), t, c.tool, c.in, nil)
			assert.Equal(t, c.want, code(err), "%s: %v", name, err)
		}
		// Texts that look like the protocol are texts.
		for _, text := range []string{"NATS/1.0\r\nNats-Rollup: all\r\n\r\n", "\r\nPUB ab.secret 1\r\nx\r\n", "a\x00b", "", "+OK\r\n-ERR 'x'\r\n", strings.Repeat("x", door.MaxText)} {
			a.publish(t, args{"subject": "odd", "text": text})
			p := a.read(t, args{"subject": "odd"})
			assert.Equal(t, []string{text}, p.texts())
			a.read(t, args{"subject": "odd", "cursor": p.Cursor})
		}
		assert.Equal(t, []string{"of ab"}, ab.read(t, args{}).texts())
		assert.Equal(t, []string{"of ab"}, ab.read(t, args{"channel": "ab"}).texts())
		assert.Equal(t, []string{"of a"}, ab.read(t, args{"inbox": true}).texts())
		after := streams(t, store)
		assert.Subset(t, append(before, "_channel_team"), after, "nothing else was made")
		for _, e := range a.Events() {
			assert.NotContains(t, fmt.Sprint(e), "Nats-Rollup", "a message's text in the log")
		}
	})
}

// streams lists the streams of a server.
func streams(t *testing.T, store *Store) (all []string) {
	t.Helper()
	for name := range store.link.stream.StreamNames(t.Context()).Name() {
		all = append(all, name)
	}
	return all
}

// TestFull: a full part discards its oldest messages, and only its own.
func TestFull(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{Messages: 5, Bytes: 1 << 20}, func(t *testing.T, store *Store) {
		a, ab := newClient(t, store, "a"), newClient(t, store, "ab")
		ab.publish(t, args{"subject": "s", "text": "of ab"})
		a.publish(t, args{"subject": "s", "text": "0"})
		first := a.read(t, args{"subject": "s"})
		for i := range 9 {
			a.publish(t, args{"subject": "s", "text": fmt.Sprint(i + 1)})
		}
		p := a.read(t, args{"subject": "s", "cursor": first.Cursor})
		assert.Equal(t, []string{"5", "6", "7", "8", "9"}, p.texts())
		assert.True(t, p.Discarded)
		assert.False(t, a.read(t, args{"subject": "s", "cursor": p.Cursor}).Discarded)
		assert.Equal(t, []string{"of ab"}, ab.read(t, args{}).texts())

		// The bytes of a page.
		for i := range 5 {
			a.publish(t, args{"subject": "s", "text": strings.Repeat(fmt.Sprint(i), door.MaxText)})
		}
		p = a.read(t, args{"subject": "s", "cursor": p.Cursor})
		assert.Len(t, p.Messages, 3)
		assert.True(t, p.More)
		assert.Len(t, a.read(t, args{"subject": "s", "cursor": p.Cursor}).Messages, 2)

		// Positions.
		for i := range readers - 1 {
			a.read(t, args{"subject": fmt.Sprint("s", i)})
		}
		assert.Equal(t, tools.TooLarge, code(a.call(t.Context(), t, "subscribe", args{"subject": "more"}, nil)))
		a.read(t, args{"subject": "s0"})
		ab.read(t, args{"subject": "more"})
	})
}

// TestPages: pages join without gaps, also while messages arrive.
func TestPages(t *testing.T) {
	t.Parallel()
	onServers(t, Limits{}, func(t *testing.T, store *Store) {
		a := newClient(t, store, "a")
		const n = 90
		var writing sync.WaitGroup
		for w := range 3 {
			writing.Go(func() {
				for i := range n / 3 {
					a.publish(t, args{"subject": fmt.Sprint("w.", w), "text": fmt.Sprint(w, "-", i)})
				}
			})
		}
		seen, at := map[string]int{}, args{"limit": 40, "wait_seconds": 5}
		for len(seen) < n {
			p := a.read(t, at)
			require.NotEmpty(t, p.Messages)
			for _, m := range p.Messages {
				seen[m.Text]++
			}
			at["cursor"] = p.Cursor
		}
		writing.Wait()
		for text, times := range seen {
			assert.Equal(t, 1, times, text)
		}
		delete(at, "wait_seconds")
		assert.Empty(t, a.read(t, at).texts())
	})
}

// stray publishes to an outside server what this package never does.
func stray(t *testing.T, address, subject string, m *nats.Msg) {
	t.Helper()
	conn, err := nats.Connect(address, nats.UserInfo("scopefs", hush))
	require.NoError(t, err)
	defer conn.Close()
	m.Subject = subject
	require.NoError(t, conn.PublishMsg(m))
	require.NoError(t, conn.Flush())
}
