package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
)

const (
	value       = "k3y/\"of+the&operator"
	placeholder = "scopefs-secret-TESTTESTTEST"
)

// withSecret starts an intercepting proxy with the secret "key" in a header.
func withSecret(t *testing.T, rules []network.HostRule, header, format string) (*lab, *http.Client) {
	read := fixedSecret(t)
	l, roots := intercepting(t, rules, func(_ *Options, c *Tenant) {
		c.Secrets = func() map[string]Secret {
			return map[string]Secret{"key": {Placeholder: placeholder, Header: header, Format: format, Read: read}}
		}
	})
	t.Cleanup(func() {
		text, _ := json.Marshal(l.log())
		assert.NotContains(t, string(text), "k3y", "the log has the value")
	})
	return l, l.client(t, roots)
}

func fixedSecret(t testing.TB) func(context.Context) (credential.Secret, error) {
	t.Setenv("SCOPEFS_TEST_KEY", value)
	return credential.Source{Env: "SCOPEFS_TEST_KEY"}.Read
}

func do(t *testing.T, c *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := c.Do(r)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res, string(body)
}

func login(password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+password))
}

// TestSecretReachesItsHost in each form that programs have, and in no other
// field.
func TestSecretReachesItsHost(t *testing.T) {
	var mu sync.Mutex
	var got http.Header
	rule, _ := host(t, "good.example", true, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r.Header
	})
	rule.Secret = "key"
	for name, c := range map[string]struct {
		header, format string
		fields         map[string]string
		want           map[string]string
	}{
		"in its header":        {"x-api-key", "", map[string]string{"X-Api-Key": placeholder}, map[string]string{"X-Api-Key": value}},
		"bearer":               {"", "", map[string]string{"Authorization": "Bearer " + placeholder}, map[string]string{"Authorization": "Bearer " + value}},
		"basic":                {"", "Bearer %s", map[string]string{"Authorization": login(placeholder)}, map[string]string{"Authorization": login(value)}},
		"absent":               {"", "Bearer %s", nil, map[string]string{"Authorization": "Bearer " + value}},
		"another of the agent": {"x-api-key", "", map[string]string{"X-Api-Key": "mine", "Authorization": "Bearer mine"}, map[string]string{"X-Api-Key": value, "Authorization": ""}},
		"also bearer":          {"x-api-key", "", map[string]string{"Authorization": "Bearer " + placeholder}, map[string]string{"X-Api-Key": value, "Authorization": "Bearer " + value}},
		"elsewhere":            {"x-api-key", "", map[string]string{"X-Other": placeholder, "Range": "bytes=0-3"}, map[string]string{"X-Other": placeholder, "Range": "", "Accept-Encoding": "identity"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, client := withSecret(t, []network.HostRule{rule}, c.header, c.format)
			r, _ := http.NewRequest("GET", "https://good.example/"+placeholder+"?"+placeholder, strings.NewReader(placeholder))
			for k, v := range c.fields {
				r.Header.Set(k, v)
			}
			res, _ := do(t, client, r)
			require.Equal(t, 200, res.StatusCode)
			mu.Lock()
			defer mu.Unlock()
			for k, v := range c.want {
				assert.Equal(t, v, got.Get(k), k)
			}
		})
	}
}

// TestSecretEchoed: a host that repeats the value gives it to nobody.
func TestSecretEchoed(t *testing.T) {
	rule, _ := host(t, "good.example", true, func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("X-Api-Key")
		w.Header().Set("X-Echo", "a "+key)
		w.Header().Set("Trailer", "X-End")
		switch r.URL.Path {
		case "/bytes":
			for _, c := range []byte("<" + key + key + ">") {
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
		case "/length":
			w.Header().Set("Content-Length", fmt.Sprint(len(key)+2))
			fmt.Fprint(w, "<", key, ">")
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, "<", key, ">")
			z.Close()
		case "/twice":
			w.Header()["Content-Encoding"] = []string{"identity", "gzip"}
			z := gzip.NewWriter(w)
			fmt.Fprint(z, "<", key, ">")
			z.Close()
		case "/br":
			w.Header().Set("Content-Encoding", "br")
			fmt.Fprint(w, key)
		case "/json":
			_ = json.NewEncoder(w).Encode(map[string]string{"auth": r.Header.Get("Authorization"), "key": key, "url": url.QueryEscape(key)})
		case "/encoded": // by other programs than Go
			fmt.Fprint(w, `{"a": "k3y\/\"of\u002bthe&operator"} k3y%2f%22of%2bthe%26operator k3y/%22of%2Bthe%26operator `+
				`k3y&#47;&quot;of&#43;the&amp;operator k3y%255C%252F%255C%2522of%252Bthe%2526operator`)
		case "/fail":
			c, _, _ := http.NewResponseController(w).Hijack()
			fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\n", key)
			c.Close()
		case "/ws":
			c, _, _ := http.NewResponseController(w).Hijack()
			fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n<%s>", key)
			c.Close()
		}
		w.Header().Set("X-End", key)
	})
	rule.Secret = "key"
	l, client := withSecret(t, []network.HostRule{rule}, "x-api-key", "")
	stars := strings.Repeat("*", len(value))
	for path, want := range map[string]string{"/bytes": "<" + stars + stars + ">", "/length": "<" + stars + ">", "/gzip": "<" + stars + ">", "/br": "", "/twice": "", "/json": "", "/encoded": "", "/none": ""} {
		r, _ := http.NewRequest("GET", "https://good.example"+path, nil)
		r.Header.Set("Authorization", login(placeholder))
		res, body := do(t, client, r)
		whole := fmt.Sprint(body, res.Header, res.Trailer)
		for _, form := range []string{value, url.QueryEscape(value), "k3y", "operator", login(value)[6:]} {
			assert.NotContains(t, whole, form, path)
		}
		if path == "/br" || path == "/twice" {
			assert.Equal(t, 502, res.StatusCode)
			continue
		}
		assert.Equal(t, 200, res.StatusCode, path)
		assert.Equal(t, "a "+stars, res.Header.Get("X-Echo"), path)
		if want != "" {
			assert.Equal(t, want, body, path)
			if path != "/length" {
				assert.Equal(t, stars, res.Trailer.Get("X-End"), path)
			}
		}
	}
	conf := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	conf.NextProtos = nil
	for _, path := range []string{"/ws", "/fail"} {
		c := l.tls(t, "good.example", conf)
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", path)
		text, _ := io.ReadAll(c)
		assert.NotContains(t, string(text), "k3y")
		assert.Contains(t, string(text), map[string]string{"/ws": "<" + stars + ">", "/fail": "502"}[path])
	}
}

// TestAttackPlaceholder: it goes nowhere else, and nobody gets the value for it.
func TestAttackPlaceholder(t *testing.T) {
	var mu sync.Mutex
	var got bytes.Buffer
	other, _ := host(t, "other.example", true, func(w http.ResponseWriter, r *http.Request) {
		var text bytes.Buffer
		_ = r.Write(&text)
		mu.Lock()
		defer mu.Unlock()
		got.Write(text.Bytes())
	})
	other.Intercept = true
	plain, _ := host(t, "plain.example", false, hello)
	good, _ := host(t, "good.example", true, hello)
	good.Secret = "key"
	public := network.HostRule{Host: "public.example", Secret: "key"}
	l, client := withSecret(t, []network.HostRule{other, plain, good, public}, "", "")
	request := func(change func(*http.Request)) *http.Request {
		r, _ := http.NewRequest("POST", "https://other.example/", nil)
		change(r)
		return r
	}
	body := func(r io.Reader) func(*http.Request) {
		return func(req *http.Request) { req.Body, req.ContentLength = io.NopCloser(r), -1 }
	}
	for name, r := range map[string]*http.Request{
		"field":             request(func(r *http.Request) { r.Header.Set("X-Any", placeholder) }),
		"basic":             request(func(r *http.Request) { r.Header.Set("Authorization", login(placeholder)) }),
		"method":            request(func(r *http.Request) { r.Method = placeholder }),
		"name of a field":   request(func(r *http.Request) { r.Header.Set(placeholder, "1") }),
		"path":              request(func(r *http.Request) { r.URL.Path = "/" + placeholder }),
		"encoded path":      request(func(r *http.Request) { r.URL.Opaque = "//other.example/%73" + placeholder[1:] }),
		"query":             request(func(r *http.Request) { r.URL.RawQuery = "a=%73" + placeholder[1:] }),
		"query, bad escape": request(func(r *http.Request) { r.URL.RawQuery = "b=%zz%&a=%73" + placeholder[1:] }),
		"query, semicolon":  request(func(r *http.Request) { r.URL.RawQuery = ";a=%73" + placeholder[1:] }),
		"query, %u":         request(func(r *http.Request) { r.URL.RawQuery = "a=%u0073" + placeholder[1:] }),
		"body":              request(body(strings.NewReader(strings.Repeat("x", 100_000) + placeholder + "y"))),
		"body of a form":    request(body(strings.NewReader("a=1&b=%73" + placeholder[1:]))),
		"body of JSON":      request(body(strings.NewReader(`{"a": "\u0073` + placeholder[1:] + `"}`))),
		"encoded field":     request(func(r *http.Request) { r.Header.Set("X-Any", "a=%73"+placeholder[1:]) }),
		"encoded name":      request(func(r *http.Request) { r.Header.Set("%73"+placeholder[1:], "1") }),
		"body byte by byte": request(body(iotest.OneByteReader(strings.NewReader("x" + placeholder + "y")))),
		"plain": func() *http.Request {
			r, _ := http.NewRequest("GET", "http://plain.example/?"+placeholder, nil)
			return r
		}(),
	} {
		before := len(l.log())
		res, text := do(t, client, r)
		assert.Equal(t, 403, res.StatusCode, name)
		assert.Contains(t, text, "placeholder", name)
		refused := func(e audit.Event) bool {
			return e.Verdict == audit.Violation && e.RuleKind == string(scope.KindSecret)
		}
		assert.True(t, slices.ContainsFunc(l.log()[before:], refused), name) // an earlier connection may end meanwhile
	}
	r := request(body(strings.NewReader("x")))
	r.Trailer = http.Header{"X-End": {placeholder}}
	do(t, client, r)
	mu.Lock()
	assert.NotContains(t, got.String(), placeholder)
	assert.NotContains(t, got.String(), value)
	mu.Unlock()
	status, text := get(t, client, "http://public.example/")
	assert.Equal(t, 403, status, "not in plain HTTP")
	assert.Contains(t, text, "use https")
}

// TestSecretUnreadable: the request is not sent without its credential.
func TestSecretUnreadable(t *testing.T) {
	t.Parallel()
	reached := false
	rule, _ := host(t, "good.example", true, func(http.ResponseWriter, *http.Request) { reached = true })
	rule.Secret = "key"
	for _, secrets := range []map[string]Secret{nil, {"key": {Read: func(context.Context) (credential.Secret, error) { return credential.Secret{}, io.ErrUnexpectedEOF }}}} {
		l, roots := intercepting(t, []network.HostRule{rule}, func(_ *Options, c *Tenant) { c.Secrets = func() map[string]Secret { return secrets } })
		status, body := get(t, l.client(t, roots), "https://good.example/")
		assert.Equal(t, 502, status)
		assert.Contains(t, body, "credential")
	}
	assert.False(t, reached)
}

// TestPlaceholder: a name has one placeholder, also after a restart, and under another CA
// another one.
func TestPlaceholder(t *testing.T) {
	dir := t.TempDir()
	first, err := OpenCA(dir)
	require.NoError(t, err)
	again, err := OpenCA(dir)
	require.NoError(t, err)
	other, err := OpenCA(t.TempDir())
	require.NoError(t, err)
	p := first.Placeholder("a\x00KEY")
	assert.Regexp(t, `^scopefs-secret-[A-Z2-7]{26}$`, p)
	assert.Equal(t, p, again.Placeholder("a\x00KEY"))
	assert.NotEqual(t, p, first.Placeholder("b\x00KEY"))
	assert.NotEqual(t, p, other.Placeholder("a\x00KEY"))
	assert.NotEqual(t, (*CA)(nil).Placeholder("x"), (*CA)(nil).Placeholder("x"))
}

// TestSecretReading: a credential that takes long to read delays no request that needs another. Requests that need it wait
// for one reading and have its error, and it ends when they are gone.
func TestSecretReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{}, Tenant{})
		begun, ended := 0, 0
		slow := Secret{Source: "slow", Read: func(ctx context.Context) (credential.Secret, error) {
			begun++
			defer func() { ended++ }()
			select {
			case <-ctx.Done():
				return credential.Secret{}, ctx.Err()
			case <-time.After(time.Hour):
				return credential.Secret{}, io.ErrUnexpectedEOF
			}
		}}
		errs := make(chan error, 2)
		wait := func(ctx context.Context) {
			go func() {
				_, err := p.value(ctx, "slow", slow)
				errs <- err
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		wait(ctx)
		wait(t.Context())
		got, err := p.value(t.Context(), "key", Secret{Source: "env", Read: func(context.Context) (credential.Secret, error) { return credential.Secret{}, nil }})
		assert.Empty(t, got)
		assert.NoError(t, err)
		cancel()
		assert.ErrorIs(t, <-errs, context.Canceled)
		assert.ErrorIs(t, <-errs, io.ErrUnexpectedEOF, "the reading goes on for the other")
		assert.Equal(t, [2]int{1, 1}, [2]int{begun, ended})

		ctx, cancel = context.WithCancel(t.Context())
		wait(ctx)
		wait(ctx)
		assert.Equal(t, [2]int{2, 1}, [2]int{begun, ended}, "an error is not kept")
		cancel()
		synctest.Wait()
		assert.Equal(t, [2]int{2, 2}, [2]int{begun, ended}, "nobody waits for it")
		assert.NotContains(t, p.kept, keptName{"slow", "slow"})
	})
}
