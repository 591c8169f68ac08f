package mail

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/http/httptest"
	"net/mail"
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
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/notify"
)

// An smtpServer answers each command of a session by its verb.
type smtpServer struct {
	reply func(session int, line string) string // "": the usual reply
	tls   bool                                  // from the start
	start bool                                  // offers STARTTLS

	mu      sync.Mutex
	opened  int
	lines   []string // that were not encrypted are marked
	letters []string
}

func (s *smtpServer) listen(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var sessions sync.WaitGroup
	t.Cleanup(func() { l.Close(); sessions.Wait() })
	sessions.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			sessions.Go(func() {
				defer conn.Close()
				s.mu.Lock()
				s.opened++
				n := s.opened
				s.mu.Unlock()
				s.session(n, conn)
			})
		}
	})
	return l.Addr().String()
}

func (s *smtpServer) session(n int, conn net.Conn) {
	encrypted := s.tls
	if encrypted {
		conn = tls.Server(conn, safe.TLS)
	}
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(conn)
	usual := "220 ready"
	for line := "CONNECT"; ; {
		reply := usual
		if s.reply != nil {
			if other := s.reply(n, line); other != "" {
				reply = other
			}
		}
		if reply == "hang up" {
			return
		}
		fmt.Fprintf(conn, "%s\r\n", reply)
		if line == "QUIT" {
			return
		}
		if line == "DATA" && strings.HasPrefix(reply, "354") {
			line = "."
			text, ok := letter(in)
			if !ok {
				return
			}
			s.mu.Lock()
			s.letters = append(s.letters, text)
			s.mu.Unlock()
			usual = "250 taken"
			continue
		}
		if line == "STARTTLS" {
			conn, encrypted = tls.Server(conn, safe.TLS), true
			in = bufio.NewReader(conn)
		}
		text, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimRight(text, "\r\n")
		s.mu.Lock()
		s.lines = append(s.lines, map[bool]string{false: "plain "}[encrypted]+line)
		s.mu.Unlock()
		usual = "250 ok"
		switch verb, _, _ := strings.Cut(line, " "); verb {
		case "EHLO":
			usual = "250-here\r\n250 AUTH PLAIN"
			if s.start && !encrypted {
				usual = "250-here\r\n250-AUTH PLAIN\r\n250 STARTTLS"
			}
		case "STARTTLS":
			usual = "220 begin"
		case "AUTH":
			usual = "235 welcome"
		case "DATA":
			usual = "354 go on"
		}
	}
}

// letter reads lines up to the final dot, as they were sent.
func letter(in *bufio.Reader) (string, bool) {
	var b strings.Builder
	for {
		line, err := in.ReadString('\n')
		if err != nil || line == ".\r\n" {
			return b.String(), err == nil
		}
		b.WriteString(line)
	}
}

const hush = "t0ken-of-the-operator"

// safe is a server whose certificate this process trusts.
var safe = httptest.NewTLSServer(http.NotFoundHandler())

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mail")
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

// client calls notify as one agent, through the door.
type client struct{ *agenttest.Agent }

// notify sends a notification to the channel "c" and returns the attempts. No error
// and no event holds the secret.
func (c *client) notify(t *testing.T, title, content string) (int, *tools.Error) {
	t.Helper()
	var out struct{ Attempts int }
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
func at(t *testing.T, change func(*notify.Channel)) *client {
	t.Helper()
	c := notify.Channel{Kind: notify.Email, Addresses: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	c.Mailer = func(ctx context.Context, l notify.Letter) (*notify.Failure, error) {
		return Send(ctx, l, c.Dialer().DialContext), nil
	}
	change(&c)
	list, err := notify.New(map[string]notify.Channel{"c": c})
	require.NoError(t, err)
	return &client{agenttest.New(t, tools.Gate{Agent: "a"}, "", list)}
}

func mustURL(t *testing.T, text string) *url.URL {
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u
}

func loopbackLookup(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func (s *smtpServer) client(t *testing.T, change func(*notify.Channel)) *client {
	address := s.listen(t)
	return at(t, func(c *notify.Channel) {
		c.URL = mustURL(t, map[bool]string{false: "smtp", true: "smtps"}[s.tls]+"://"+address)
		c.From, c.To = "agents@x.example", []string{"one@x.example", "two@x.example"}
		if change != nil {
			change(c)
		}
		require.NoError(t, c.Check())
	})
}

// got returns what the server has seen.
func (s *smtpServer) got() (sessions int, lines, letters []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened, slices.Clone(s.lines), slices.Clone(s.letters)
}

func login(t *testing.T) func(*notify.Channel) {
	return func(c *notify.Channel) {
		file := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(file, []byte(hush), 0o600))
		c.User, c.Credential = "u", &credential.Source{File: file}
	}
}

// TestMail: a letter reaches its recipients and no other, whatever the agent writes.
func TestMail(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*smtpServer{"plain": {}, "STARTTLS": {start: true}, "smtps": {tls: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s.client(t, login(t))
			content := "Grüße\r\n.\r\nRCPT TO:<evil@x.example>\nBcc: evil@x.example\r\n\r\n--boundary\n.."
			_, err := c.notify(t, "=?utf-8?q?=0d=0aBcc:_evil@x.example?= ünd "+strings.Repeat("lang ", 20), content)
			require.Nil(t, err)
			_, lines, letters := s.got()
			require.Len(t, letters, 1)
			m, rerr := mail.ReadMessage(strings.NewReader(letters[0]))
			require.NoError(t, rerr)
			assert.Equal(t, "<one@x.example>, <two@x.example>", m.Header.Get("To"))
			assert.Empty(t, m.Header["Bcc"])
			assert.Equal(t, "auto-generated", m.Header.Get("Auto-Submitted"))
			subject, rerr := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
			require.NoError(t, rerr)
			assert.True(t, strings.HasPrefix(subject, "[a] =?utf-8?q?=0d=0aBcc:"), subject)
			assert.Equal(t, "quoted-printable", m.Header.Get("Content-Transfer-Encoding"))
			body, rerr := io.ReadAll(quotedprintable.NewReader(m.Body))
			require.NoError(t, rerr)
			assert.Contains(t, string(body), "RCPT TO:<evil@x.example>")
			var recipients []string
			sawLogin := false
			for _, line := range lines {
				if strings.Contains(line, "RCPT") {
					recipients = append(recipients, strings.TrimPrefix(line, "plain "))
				}
				sawLogin = sawLogin || strings.Contains(line, "AUTH PLAIN "+base64.StdEncoding.EncodeToString([]byte("\x00u\x00"+hush)))
				if name != "plain" {
					assert.NotContains(t, line, "plain AUTH")
				}
			}
			assert.True(t, sawLogin)
			assert.Len(t, recipients, 2)
		})
	}
}

// TestMailFails: what an SMTP server answers ends, is bounded, and is repeated only if
// the letter was not taken.
func TestMailFails(t *testing.T) {
	need.Once(t)
	t.Parallel()
	at := func(verb, reply string, sessions int) func(int, string) string {
		return func(n int, line string) string {
			if n <= sessions && strings.HasPrefix(line, verb) {
				return reply
			}
			return ""
		}
	}
	echo := " you sent " + hush + " " + base64.StdEncoding.EncodeToString([]byte("\x00u\x00"+hush))
	for name, c := range map[string]struct {
		reply    func(int, string) string
		sessions int
		want     tools.Code
		detail   string
	}{
		"busy, then ready":    {at("CONNECT", "421 busy", 1), 2, "", ""},
		"hangs up, then not":  {at("CONNECT", "hang up", 1), 2, "", ""},
		"greylisted":          {at("RCPT", "451 later"+echo, 1), 2, "", ""},
		"wrong password":      {at("AUTH", "535 no"+echo, 9), 1, tools.Unavailable, "reply 535"},
		"unknown recipient":   {at("RCPT TO:<two", "550 unknown"+echo, 9), 1, tools.Unavailable, "reply 550"},
		"refused content":     {at(".", "554 spam"+echo, 9), 1, tools.Unavailable, "reply 554"},
		"no answer to letter": {at(".", "hang up", 9), 1, tools.Unavailable, "attempt 1"},
		"QUIT fails":          {at("QUIT", "hang up", 9), 1, "", ""},
		"nonsense":            {at("CONNECT", "HTTP/1.1 200 OK"+echo, 9), 1, tools.Unavailable, "attempt 1"},
		"endless line":        {at("EHLO", "250-"+strings.Repeat("x", 1<<20), 9), 0, tools.Unavailable, ""},
		"endless reply":       {at("EHLO", strings.Repeat("250-x\r\n", 1<<18), 9), 0, tools.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &smtpServer{reply: c.reply}
			u := s.client(t, func(ch *notify.Channel) {
				if login(t)(ch); c.sessions == 0 {
					ch.Timeout = time.Second
				}
			})
			_, err := u.notify(t, "", "x")
			if c.sessions > 0 {
				sessions, _, _ := s.got()
				assert.Equal(t, c.sessions, sessions)
			}
			if c.want == "" {
				assert.Nil(t, err)
				return
			}
			require.NotNil(t, err)
			assert.Equal(t, c.want, err.Code)
			assert.Contains(t, u.Last().Detail, c.detail)
			assert.Equal(t, name == "no answer to letter", strings.Contains(err.Message, "may have been delivered"))
		})
	}
}

// TestMailSlow: a server that answers a little at a time does not hold the call.
func TestMailSlow(t *testing.T) {
	need.Once(t)
	need.Long(t, "waits for a time limit")
	t.Parallel()
	s := &smtpServer{reply: func(_ int, line string) string {
		time.Sleep(300 * time.Millisecond)
		return ""
	}}
	u := s.client(t, func(c *notify.Channel) { c.Timeout = time.Second })
	began := time.Now()
	_, err := u.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Equal(t, tools.Unavailable, err.Code)
	assert.Less(t, time.Since(began), 6*time.Second)
}

// TestMailWithoutTLS: a server on the network gets no letter unencrypted.
func TestMailWithoutTLS(t *testing.T) {
	t.Parallel()
	s := &smtpServer{}
	u := s.client(t, func(c *notify.Channel) {
		login(t)(c)
		_, port, _ := net.SplitHostPort(c.URL.Host)
		c.URL = mustURL(t, "smtp://mail.x.example:"+port)
		c.Lookup.Lookup = loopbackLookup
	})
	_, err := u.notify(t, "", "x")
	require.NotNil(t, err)
	assert.Contains(t, u.Last().Detail, "STARTTLS")
	_, lines, letters := s.got()
	assert.Empty(t, letters)
	for _, line := range lines {
		assert.NotContains(t, line, "AUTH")
	}
}
