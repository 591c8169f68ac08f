package notify

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

const hush = "t0ken-of-the-operator"

var loopbackOnly = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// safe is a server whose certificate this process trusts.
var safe = httptest.NewTLSServer(http.NotFoundHandler())

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		panic(err)
	}
	file := filepath.Join(dir, "roots.pem")
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: safe.Certificate().Raw})
	if err := os.WriteFile(file, roots, 0o600); err != nil {
		panic(err)
	}
	os.Setenv("SSL_CERT_FILE", file)
	code := m.Run()
	safe.Close()
	os.RemoveAll(dir)
	os.Exit(code)
}

// source returns a credential.
func source(t *testing.T, text string) *credential.Source {
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return &credential.Source{File: file}
}

// client calls notify as one agent, through the door.
type client struct{ *agenttest.Agent }

func newClient(t *testing.T, id string, list []tools.Tool) *client {
	t.Helper()
	return &client{agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, "", list)}
}

// notify sends a notification to the channel "c" and returns the attempts. No error
// and no event holds the secret.
func (c *client) notify(t *testing.T, title, content string) (int, *tools.Error) {
	t.Helper()
	var out delivered
	err := c.Call(t.Context(), t, "notify", map[string]string{"channel": "c", "title": title, "content": content}, &out)
	for _, e := range c.Events() {
		assert.NotContains(t, fmt.Sprintf("%+v", e), hush)
	}
	if err != nil {
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok, "%v", err)
		assert.NotContains(t, e.Error(), hush)
		return 0, e
	}
	return out.Attempts, nil
}

// at returns a client of one channel, which change completes for a server's URL.
func at(t *testing.T, kind Kind, change func(*Channel)) *client {
	t.Helper()
	c := Channel{Kind: kind, Addresses: loopbackOnly}
	change(&c)
	list, err := New(map[string]Channel{"c": c})
	require.NoError(t, err)
	return newClient(t, "a", list)
}

// A request is what a server got.
type request struct{ Line, Authorization, Body string }

// serve starts a server. Its handler is called with the number of the request, from 1.
func serve(t *testing.T, handler func(n int, w http.ResponseWriter, r *http.Request)) (string, func() []request) {
	var mu sync.Mutex
	var seen []request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen = append(seen, request{r.Method + " " + r.RequestURI, r.Header.Get("Authorization"), string(body)})
		n := len(seen)
		mu.Unlock()
		if handler != nil {
			handler(n, w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []request {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u
}

func loopbackLookup(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// TestKinds: each kind of server gets what its documentation describes, whatever the
// agent writes. Nothing in it is markup or a mention.
func TestKinds(t *testing.T) {
	t.Parallel()
	title, content := "all <!channel> @everyone", "line 1\n<@U1> @here & <http://x|y> \\u0000 \"}{"
	quoted := func(text string) string {
		var b strings.Builder
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		require.NoError(t, e.Encode(text))
		return strings.TrimSpace(b.String())
	}
	all := quoted("[a] " + title + "\n" + content)
	escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace("[a] " + title + "\n" + content)
	plain := `\[a\] all \<!channel\> \@everyone` + "\n" + `line 1` + "\n" + `\<\@U1\> \@here & \<http\://x\|y\> \\u0000 "}{`
	for kind, want := range map[Kind]request{
		Slack:   {"POST /hook/" + hush, "", `{"mrkdwn":false,"text":` + quoted(escaped) + `,"unfurl_links":false,"unfurl_media":false}`},
		Discord: {"POST /hook/" + hush, "", `{"allowed_mentions":{"parse":[]},"content":` + quoted(plain) + `,"flags":4}`},
		Webhook: {"POST /hook", "key " + hush, `{"agent":"a","content":` + quoted(content) + `,"title":` + quoted(title) + `}`},
		Ntfy:    {"POST /up/", "Bearer " + hush, `{"message":` + quoted(content) + `,"title":` + quoted("[a] "+title) + `,"topic":"news"}`},
		Matrix:  {"PUT /_matrix/client/v3/rooms/%21r:x.example/send/m.room.message/", "Bearer " + hush, `{"body":` + all + `,"m.mentions":{},"msgtype":"m.notice"}`},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server, seen := serve(t, nil)
			c := at(t, kind, func(c *Channel) {
				c.Credential = source(t, hush)
				switch kind {
				case Slack, Discord:
					c.Credential = source(t, server+"/hook/"+hush)
				case Webhook:
					c.URL, c.Prefix = mustURL(t, server+"/hook"), "key "
				case Ntfy:
					c.URL = mustURL(t, server+"/up/news")
				case Matrix:
					c.URL, c.Room = mustURL(t, server), "!r:x.example"
				}
				require.NoError(t, c.Dial(t.Context()))
			})
			n, err := c.notify(t, title, content)
			require.Nil(t, err)
			assert.Equal(t, 1, n)
			require.Len(t, seen(), 1)
			got := seen()[0]
			if kind == Matrix { // the id of the call follows
				got.Line = got.Line[:strings.LastIndex(got.Line, "/")+1]
			}
			got.Body = strings.TrimSpace(got.Body)
			assert.Equal(t, want, got)
			assert.Equal(t, "c", c.Last().Target)
			assert.Equal(t, "ok", c.Last().Outcome)
		})
	}
}

// TestRepeats: an answer that asks for it is repeated, and no other.
func TestRepeats(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits between attempts")
	t.Parallel()
	status := func(first int, header string) func(int, http.ResponseWriter, *http.Request) {
		return func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.Header().Set("Retry-After", header)
				w.WriteHeader(first)
			}
		}
	}
	for name, c := range map[string]struct {
		handler  func(int, http.ResponseWriter, *http.Request)
		requests int
		want     tools.Code
		hint     string
	}{
		"500, then 200":   {status(500, ""), 2, "", ""},
		"429, then 200":   {status(429, "0.6"), 2, "", ""},
		"429, nonsense":   {status(429, "soon"), 2, "", ""},
		"429 for an hour": {status(429, "3600"), 1, tools.RateLimited, "1h0m"},
		"429 for ever":    {status(429, "1e300"), 1, tools.RateLimited, "1h0m"},
		"404":             {status(404, ""), 1, tools.Unavailable, "operator"},
		"always 503": {func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, 4, tools.Unavailable,
			"later"},
		"redirect inside": {func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/"+r.Header.Get("Authorization"), http.StatusTemporaryRedirect)
		}, 1, tools.Unavailable, "operator"},
		"redirect to itself": {func(n int, w http.ResponseWriter, r *http.Request) {
			if n == 1 {
				http.Redirect(w, r, "/hook", http.StatusTemporaryRedirect)
			}
		}, 1, tools.Unavailable, "operator"},
		"endless": {func(_ int, w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, 1, "", ""},
		"huge header": {func(_ int, w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, 1, tools.Unavailable, "operator"},
		"hangs up":    {func(int, http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 1, tools.Unavailable, "operator"},
		"nonsense": {func(_ int, w http.ResponseWriter, r *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			fmt.Fprintf(conn, "HTTP/1.1 %s %s\r\n\r\n", r.Header.Get("Authorization"), r.RequestURI)
			conn.Close()
		}, 1, tools.Unavailable, "operator"},
		"slow": {func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 1, tools.Unavailable, "operator"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, seen := serve(t, c.handler)
			u := at(t, Webhook, func(ch *Channel) {
				ch.URL, ch.Credential = mustURL(t, server+"/hook"), source(t, hush)
				if name == "slow" {
					ch.Timeout = 2 * time.Second
				}
			})
			_, err := u.notify(t, "", "x")
			assert.Len(t, seen(), c.requests)
			if c.want == "" {
				assert.Nil(t, err)
				return
			}
			require.NotNil(t, err)
			assert.Equal(t, c.want, err.Code)
			assert.Contains(t, err.Hint, c.hint)
			assert.Equal(t, string(c.want), u.Last().Outcome)
			assert.Contains(t, u.Last().Detail, fmt.Sprintf("attempt %d: ", c.requests))
			if name == "hangs up" || name == "slow" || name == "nonsense" {
				assert.Contains(t, err.Message, "may have been delivered")
			}
		})
	}
}

// TestAddresses: a channel that leads inside is refused unless its address is
// pinned; one whose server is down is an error.
func TestAddresses(t *testing.T) {
	t.Parallel()
	server, seen := serve(t, nil)
	u := at(t, Webhook, func(c *Channel) { c.URL, c.Addresses = mustURL(t, server), nil })
	_, err := u.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Equal(t, tools.Unavailable, err.Code)
	assert.Contains(t, u.Last().Detail, "attempt 1: the address is not allowed")
	assert.Empty(t, seen())

	u = at(t, Slack, func(c *Channel) {
		c.Credential, c.Timeout = source(t, "https://"+hush+".example/x"), time.Second
		c.Lookup.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
	})
	_, err = u.notify(t, "", "x") // which looks for the secret
	require.NotNil(t, err)
	assert.Contains(t, u.Last().Detail, "no such host")

	l, lerr := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, lerr)
	l.Close()
	u = at(t, Slack, func(c *Channel) {
		c.Credential, c.Timeout = source(t, "http://"+l.Addr().String()+"/"+hush), 2*time.Second
	})
	_, err = u.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Equal(t, tools.Unavailable, err.Code)
	assert.Contains(t, u.Last().Detail, ": dial tcp 127.0.0.1:")
	assert.Contains(t, err.Message, "not delivered")
}

// TestCertificate: a server is its certificate's, and a wrong one gets nothing.
func TestCertificate(t *testing.T) {
	t.Parallel()
	ok := at(t, Webhook, func(c *Channel) { c.URL = mustURL(t, safe.URL) })
	_, err := ok.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Contains(t, ok.Last().Detail, "status 404", "it is reached")
	wrong := at(t, Webhook, func(c *Channel) {
		c.URL = mustURL(t, strings.Replace(safe.URL, "127.0.0.1", "localhost", 1))
		c.Lookup.Lookup = loopbackLookup
		assert.ErrorContains(t, c.Dial(t.Context()), "certificate")
	})
	_, err = wrong.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Contains(t, wrong.Last().Detail, "attempt 1: the server's certificate")
}

// TestHostileInput: what no channel takes reaches no server.
func TestHostileInput(t *testing.T) {
	t.Parallel()
	server, seen := serve(t, nil)
	hook := at(t, Webhook, func(c *Channel) { c.URL, c.Rate = mustURL(t, server), 100 })
	discord := at(t, Discord, func(c *Channel) { c.Credential = source(t, server) })
	ntfy := at(t, Ntfy, func(c *Channel) { c.URL = mustURL(t, server+"/x") })
	for name, c := range map[string]struct {
		to             *client
		title, content string
		want           tools.Code
	}{
		"CRLF in the title":       {hook, "a\r\nBcc: x@y.example", "x", tools.Invalid},
		"LF in the title":         {hook, "a\nb", "x", tools.Invalid},
		"line separator":          {hook, "a\u2028b", "x", tools.Invalid},
		"NUL":                     {hook, "a", "x\x00", tools.Invalid},
		"escape":                  {hook, "a", "\x1b[2J", tools.Invalid},
		"bidirectional override":  {hook, "a\u202eb", "x", tools.Invalid},
		"right to left":           {hook, "a\u200fb", "\u200ex", ""},
		"empty":                   {hook, "a", " \n", tools.Invalid},
		"long title":              {hook, strings.Repeat("x", 201), "x", tools.Invalid},
		"long":                    {hook, "", strings.Repeat("x", maxContent+1), tools.Invalid},
		"long in bytes":           {hook, "", strings.Repeat("€", maxContent/2), tools.TooLarge},
		"long for Discord":        {discord, "", strings.Repeat("x", 1995), tools.TooLarge},
		"markup for Discord":      {discord, "", strings.Repeat("*", 1000), tools.TooLarge},
		"long for ntfy":           {ntfy, "", strings.Repeat("x", 4097), tools.TooLarge},
		"fits into Discord":       {discord, "", strings.Repeat("€", 1994), ""},
		"fits into ntfy":          {ntfy, "", strings.Repeat("x", 4096), ""},
		"fits, 16 KiB":            {hook, strings.Repeat("x", 200), strings.Repeat("\n", maxContent-1) + "x", ""},
		"CRLF in the content":     {hook, "", "a\r\n.\r\nMAIL FROM:<x>\r\n", ""},
		"JSON in the content":     {hook, "", `","agent":"b`, ""},
		"another agent's heading": {hook, "[b] hello", "x", ""},
	} {
		_, err := c.to.notify(t, c.title, c.content)
		if c.want == "" {
			assert.Nil(t, err, name)
		} else if assert.NotNil(t, err, name) {
			assert.Equal(t, c.want, err.Code, name)
		}
	}
	for _, r := range seen() {
		var body struct{ Agent string }
		require.NoError(t, json.Unmarshal([]byte(r.Body), &body))
		assert.Contains(t, []string{"a", ""}, body.Agent)
	}
	assert.Len(t, seen(), 7)
}

// TestRate: an agent's notifications are bounded, and do not use up another's.
func TestRate(t *testing.T) {
	t.Parallel()
	server, seen := serve(t, nil)
	list, err := New(map[string]Channel{"c": {Kind: Webhook, URL: mustURL(t, server), Addresses: loopbackOnly, Rate: 2}})
	require.NoError(t, err)
	a, b := newClient(t, "a", list), newClient(t, "ab", list)
	for range 2 {
		_, err := a.notify(t, "", "x")
		require.Nil(t, err)
	}
	_, limited := a.notify(t, "", "x")
	require.NotNil(t, limited)
	assert.Equal(t, tools.RateLimited, limited.Code)
	assert.Contains(t, limited.Hint, "try again in")
	_, limited = b.notify(t, "", "x")
	assert.Nil(t, limited)
	assert.Len(t, seen(), 3)
}

func TestAgents(t *testing.T) {
	t.Parallel()
	server, seen := serve(t, nil)
	list, err := New(map[string]Channel{
		"c": {Kind: Webhook, URL: mustURL(t, server), Addresses: loopbackOnly, Agents: func(p scope.Principal) bool { return p.ID == "a" }},
		"d": {Kind: Webhook, URL: mustURL(t, server), Addresses: loopbackOnly},
	})
	require.NoError(t, err)
	_, denied := newClient(t, "a", list).notify(t, "", "x")
	assert.Nil(t, denied)
	_, denied = newClient(t, "ab", list).notify(t, "", "x")
	require.NotNil(t, denied)
	assert.Equal(t, tools.Denied, denied.Code)
	assert.Equal(t, "channels: d", denied.Hint)
	assert.Len(t, seen(), 1)

	s := &sender{Channel: Channel{Agents: func(p scope.Principal) bool { return p.ID == "a" }}}
	assert.False(t, s.allows(tools.Env{Within: []scope.Principal{{ID: "b"}, {ID: "a"}}}), "a member, for its caller")
	assert.False(t, s.allows(tools.Env{}))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	secret := &credential.Source{Env: "X"}
	u := func(text string) *url.URL { return mustURL(t, text) }
	for name, c := range map[string]struct {
		channel Channel
		want    string
	}{
		"kind":           {Channel{Kind: "fax"}, "kind"},
		"slack":          {Channel{Kind: Slack, Credential: secret}, ""},
		"secret in url":  {Channel{Kind: Slack, URL: u("https://hooks.slack.com/services/x")}, "url: it holds a secret"},
		"webhook":        {Channel{Kind: Webhook}, "url"},
		"http":           {Channel{Kind: Webhook, URL: u("http://a.example"), Credential: secret}, "write https"},
		"http, open":     {Channel{Kind: Webhook, URL: u("http://a.example")}, ""},
		"user":           {Channel{Kind: Webhook, URL: u("https://u:p@a.example")}, "credential"},
		"file":           {Channel{Kind: Webhook, URL: u("file:///etc/passwd")}, "no address"},
		"no topic":       {Channel{Kind: Ntfy, URL: u("https://ntfy.sh/")}, "topic"},
		"no room":        {Channel{Kind: Matrix, URL: u("https://a.example"), Credential: secret}, "room"},
		"alias":          {Channel{Kind: Matrix, URL: u("https://a.example"), Credential: secret, Room: "#a:b"}, "room"},
		"mail":           {Channel{Kind: Email, URL: u("smtps://a.example"), From: "a@b.c", To: []string{"d@e.f"}}, ""},
		"mail, https":    {Channel{Kind: Email, URL: u("https://a.example"), From: "a@b.c", To: []string{"d@e.f"}}, "smtps"},
		"no recipient":   {Channel{Kind: Email, URL: u("smtps://a.example"), From: "a@b.c"}, "to"},
		"two recipients": {Channel{Kind: Email, URL: u("smtps://a.example"), From: "a@b.c", To: []string{"d@e.f, g@h.i"}}, "to"},
		"injection":      {Channel{Kind: Email, URL: u("smtps://a.example"), From: "a@b.c\r\nBcc: x@y", To: []string{"d@e.f"}}, "from"},
		"user alone":     {Channel{Kind: Email, URL: u("smtps://a.example"), From: "a@b.c", To: []string{"d@e.f"}, User: "u"}, "user"},
		"credential":     {Channel{Kind: Slack, Credential: &credential.Source{}}, "credential"},
	} {
		err := c.channel.Check()
		if c.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, c.want, name)
		}
	}
	bad := Channel{Kind: Slack, Credential: source(t, "https://a.example/%zz"+hush)}
	err := bad.Dial(t.Context())
	require.Error(t, err)
	assert.NotContains(t, err.Error(), hush)
}

// TestSilentTLS: a server that takes connections and never makes TLS holds nothing of a
// call that has ended.
func TestSilentTLS(t *testing.T) {
	t.Parallel()
	l, lerr := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, lerr)
	defer l.Close()
	closed := make(chan struct{})
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, conn)
		close(closed)
	}()
	c := at(t, Webhook, func(c *Channel) {
		c.URL, c.Timeout = mustURL(t, "https://"+l.Addr().String()), 200*time.Millisecond
	})
	_, err := c.notify(t, "", "x")
	require.NotNil(t, err)
	select {
	case <-closed:
	case <-time.After(5 * time.Second):
		t.Error("the connection is still open")
	}
}
