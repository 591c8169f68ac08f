package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{
		"api.example.org": "api.example.org", "API.Example.ORG.": "api.example.org", "bücher.example": "xn--bcher-kva.example",
		"XN--bcher-kva.example": "xn--bcher-kva.example", "a_b.example": "a_b.example", "localhost": "localhost",
		"127.0.0.1": "127.0.0.1", "::1": "::1", "::ffff:127.0.0.1": "127.0.0.1", "0:0:0:0:0:ffff:7f00:1": "127.0.0.1", "FD00:EC2::254": "fd00:ec2::254",
		"１２７.0.0.1": "127.0.0.1", "127。0。0。1": "127.0.0.1", "1e100.net": "1e100.net", "a.0x": "",
		"": "", ".": "", "a..b": "", ".a": "", "a..": "", "0x7f.1": "", "2130706433": "", "127.1": "", "0177.0.0.1": "", "0x7f000001": "", "1.2.3.4.5": "",
		"a.0X7F": "", "127.0.0.1.": "", "[::1]": "", "fe80::1%lo": "", "a b": "", "a/b": "", "a@b": "", "a:80": "", "a\x00b": "", "%31": "", "*.a": "",
		strings.Repeat("a", 64) + ".example": "", strings.Repeat("a.", 127) + "aa": "",
	} {
		got, err := ParseHost(text)
		assert.Equal(t, want, got, text)
		if want == "" {
			assert.ErrorIs(t, err, ErrHost, text)
		}
	}
}

func TestNetworkConnect(t *testing.T) {
	pinned := netip.MustParseAddrPort("127.0.0.1:8443")
	n, err := Compile(Spec{
		Deny: []HostRule{{Host: "bad.example.org"}},
		Ask:  []HostRule{{Host: "ask.example.org"}},
		Allow: []HostRule{
			{Host: "*.Example.ORG"}, {Host: "bad.example.org", Ports: []uint16{443, 8443}}, {Host: "ask.example.org"}, {Host: "api.example.org", Paths: []string{"/v1/**"}},
			{Host: "models.internal", Address: pinned}, {Host: "git.example.net", Ports: []uint16{22}}, {Host: "8.8.8.8"},
		},
	})
	require.NoError(t, err)
	for _, c := range []struct {
		host      string
		port      uint16
		want      string
		intercept bool
	}{
		{"www.example.org", 443, "allow", false}, {"a.b.example.org", 80, "allow", false}, {"example.org", 443, "deny", false},
		{"notexample.org", 443, "deny", false}, {"www.example.org.evil.net", 443, "deny", false}, {"www.example.org", 22, "deny", false},
		{"bad.example.org", 443, "deny", false}, {"bad.example.org", 8443, "deny", false}, {"ask.example.org", 443, "ask", false},
		{"api.example.org", 443, "allow", true}, {"models.internal", 80, "allow", false}, {"git.example.net", 22, "allow", false},
		{"git.example.net", 443, "deny", false}, {"8.8.8.8", 443, "allow", false}, {"8.8.4.4", 443, "deny", false},
	} {
		d, route := n.Connect(c.host, c.port)
		got := map[[2]bool]string{{true, false}: "allow", {false, true}: "ask", {}: "deny"}[[2]bool{d.Allow, d.Ask}]
		assert.Equal(t, c.want, got, "%s:%d", c.host, c.port)
		assert.Equal(t, c.intercept, route.Intercept, c.host)
		assert.Equal(t, c.host == "models.internal", route.Address == pinned, c.host)
		if c.want == "deny" {
			assert.NotEmpty(t, d.Remedy, c.host)
			assert.Zero(t, route, c.host)
		}
	}
	d, _ := n.Connect("git.example.net", 443)
	assert.Equal(t, "add {host: git.example.net} to network.allow", d.Remedy)
	n, err = Compile(Spec{Others: true, Allow: []HostRule{{Host: "*"}}, Deny: []HostRule{{Host: "1.2.3.4"}}})
	require.NoError(t, err)
	for host, want := range map[string]bool{"any.example": true, "9.9.9.9": false, "::2": false} {
		d, _ := n.Connect(host, 443)
		assert.Equal(t, want, d.Allow, host)
		assert.Equal(t, !want, d.Ask, host)
	}
	for _, n := range []*Rules{nil, {}} {
		d, _ := n.Connect("any.example", 443)
		assert.Equal(t, scope.KindNothing, d.Kind)
		assert.False(t, d.Allow || d.Ask)
	}
}

// TestNetworkRequest: a path that a server may read in another way than the rule
// is not allowed.
func TestNetworkRequest(t *testing.T) {
	n, err := Compile(Spec{Allow: []HostRule{
		{Host: "h.example", Methods: []string{"GET", "HEAD"}, Paths: []string{"/{pub,top/{a,b}}/**", "/one/*"}},
		{Host: "h.example", Methods: []string{"POST"}, Paths: []string{"/submit"}, Secret: "token"},
		{Host: "free.example", Methods: []string{"GET"}},
	}})
	require.NoError(t, err)
	for _, c := range []struct {
		method, path string
		want         bool
	}{
		{"GET", "/pub/a", true}, {"HEAD", "/pub/a/b%20c", true}, {"GET", "/pub/@scope%2fname", true}, {"GET", "/one/a", true}, {"POST", "/submit", true}, {"GET", "/top/b/x", true}, {"GET", "/top/c/x", false},
		{"GET", "/private", false}, {"POST", "/pub/a", false}, {"GET", "/submit", false}, {"get", "/pub/a", false}, {"GET", "/one/a%2fb", false},
		{"GET", "/pub/../private", false}, {"GET", "/pub/%2e%2e/private", false}, {"GET", "/pub/..%2fprivate", false}, {"GET", "/pub/%252e%252e/private", false},
		{"GET", "/pub/..;x/private", false}, {"GET", "/pub/..\\private", false}, {"GET", "/pub/%5c..%5cprivate", false}, {"GET", "//pub/a", false},
		{"GET", "/pub//a", false}, {"GET", "/pub/./a", false}, {"GET", "/pub/a%00", false}, {"GET", "/pub/%zz", false}, {"GET", "pub/a", false}, {"GET", "*", false}, {"GET", "", false},
	} {
		d, secret := n.Request("h.example", 443, c.method, c.path)
		assert.Equal(t, c.want, d.Allow, "%s %s", c.method, c.path)
		assert.Equal(t, c.path == "/submit" && c.want, secret == "token", c.path)
		if !c.want {
			assert.Equal(t, scope.KindRequest, d.Kind)
		}
	}
	// The remedy names the path that was asked for, and no other.
	for path, want := range map[string]string{
		"/private":         "add GET and /private to methods and paths of h.example in network.allow",
		"/private/**":      `add GET and /private/\*\* to methods and paths of h.example in network.allow`,
		"/private/%7ba%7d": `add GET and /private/\{a\} to methods and paths of h.example in network.allow`,
		"/private/a;b":     "widen methods and paths of h.example in network.allow: servers read this path in several ways",
		"/private/a%2fb":   "widen methods and paths of h.example in network.allow: servers read this path in several ways",
	} {
		d, _ := n.Request("h.example", 443, "GET", path)
		assert.Equal(t, want, d.Remedy)
	}
	d, _ := n.Request("free.example", 443, "GET", "/a/../b")
	assert.True(t, d.Allow, "no path is restricted")
	d, _ = n.Request("other.example", 443, "GET", "/")
	assert.Equal(t, scope.KindHost, d.Kind)
}

func TestCompileNetworkRefuses(t *testing.T) {
	pin := netip.MustParseAddrPort("127.0.0.1:1")
	for want, spec := range map[string]Spec{
		"odd spelling":  {Allow: []HostRule{{Host: "127.1"}}},
		"no name":       {Deny: []HostRule{{Host: "http://a"}}},
		"no labels":     {Allow: []HostRule{{Host: "*.1.2.3.4"}}},
		"no method":     {Allow: []HostRule{{Host: "a", Methods: []string{"get"}}}},
		"braces":        {Allow: []HostRule{{Host: "a", Paths: []string{"/" + strings.Repeat("{a,aa}", 40) + "b"}}}}, // a match took hours
		"slash":         {Allow: []HostRule{{Host: "a", Paths: []string{"x/**"}}}},
		"without *":     {Allow: []HostRule{{Host: "*.a", Address: pin}}},
		"differ":        {Allow: []HostRule{{Host: "a", Address: pin}, {Host: "a"}}},
		"network.allow": {Ask: []HostRule{{Host: "a", Methods: []string{"GET"}}}},
	} {
		_, err := Compile(spec)
		assert.ErrorContains(t, err, want)
	}
}

func BenchmarkNetworkConnect(b *testing.B) {
	n, err := Compile(Spec{Allow: []HostRule{{Host: "*.example.org"}, {Host: "api.example.org"}}})
	require.NoError(b, err)
	for b.Loop() {
		n.Connect("api.example.org", 443)
	}
}
