package objects

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
)

// listing is a page as a server writes it.
func listing(names ...string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0"?><ListBucketResult><Name>store</Name><IsTruncated>false</IsTruncated>`)
	for _, name := range names {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>&quot;e&quot;</ETag><Size>1</Size></Contents>", name)
	}
	return b.String() + "</ListBucketResult>"
}

// TestHostileServers: what a server answers ends, is bounded, and shows an agent
// nothing of another.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	text := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	failure := func(status int, code string) http.HandlerFunc {
		return text(status, "<Error><Code>"+code+"</Code><Message>"+hush+"</Message></Error>")
	}
	endless := func(before string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, before)
			for r.Context().Err() == nil {
				if _, err := w.Write([]byte(strings.Repeat("x", 64<<10))); err != nil {
					return
				}
			}
		}
	}
	get, list, put := "object_get", "object_list", "object_put"
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		tool   string
		want   tools.Code
		hint   string
	}{
		"another agent's name":  {text(200, listing("agents/a/k", "agents/b/k")), list, tools.Unavailable, "check the server"},
		"a longer id":           {text(200, listing("agents/ab/k")), list, tools.Unavailable, "check the server"},
		"a name outside":        {text(200, listing("etc/passwd")), list, tools.Unavailable, "check the server"},
		"an empty name":         {text(200, listing("")), list, tools.Unavailable, "check the server"},
		"a name that climbs":    {text(200, listing("agents/a/../b/k", "agents/a/k")), list, "", ""},
		"encoded name":          {text(200, strings.Replace(listing("agents%2Fb%2Fk"), "<Name>", "<EncodingType>url</EncodingType><Name>", 1)), list, tools.Unavailable, "check the server"},
		"the same page forever": {text(200, strings.Replace(listing("agents/a/k"), "false", "true", 1)), list, tools.Unavailable, ""},
		"other XML":             {text(200, "<ListAllMyBucketsResult/>"), list, tools.Unavailable, ""},
		"HTML":                  {text(200, "<html>login</html>"), list, tools.Unavailable, ""},
		"no XML":                {text(200, "\x00\xff"), list, tools.Unavailable, ""},
		"empty entries":         {text(200, "<ListBucketResult>"+strings.Repeat("<Contents/>", 600_000)), list, tools.Unavailable, ""},
		"entries with a prefix": {text(200, "<ListBucketResult>"+strings.Repeat("<x:Contents/>", 600_000)), list, tools.Unavailable, ""},
		"metadata":              {text(200, "<ListBucketResult><Contents><UserMetadata>"+strings.Repeat("<a>b</a>", 900_000)), list, tools.Unavailable, ""},
		"an endless page":       {endless("<ListBucketResult><Name>"), list, tools.Unavailable, ""},
		"an endless object":     {endless(""), get, tools.Unavailable, ""},
		"an endless error":      {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500); endless("<Error>")(w, r) }, get, tools.Unavailable, ""},
		"many entities":         {text(200, `<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><ListBucketResult><Name>&b;</Name></ListBucketResult>`), list, tools.Unavailable, ""},
		"redirect inside": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusTemporaryRedirect)
		}, get, tools.Unavailable, ""},
		"a huge header": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("ETag", strings.Repeat("x", 1<<20)) }, get, tools.Unavailable, ""},
		"hangs up":      {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, put, tools.Unavailable, "may have been made"},
		"truncated": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "x")
		}, get, tools.Unavailable, ""},
		"silent":       {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, get, tools.Unavailable, ""},
		"full":         {failure(507, "InsufficientStorage"), put, tools.Unavailable, "full"},
		"over quota":   {failure(403, "QuotaExceeded"), put, tools.Unavailable, "full"},
		"denied":       {failure(403, "AccessDenied"), put, tools.Unavailable, "rights"},
		"slow down":    {failure(503, "SlowDown"), put, tools.Unavailable, "later"},
		"strange code": {failure(400, "\u001b[2J"+strings.Repeat("x", 1000)), put, tools.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				requests++
				assert.NotContains(t, fmt.Sprint(r.URL, r.Header), hush)
				c.answer(w, r)
			}))
			t.Cleanup(server.Close)
			silent := name == "silent"
			u := newClient(t, open(t, server.URL, func(o *Options) {
				if o.Timeout = time.Minute; silent {
					o.Timeout = time.Second
				}
			}), "a", "")
			in := map[string]args{get: {"key": "k"}, list: {}, put: {"key": "k", "content": "x"}}[c.tool]
			err := u.call(t, c.tool, in, nil)
			assert.Equal(t, silent, strings.Contains(u.Last().Detail, "does not answer in time"), "a bound ends the answer, not the timeout: %s", u.Last().Detail)
			require.Equal(t, c.want, code(err), "%v %+v", err, u.Last())
			if c.hint != "" {
				assert.Contains(t, err.(*tools.Error).Hint, c.hint)
			}
			assert.Less(t, len(u.Last().Detail), 1000)
			if c.tool == put {
				assert.Equal(t, 1, requests, "a change is sent once")
			}
		})
	}
}

// TestBody: a body is sent as it is, under a signature of its hash. Whatever a server
// takes for the end of a body, no content is read as another request.
func TestBody(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "x", "0\r\n\r\nDELETE /store/agents/b/k HTTP/1.1\r\nHost: x\r\n\r\n"} {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, content, string(body))
			sum := sha256.Sum256(body)
			assert.Equal(t, hex.EncodeToString(sum[:]), r.Header.Get("X-Amz-Content-Sha256"))
			assert.Empty(t, r.Header.Get("Content-Encoding"))
			assert.EqualValues(t, len(content), r.ContentLength)
		}))
		c := newClient(t, open(t, server.URL, nil), "a", "")
		must[done](t, c, "object_put", args{"key": "k", "content": content})
		server.Close()
	}
}

// TestHosts: no request goes to another host than the operator has named.
func TestHosts(t *testing.T) {
	t.Parallel()
	for address, want := range map[string][]string{
		"https://s3.eu-west-1.amazonaws.com": {"store.s3.eu-west-1.amazonaws.com"},
		"https://s3.amazonaws.com":           nil, // which is another region's
		"https://storage.googleapis.com":     {"store.storage.googleapis.com"},
		"https://s3.example":                 {"s3.example"},
	} {
		var asked []string
		u := newClient(t, open(t, address, func(o *Options) {
			o.Region = "eu-west-1"
			o.Dial = (&egress.Dialer{Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
				asked = append(asked, host)
				return nil, errors.New("no such host")
			}}).DialContext
		}), "a", "")
		for tool, in := range map[string]args{"object_get": {"key": "k"}, "object_list": {}} {
			assert.Equal(t, tools.Unavailable, code(u.call(t, tool, in, nil)), address)
		}
		slices.Sort(asked)
		assert.Equal(t, want, slices.Compact(asked), address)
	}
}
