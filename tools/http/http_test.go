package http

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

const hush = "t0ken-of-the-operator"

var loopbackOnly = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// serve starts a server on loopback and returns the set with it as service "s",
// changed by change, and the requests that it got.
func serve(t *testing.T, handler http.HandlerFunc, change func(*Service)) (set, *[]string) {
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Method+" "+r.RequestURI)
		mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL + "/api")
	require.NoError(t, err)
	t.Setenv("SCOPEFS_TEST_TOKEN", hush)
	service := Service{URL: u, Addresses: loopbackOnly, Credential: &credential.Source{Env: "SCOPEFS_TEST_TOKEN"}, Prefix: "Bearer "}
	if change != nil {
		change(&service)
	}
	require.NoError(t, service.Check())
	return set{"s": newEndpoint(service)}, &seen
}

func code(t *testing.T, err error) tools.Code {
	t.Helper()
	e, ok := err.(*tools.Error)
	require.True(t, ok, "%v", err)
	assert.NotContains(t, e.Error(), hush)
	return e.Code
}

func TestRequest(t *testing.T) {
	s, seen := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain; t="+r.Header.Get("Authorization"))
		fmt.Fprintf(w, "%s %s %s", r.Header.Get("Authorization"), r.Header.Get("Content-Type"), body)
	}, func(s *Service) { s.Methods = []string{"POST"} })
	out, err := s.request(t.Context(), tools.Env{}, requestArgs{Service: "s", Method: "POST", Path: "/a b/ü?x=1", Query: map[string]string{"q": "1&admin=true"}, Body: "{}"})
	require.NoError(t, err)
	assert.Equal(t, response{Status: 200, ContentType: "text/plain; t=Bearer ***", Body: "Bearer *** application/json {}"}, out)
	assert.Equal(t, []string{"POST /api/a%20b/%C3%BC%3Fx=1?q=1%26admin%3Dtrue"}, *seen)
}

// TestHostileRequests: whatever the agent writes, the service sees no request
// for something else.
func TestHostileRequests(t *testing.T) {
	s, seen := serve(t, func(http.ResponseWriter, *http.Request) {}, func(s *Service) { s.Paths = []string{"dashboards/**"} })
	for name, c := range map[string]struct {
		in   requestArgs
		want tools.Code
	}{
		"other service":       {requestArgs{Service: "t", Path: "dashboards/1"}, tools.Denied},
		"url as service":      {requestArgs{Service: "http://127.0.0.1", Path: "dashboards/1"}, tools.Denied},
		"method":              {requestArgs{Service: "s", Method: "DELETE", Path: "dashboards/1"}, tools.Denied},
		"method in the query": {requestArgs{Service: "s", Path: "dashboards/1", Query: map[string]string{"_method": "DELETE"}}, tools.Denied},
		"method in a form": {
			requestArgs{Service: "s", Path: "dashboards/1", Body: "a=1&_method=DELETE", ContentType: "application/x-www-form-urlencoded"}, tools.Denied,
		},
		"method in JSON":       {requestArgs{Service: "s", Path: "dashboards/1", Body: `{"_method": "DELETE"}`}, tools.Denied},
		"up, without a shape":  {requestArgs{Service: "s", Path: "dashboards/.\u200b./admin"}, tools.OutsideScope},
		"path":                 {requestArgs{Service: "s", Path: "admin"}, tools.Denied},
		"path of the root":     {requestArgs{Service: "s", Path: ""}, tools.Denied},
		"up":                   {requestArgs{Service: "s", Path: "dashboards/../admin"}, tools.OutsideScope},
		"up with a parameter":  {requestArgs{Service: "s", Path: "dashboards/..;x/admin"}, tools.OutsideScope},
		"up, full width":       {requestArgs{Service: "s", Path: "dashboards/\uff0e\uff0e/admin"}, tools.OutsideScope},
		"up with a mark":       {requestArgs{Service: "s", Path: "dashboards/..?/admin"}, tools.OutsideScope},
		"up with a sign":       {requestArgs{Service: "s", Path: "dashboards/..#/admin"}, tools.OutsideScope},
		"up with a blank":      {requestArgs{Service: "s", Path: "dashboards/.. /admin"}, tools.OutsideScope},
		"division slash":       {requestArgs{Service: "s", Path: "dashboards/..\u2215admin"}, tools.OutsideScope},
		"slash, full width":    {requestArgs{Service: "s", Path: "dashboards/..\uff0fadmin"}, tools.OutsideScope},
		"two dots in one":      {requestArgs{Service: "s", Path: "dashboards/\u2025/admin"}, tools.OutsideScope},
		"up and a blank":       {requestArgs{Service: "s", Path: "dashboards/.. /admin"}, tools.OutsideScope},
		"up at the end":        {requestArgs{Service: "s", Path: "dashboards/.."}, tools.OutsideScope},
		"IIS's encoding":       {requestArgs{Service: "s", Path: "admin/%u002e%u002e/dashboards"}, tools.Denied},
		"query in the path":    {requestArgs{Service: "s", Path: "admin?x=/dashboards/1"}, tools.Denied},
		"fragment":             {requestArgs{Service: "s", Path: "admin#/dashboards/1"}, tools.Denied},
		"parameter":            {requestArgs{Service: "s", Path: "dashboards;x/1"}, tools.Denied},
		"URL":                  {requestArgs{Service: "s", Path: "http://127.0.0.1/dashboards/1"}, tools.OutsideScope},
		"URL without slashes":  {requestArgs{Service: "s", Path: "http:127.0.0.1/dashboards/1"}, tools.Denied},
		"user":                 {requestArgs{Service: "s", Path: "@evil.example/dashboards/1"}, tools.Denied},
		"dot":                  {requestArgs{Service: "s", Path: "dashboards/./1"}, tools.OutsideScope},
		"absolute":             {requestArgs{Service: "s", Path: "//evil.example/dashboards/1"}, tools.OutsideScope},
		"double slash":         {requestArgs{Service: "s", Path: "dashboards//1"}, tools.OutsideScope},
		"encoded up":           {requestArgs{Service: "s", Path: "dashboards/%2e%2e/admin"}, tools.Invalid},
		"encoded twice":        {requestArgs{Service: "s", Path: "dashboards/%252e%252e/admin"}, tools.Invalid},
		"encoded slash":        {requestArgs{Service: "s", Path: "dashboards/..%2fadmin"}, tools.Invalid},
		"backslash":            {requestArgs{Service: "s", Path: `dashboards/..\admin`}, tools.Invalid},
		"CRLF":                 {requestArgs{Service: "s", Path: "dashboards/1 HTTP/1.1\r\nHost: evil"}, tools.Invalid},
		"NUL":                  {requestArgs{Service: "s", Path: "dashboards/1\x00"}, tools.Invalid},
		"not UTF-8":            {requestArgs{Service: "s", Path: "dashboards/\xff"}, tools.Invalid},
		"CRLF in content type": {requestArgs{Service: "s", Path: "dashboards/1", Body: "x", ContentType: "a\r\nAuthorization: x"}, tools.Invalid},
		"CRLF in accept":       {requestArgs{Service: "s", Path: "dashboards/1", Accept: "a\nX: y"}, tools.Invalid},
		"long query":           {requestArgs{Service: "s", Path: "dashboards/1", Query: map[string]string{"q": strings.Repeat("x", 9<<10)}}, tools.TooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.request(t.Context(), tools.Env{}, c.in)
			assert.Equal(t, c.want, code(t, err))
		})
	}
	assert.Empty(t, *seen)
	_, err := s.request(t.Context(), tools.Env{}, requestArgs{Service: "s", Path: "dashboards/1", Query: map[string]string{"a\r\nb": "#/../x"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"GET /api/dashboards/1?a%0D%0Ab=%23%2F..%2Fx"}, *seen)
}

// TestHostileServices: what a service answers ends, is bounded, and leads nowhere.
func TestHostileServices(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		time   time.Duration // of a request; 0: it is answered
		want   tools.Code
		check  func(*testing.T, response)
	}{
		"redirect inside": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/?t="+r.Header.Get("Authorization"), http.StatusFound)
		}, 0, "", func(t *testing.T, r response) {
			assert.Equal(t, 302, r.Status)
			assert.NotContains(t, r.Location, hush)
		}},
		"large": {func(w http.ResponseWriter, _ *http.Request) {
			io.Copy(w, io.LimitReader(zeros{'x'}, 8<<20))
		}, 0, "", func(t *testing.T, r response) {
			assert.True(t, r.Truncated)
			assert.Len(t, r.Body, maxResponse)
		}},
		"endless": {func(w http.ResponseWriter, _ *http.Request) { io.Copy(w, zeros{'x'}) }, 0, "", func(t *testing.T, r response) { assert.True(t, r.Truncated) }},
		"bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.Copy(z, io.LimitReader(zeros{'x'}, 64<<20))
		}, 0, "", func(t *testing.T, r response) { assert.LessOrEqual(t, len(r.Body), maxResponse) }},
		"large, of several bytes a character": {func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, strings.Repeat("\u20ac", maxResponse/3+1))
		}, 0, "", func(t *testing.T, r response) { assert.Len(t, r.Body, maxResponse-maxResponse%3) }},
		"binary": {func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte{0xff, 0xfe, 0}) }, 0, tools.Invalid, nil},
		"silent": {func(_ http.ResponseWriter, r *http.Request) { waitFor(r, never) }, time.Second, tools.Unavailable, nil},
		"slow body": {func(w http.ResponseWriter, r *http.Request) {
			w.Write([]byte("a"))
			w.(http.Flusher).Flush()
			waitFor(r, never)
		}, time.Second, tools.Unavailable, nil},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, 0, tools.Unavailable, nil},
		"hangs up":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, tools.Unavailable, nil},
		"nonsense": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			conn.Write([]byte("\x16\x03\x01 nonsense " + hush + "\r\n\r\n"))
			conn.Close()
		}, 0, tools.Unavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := serve(t, c.answer, func(s *Service) { s.Timeout = cmp.Or(c.time, 30*time.Second) })
			began := time.Now()
			out, err := s.request(t.Context(), tools.Env{}, requestArgs{Service: "s"})
			assert.Less(t, time.Since(began), 20*time.Second)
			if c.want != "" {
				assert.Equal(t, c.want, code(t, err))
				return
			}
			require.NoError(t, err)
			c.check(t, out)
		})
	}
}

func waitFor(r *http.Request, never chan struct{}) {
	select {
	case <-r.Context().Done():
	case <-never:
	}
}

// zeros is an endless text of one byte.
type zeros struct{ b byte }

func (z zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = z.b
	}
	return len(p), nil
}

// TestEcho: a service that repeats the credential gives the agent no part of it, in no
// common encoding, and not where the response is cut off.
func TestEcho(t *testing.T) {
	echoes := map[string]func(secret string) string{
		"base64": func(secret string) string {
			return base64.StdEncoding.EncodeToString([]byte("Authorization: " + secret))
		},
		"hex":    func(secret string) string { return hex.EncodeToString([]byte(secret)) },
		"UTF-16": func(secret string) string { return strings.Join(strings.Split(secret, ""), "\x00") },
	}
	for n := 1; n < len(hush); n++ {
		echoes[fmt.Sprint("cut after ", n)] = func(secret string) string { return strings.Repeat(".", maxResponse-len("Bearer ")-n) + secret }
	}
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, echoes[r.URL.Query().Get("how")](r.Header.Get("Authorization")))
	}, nil)
	for name, echo := range echoes {
		out, err := s.request(t.Context(), tools.Env{}, requestArgs{Service: "s", Query: map[string]string{"how": name}})
		require.NoError(t, err, name)
		end := strings.TrimLeft(out.Body, ".")
		if strings.HasPrefix(name, "cut") {
			assert.True(t, out.Truncated, name)
			assert.Equal(t, "Bearer ", end, name)
			continue
		}
		assert.Contains(t, end, "***", name)
		for i := range len(hush) - 8 {
			for _, part := range []string{echo(hush[i : i+8]), hush[i : i+8]} {
				assert.NotContains(t, end, part, name)
			}
		}
	}
}

// TestAddresses: a service whose name leads inside is refused unless its address
// is pinned, and one that is down is an error within seconds.
func TestAddresses(t *testing.T) {
	s, seen := serve(t, func(http.ResponseWriter, *http.Request) {}, func(s *Service) { s.Addresses = nil })
	_, err := s.request(t.Context(), tools.Env{}, requestArgs{Service: "s"})
	assert.Equal(t, tools.Unavailable, code(t, err))
	assert.ErrorContains(t, err, "not allowed")
	assert.Empty(t, *seen)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l.Close()
	s, _ = serve(t, nil, func(s *Service) { s.URL = &url.URL{Scheme: "http", Host: l.Addr().String()} })
	_, err = s.request(t.Context(), tools.Env{}, requestArgs{Service: "s"})
	assert.Equal(t, tools.Unavailable, code(t, err))
}

func TestAgents(t *testing.T) {
	s, _ := serve(t, func(http.ResponseWriter, *http.Request) {}, func(s *Service) { s.Agents = func(p scope.Principal) bool { return p.ID == "a" } })
	for _, c := range []struct {
		within []scope.Principal
		ok     bool
	}{{[]scope.Principal{{ID: "a"}}, true}, {[]scope.Principal{{ID: "ab"}}, false}, {[]scope.Principal{{ID: "b"}, {ID: "a"}}, false}, {nil, false}} {
		_, err := s.request(t.Context(), tools.Env{Within: c.within}, requestArgs{Service: "s"})
		if c.ok {
			assert.NoError(t, err)
		} else {
			assert.Equal(t, tools.Denied, code(t, err))
		}
	}
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"https://a.example": "", "http://127.0.0.1:3000/x": "", "http://a.example": "write https", "ftp://a.example": "no address",
		"https://u:p@a.example": "credential", "https://a.example/?q": "query", "/x": "no address", "https://0x7f.1/": "odd spelling",
	} {
		u, err := url.Parse(text)
		require.NoError(t, err)
		err = Service{URL: u, Credential: &credential.Source{Env: "X"}}.Check()
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
	good := &url.URL{Scheme: "https", Host: "a.example"}
	assert.ErrorContains(t, Service{URL: good, Methods: []string{"get"}}.Check(), "methods")
	assert.ErrorContains(t, Service{URL: good, Paths: []string{"/x"}}.Check(), "paths")
	assert.ErrorContains(t, Service{URL: good, Credential: &credential.Source{}}.Check(), "credential")
}

// TestSlowNeighbour: an agent whose requests a service does not answer stops nobody else's.
func TestSlowNeighbour(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{}, 64)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			slow <- struct{}{}
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	require.NoError(t, err)
	list, err := New(map[string]Service{"s": {URL: u, Addresses: loopbackOnly}})
	require.NoError(t, err)
	call := func(ctx context.Context, id, path string) error {
		a := agenttest.New(t, tools.Gate{Agent: scope.ID(id)}, "", list)
		return a.Call(ctx, t, "http_request", map[string]string{"service": "s", "path": path}, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	for range 32 {
		calls.Go(func() { assert.Error(t, call(ctx, "loud", "slow")) })
	}
	for range maxAtOnce / 2 {
		<-slow
	}
	began := time.Now()
	assert.NoError(t, call(t.Context(), "calm", "fast"))
	assert.Less(t, time.Since(began), 5*time.Second)
	cancel()
	calls.Wait()
}
