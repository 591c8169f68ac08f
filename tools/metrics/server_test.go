package metrics

import (
	"cmp"
	"compress/gzip"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
)

var (
	onePoint = args{"measurement": "m", "fields": args{"v": 1}}
	oneField = args{"measurement": "m", "fields": []args{{"name": "v"}}}
)

// TestServerSick: a server that is stopped, killed or started again makes calls
// unavailable in bounded time, and what was written stays.
func TestServerSick(t *testing.T) {
	need.Once(t)
	t.Parallel()
	s := startInfluxd(t, t.TempDir())
	const limit = 500 * time.Millisecond
	short, patient := newClient(t, s.settings(t, admin, limit), "a", ""), newClient(t, s.settings(t, admin, 30*time.Second), "a", "")
	unavailable := func(err error) {
		t.Helper()
		assert.Equal(t, tools.Unavailable, code(err), "%v", err)
		assert.Contains(t, hint(err), "try again later")
	}
	require.NoError(t, patient.write(t, onePoint))

	s.Stop(t)
	began := time.Now()
	unavailable(short.write(t, onePoint))
	unavailable(short.call(t, "metrics_query", oneField, nil))
	assert.Less(t, time.Since(began), 10*time.Second)
	done := make(chan error)
	go func() { done <- patient.call(t, "metrics_query", oneField, nil) }()
	s.Kill() // during the call
	unavailable(<-done)
	unavailable(patient.write(t, onePoint))

	s.Start(t)
	require.NoError(t, patient.write(t, onePoint))
	assert.GreaterOrEqual(t, len(patient.query(t, oneField).Series[0].Rows), 2, "and what was sent while the server was stopped may be there")
	s.Kill()
	s.Start(t)
	require.NoError(t, patient.write(t, onePoint), "a connection that the server closed is not used")
}

// TestServerFull: a server whose disk is full takes no points and answers queries.
func TestServerFull(t *testing.T) {
	need.Once(t)
	t.Parallel()
	need.Root(t, "mounts a small disk")
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"))
	t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }) // after the server's end
	s := startInfluxd(t, dir)
	c := newClient(t, s.settings(t, admin, 0), "full", "")
	require.NoError(t, c.write(t, onePoint))
	fill := exec.Command("dd", "if=/dev/zero", "of="+dir+"/fill", "bs=64k")
	fill.Run() // until the disk is full
	var err error
	for i := 0; err == nil && i < 100; i++ { // the last page of a file has room
		err = c.write(t, args{"measurement": "m", "fields": args{"text": strings.Repeat("x", 4000)}})
	}
	assert.Equal(t, tools.Unavailable, code(err), "%v", err)
	assert.Contains(t, hint(err), "full", "%v", c.Last().Detail)
	assert.NotEmpty(t, c.query(t, oneField).Series)
	require.NoError(t, exec.Command("rm", dir+"/fill").Run())
	s.Kill() // InfluxDB 1.6 keeps the error of its log until it is started again
	s.Start(t)
	assert.NoError(t, c.write(t, onePoint))
}

// fake serves answers in place of InfluxDB.
func fake(t *testing.T, answer http.HandlerFunc, change func(*Server)) Server {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	s := Server{URL: u, Version: 1, Retention: year, Timeout: 20 * time.Second}
	if change != nil {
		change(&s)
	}
	return s
}

// TestVersions: versions 2 and 3 get the requests of their APIs.
func TestVersions(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_TOKEN", "t0ken-of-the-operator")
	for version, org := range map[int]string{2: "o & p", 3: ""} {
		var got []string
		s := fake(t, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			got = append(got, r.Method+" "+r.RequestURI, r.Header.Get("Authorization"), string(text))
			if strings.HasSuffix(r.URL.Path, "write") {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			io.WriteString(w, `{"results":[{"statement_id":0,"series":[{"name":"m","tags":{"host":null},"columns":["time","c0"],"values":[[1700000000000000001,1.5]]}]}]}`)
		}, func(s *Server) {
			s.URL.Path, s.Version, s.Org, s.Credential = "/influx/", version, org, &credential.Source{Env: "SCOPEFS_TEST_TOKEN"}
		})
		c := newClient(t, s, "a", "")
		require.NoError(t, c.write(t, args{"measurement": "m x", "tags": args{"host": "a,b"}, "fields": args{"v": 1}}))
		out := c.query(t, args{"measurement": "m", "fields": []args{{"name": "v"}}, "group_by": []string{"host"}, "tags": args{"host": "it's"}, "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z", "limit": 7})
		assert.Equal(t, []Series{{map[string]string{"host": ""}, [][]any{{"2023-11-14T22:13:20.000000001Z", 1.5}}}}, out.Series)
		want := "POST /influx/api/v2/write?bucket=a_&precision=ns"
		if org != "" {
			want = "POST /influx/api/v2/write?bucket=a_&org=o+%26+p&precision=ns"
		}
		assert.Equal(t, []string{want, "Token t0ken-of-the-operator"}, got[:2])
		assert.Regexp(t, `^m\\ x,host=a\\,b v=1 \d{19}\n$`, got[2])
		assert.Equal(t, []string{"POST /influx/query", "Token t0ken-of-the-operator"}, got[3:5])
		form, err := url.ParseQuery(got[5])
		require.NoError(t, err)
		text := `SELECT "v" AS c0 FROM "m" WHERE time >= '2026-01-01T00:00:00.000000000Z' AND time < '2026-01-02T00:00:00.000000000Z' AND "host" = 'it\'s' GROUP BY "host" LIMIT 8`
		if version == 2 {
			text += " SLIMIT 101"
		}
		assert.Equal(t, url.Values{"db": {"a_"}, "q": {text}, "epoch": {"ns"}}, form)
	}
}

// endless is a text without an end.
type endless string

func (e endless) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], e)
	}
	return n, nil
}

// TestNonsense: a server that answers something else makes calls fail in bounded
// time and memory. No error has the credential, and nothing of it is a result.
func TestNonsense(t *testing.T) {
	t.Setenv("SCOPEFS_TEST_TOKEN", "t0ken-of-the-operator")
	text := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, text)
		}
	}
	series := func(s string) http.HandlerFunc { return text(200, `{"results":[{"series":[`+s+`]}]}`) }
	wait := func(r *http.Request) {
		io.Copy(io.Discard, r.Body) // only then does the server see that the client is gone
		<-r.Context().Done()
	}
	for name, c := range map[string]struct {
		answer       http.HandlerFunc
		write, query tools.Code // "" is unavailable
	}{
		"HTML":           {answer: text(200, "<html>")},
		"empty":          {answer: text(200, "")},
		"null":           {answer: text(200, "null")},
		"no results":     {answer: text(200, "{}")},
		"list":           {answer: text(200, "[]")},
		"two values":     {answer: text(200, `{"results":[]}{"results":[]}`)},
		"two results":    {answer: text(200, `{"results":[{},{}]}`)},
		"wrong types":    {answer: text(200, `{"results":{"series":1}}`)},
		"deep":           {answer: text(200, strings.Repeat("[", 1<<20))},
		"other columns":  {answer: series(`{"columns":["time","secret"],"values":[[1,2]]}`)},
		"more columns":   {answer: series(`{"columns":["time","c0","c1"],"values":[[1,2,3]]}`)},
		"no columns":     {answer: series(`{"values":[[1,2]]}`)},
		"short row":      {answer: series(`{"columns":["time","c0"],"values":[[1]]}`)},
		"null row":       {answer: series(`{"columns":["time","c0"],"values":[null]}`)},
		"time of text":   {answer: series(`{"columns":["time","c0"],"values":[["2026-01-01T00:00:00Z",1]]}`)},
		"time too large": {answer: series(`{"columns":["time","c0"],"values":[[9223372036854775808,1]]}`)},
		"object":         {answer: series(`{"columns":["time","c0"],"values":[[1,{"a":1}]]}`)},
		"other tags":     {answer: series(`{"tags":{"of":"b"},"columns":["time","c0"],"values":[[1,2]]}`)},
		"redirect": {answer: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		}},
		"echo": {answer: func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Header.Get("Authorization")) }},
		"echo as error": {func(w http.ResponseWriter, r *http.Request) {
			text(400, `{"error":"`+r.Header.Get("Authorization")+`"}`)(w, r)
		}, tools.Invalid, tools.Invalid},
		"other version": {answer: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Influxdb-Version", "v1.8.10")
			text(400, `{"error":"x"}`)(w, r)
		}},
		"busy":      {answer: text(503, `{"error":"x"}`)},
		"broken":    {answer: text(500, `{"error":"x"}`)},
		"not found": {answer: text(404, "404 page not found")},
		"hangs up":  {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"silent":    {answer: func(_ http.ResponseWriter, r *http.Request) { wait(r) }},
		"slow": {answer: func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "{")
			w.(http.Flusher).Flush()
			wait(r)
		}},
		"huge header": {answer: func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }},
		"no HTTP":     {answer: func(w http.ResponseWriter, r *http.Request) { raw(w, "SSH-2.0-x\r\n\r\n") }},
		"endless":     {func(w http.ResponseWriter, r *http.Request) { io.Copy(w, endless("[")) }, tools.TooLarge, tools.TooLarge},
		"endless rows": {func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, `{"results":[{"series":[{"columns":["time","c0"],"values":[`)
			io.Copy(w, endless("[1,2],"))
		}, tools.TooLarge, tools.TooLarge},
		"bomb": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.Copy(z, io.LimitReader(endless(strings.Repeat(" ", 4096)), 3<<20))
			z.Close()
		}, tools.TooLarge, tools.TooLarge},
		"entity too large": {text(413, `{"error":"x"}`), tools.TooLarge, tools.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t, fake(t, c.answer, func(s *Server) {
				s.Version, s.Org, s.Credential = 2, "o", &credential.Source{Env: "SCOPEFS_TEST_TOKEN"}
				if name == "silent" || name == "slow" {
					s.Timeout = 300 * time.Millisecond
				}
			}), "a", "")
			began := time.Now()
			for tool, want := range map[string]tools.Code{"metrics_write": c.write, "metrics_query": c.query} {
				in := oneField
				if tool == "metrics_write" {
					in = args{"points": []args{onePoint}}
				}
				err := client.call(t, tool, in, nil)
				require.Equal(t, cmp.Or(want, tools.Unavailable), code(err), "%s: %v", tool, err)
				assert.NotContains(t, err.Error(), "t0ken")
				assert.True(t, hint(err) != "" || want == tools.Invalid, "%v", err)
			}
			for _, e := range client.Events() {
				assert.NotContains(t, e.Detail, "t0ken")
			}
			assert.Less(t, time.Since(began), 15*time.Second)
		})
	}
}

func raw(w http.ResponseWriter, text string) {
	conn, _, _ := w.(http.Hijacker).Hijack()
	io.WriteString(conn, text)
	conn.Close()
}

// TestAddresses: a server whose name leads inside is refused unless its address is
// pinned, and one that is down is an error within seconds.
func TestAddresses(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	byName := func(s *Server) { s.URL.Host = net.JoinHostPort("localhost", s.URL.Port()) }
	err := newClient(t, fake(t, ok, byName), "a", "").write(t, onePoint)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, hint(err), "addresses")
	assert.NoError(t, newClient(t, fake(t, ok, func(s *Server) {
		byName(s)
		s.Addresses = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	}), "a", "").write(t, onePoint))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	err = newClient(t, fake(t, ok, func(s *Server) { s.URL.Host = l.Addr().String() }), "a", "").write(t, onePoint)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, hint(err), "cannot be reached")
}

func TestCheck(t *testing.T) {
	secret := &credential.Source{Env: "X"}
	for text, c := range map[string]struct {
		s    Server
		want string
	}{
		"https://a.example":     {Server{Version: 2, Org: "o", Credential: secret, Retention: year}, ""},
		"http://127.0.0.1:8086": {Server{Version: 1, User: "u", Credential: secret, Retention: year}, ""},
		"http://a.example":      {Server{Version: 3, Credential: secret, Retention: year}, "write https"},
		"ftp://a.example":       {Server{Version: 1, Retention: year}, "no address"},
		"https://u:p@a.example": {Server{Version: 1, Retention: year}, "a user"},
		"https://b.example":     {Server{Version: 4, Retention: year}, "version"},
		"https://c.example":     {Server{Version: 2, Retention: year}, "org"},
		"https://d.example":     {Server{Version: 1, Credential: secret, Retention: year}, "user"},
		"https://e.example":     {Server{Version: 1, User: "u", Retention: year}, "user"},
		"https://f.example":     {Server{Version: 1, Retention: time.Second}, "retention"},
		"https://g.example":     {Server{Version: 3, Credential: &credential.Source{}, Retention: year}, "credential"},
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		c.s.URL = u
		if err := c.s.Check(); c.want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, c.want, text)
		}
	}
}
