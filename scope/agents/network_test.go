package agents

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
)

func networkOf(t *testing.T, text string) hosts.Network {
	t.Helper()
	def, err := ParseDefinition("a.md", []byte("---\nname: a\nnetwork: "+text+"\n---\n"))
	require.NoError(t, err)
	return def.Network
}

func TestNetwork(t *testing.T) {
	key := hosts.Credential{Header: "x-api-key", From: credential.Source{Env: "API_KEY"}}
	file := hosts.Credential{Format: "Bearer %s", From: credential.Source{File: "/etc/token"}}
	for text, want := range map[string]hosts.Network{
		"none":                   {Kind: hosts.None},
		"host":                   {Kind: hosts.HostNetwork},
		"{}":                     {Kind: hosts.Rules},
		"{ask: true}":            {Kind: hosts.Rules, Rules: network.Spec{Others: true}},
		"{ask: [a.example]}":     {Kind: hosts.Rules, Rules: network.Spec{Ask: []network.HostRule{{Host: "a.example"}}}},
		"{allow: ['*.example']}": {Kind: hosts.Rules, Rules: network.Spec{Allow: []network.HostRule{{Host: "*.example"}}}},
		"{deny: [{host: a.example, ports: [22, 80]}]}": {Kind: hosts.Rules, Rules: network.Spec{Deny: []network.HostRule{{Host: "a.example", Ports: []uint16{22, 80}}}}},
		"{allow: [{host: m.internal, address: '127.0.0.1:8443', methods: [GET], paths: ['/a/**'], intercept: true}, {host: n.internal, address: '::1'}]}": {Kind: hosts.Rules, Rules: network.Spec{Allow: []network.HostRule{
			{Host: "m.internal", Address: netip.MustParseAddrPort("127.0.0.1:8443"), Methods: []string{"GET"}, Paths: []string{"/a/**"}, Intercept: true},
			{Host: "n.internal", Address: netip.AddrPortFrom(netip.MustParseAddr("::1"), 0)},
		}}},
		"{allow: [{host: a.example, credential: {header: x-api-key, from: {env: API_KEY}}}, {host: b.example, credential: {format: Bearer %s, from: {file: /etc/token}, variable: TOKEN}}]}": {Kind: hosts.Rules,
			Rules:       network.Spec{Allow: []network.HostRule{{Host: "a.example", Secret: "API_KEY"}, {Host: "b.example", Secret: "TOKEN"}}},
			Credentials: map[string]hosts.Credential{"API_KEY": key, "TOKEN": file}},
		"{publish: [3000, '8080:80'], host: {ports: [15432]}}": {Kind: hosts.Rules, Ports: hosts.Ports{Published: []hosts.Publication{{At: 3000, Inside: 3000}, {At: 8080, Inside: 80}}, Host: []uint16{15432}}},
		"{presets: [npm, go], limit: {requests: 60/minute, bytes: 1GiB/day}}": {Kind: hosts.Rules, Presets: []string{"npm", "go"},
			Requests: []scope.Rate{{Pattern: "requests", N: 60, Per: time.Minute}},
			Bytes:    []scope.Rate{{Pattern: "bytes", N: 1 << 30, Per: 24 * time.Hour}}},
	} {
		assert.Equal(t, want, networkOf(t, text), text)
	}
}

func TestNetworkErrors(t *testing.T) {
	for text, want := range map[string]string{
		"{publish: [0]}":                       "no port",
		"{publish: [65536]}":                   "no port",
		"{publish: ['127.0.0.1:80']}":          "no port",
		"{publish: ['80:']}":                   "no port",
		"{publish: ['8080:3128']}":             "that of its proxy",
		"{publish: [80, 80]}":                  "twice",
		"{publish: ['80:1', '80:2']}":          "leads to two of the sandbox",
		"{host: {ports: [3128]}}":              "that of its proxy",
		"{host: {ports: ['15432:5432']}}":      "no port",
		"{host: [15432]}":                      "",
		"some":                                 `3: network: unknown "some": want one of [none host]`,
		"[github.com, \"*.org\"]":              `3: network: is a list: write network: {allow: [github.com, "*.org"]}`,
		"github.com":                           `3: network: "github.com" is a host: write network: {allow: [github.com]}`,
		"true":                                 `3: network: is "true": write none, host or {allow: [HOST]}`,
		"{allow: [\"https://github.com/x\"]}":  `3: network: "https://github.com/x" is a URL: write github.com`,
		"{allow: [github.com/x]}":              `3: network: "github.com/x" is a URL: write github.com`,
		"{allow: github.com}":                  `3: allow: is a text: want a list, [] for none: write [github.com]`,
		"\n\tallow: []":                        `4: begins with a tab: write spaces`,
		"{alow: []}":                           `3: unknown key "alow": did you mean allow`,
		"\n  allow:\n  - a.example\n  - 'a b'": `6: network: allow: "a b": host: malformed host`,
		"{allow: [{ports: [443]}]}":            `3: network: allow: "": host:`,
		"{allow: [{host: a, ports: [0]}]}":     `3: ports: "0" is no port: write a number from 1 to 65535`,
		"{allow: [{host: a, paths: [x]}]}":     `3: network: allow: "a": paths: "x" is no pattern`,
		"{deny: [{host: a, paths: [/x]}]}":     `methods, paths: are for network.allow`,
		"{allow: [{host: a, address: x}]}":     `3: address: "x" is no address: write one like 10.0.0.5 or 127.0.0.1:8443`,
		"{allow: [{host: a, address: '1.1.1.1'}, {host: a, address: '1.1.1.2'}]}": `two rules for the host differ in address or ca`,
		"{allow: [{host: a, ca: x}]}":                                                                              `3: ca: is no certificate: write the text of a PEM file`,
		"{allow: [{host: '*.a', credential: {from: {env: A}}}]}":                                                   `an address or a credential is for one host`,
		"{allow: [{host: a, credential: {header: x}}]}":                                                            `3: credential: has no from: write from: {env: NAME}`,
		"{allow: [{host: a, credential: {from: {file: /x}}}]}":                                                     `3: credential: variable: "" is no name of a variable`,
		"{allow: [{host: a, credential: {from: {env: A}, format: x}}]}":                                            `3: credential: format: "x" has not one %s`,
		"{allow: [{host: a, credential: {from: {env: A}}}, {host: b, credential: {from: {env: B}, variable: A}}]}": `variable: two credentials for A differ`,
		"{limit: {requests: 60}}":                                                                                  `3: requests: is a number: want a rate such as 60/minute`,
		"{limit: {requests: 6/week}}":                                                                              `3: requests: "6/week" is no rate: write one like 60/minute`,
		"{limit: {bytes: 1GB/day}}":                                                                                `3: bytes: "1GB/day" is no rate: write one like 1GiB/day`,
		"{presets: ['a:b']}":                                                                                       `3: network.presets: "a:b" holds a colon`,
	} {
		_, err := ParseDefinition("a.md", []byte("---\nname: a\nnetwork: "+text+"\n---\n"))
		assert.ErrorContains(t, err, want, text)
	}
}

// TestPresetsLoad: each preset of the package loads, and says what it is.
func TestPresetsLoad(t *testing.T) {
	all, errs := hosts.Presets(t.TempDir(), "")
	require.Empty(t, errs)
	for _, name := range []string{"anthropic", "openai", "gemini", "npm", "pypi", "go", "debian", "crates", "github"} {
		if assert.Contains(t, all, name) {
			assert.NotEmpty(t, all[name].Description, name)
		}
	}
}

// baseOf makes a base directory with definitions and other files.
func baseOf(t *testing.T, files map[string]string) string {
	base := t.TempDir()
	for name, text := range files {
		file := filepath.Join(base, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	return base
}

func definition(id, keys string) string { return "---\nname: " + id + "\n" + keys + "\n---\n" }

// TestPresets: a network has the rules of its presets; its own replace those for the
// same host, and the operator's file replaces the one of the package.
func TestPresets(t *testing.T) {
	base := baseOf(t, map[string]string{
		"agents.d/a.md":       definition("a", "network: {presets: [npm, mine, anthropic], allow: [{host: REGISTRY.npmjs.org, ports: [8443]}]}"),
		"agents.d/b.md":       definition("b", "network: {presets: [none]}"),
		"presets.d/mine.yaml": "allow: [mine.example]\n",
		"presets.d/go.yaml":   "allow: [go.example]\n",
	})
	all, errs := Load(base, Host{})
	require.Len(t, errs, 1)
	assert.ErrorContains(t, errs[0], `agents.d/b.md:3: network.presets: "none" matches no preset (there is anthropic, crates, debian`)
	h := all.Agents["a"].Grants.Hosts()
	for host, want := range map[string]bool{"mine.example": true, "api.anthropic.com": true, "registry.npmjs.org": false, "go.example": false} {
		d, _ := h.Connect(host, 443)
		assert.Equal(t, want, d.Allow, host)
	}
	d, _ := h.Connect("registry.npmjs.org", 8443)
	assert.True(t, d.Allow, "its own rule")
	assert.Contains(t, h.Credentials(), "ANTHROPIC_API_KEY")
	assert.Equal(t, []string{"go.example"}, []string{all.known.presets["go"].Allow[0].Host})

	before := all.Agents["a"].Grants
	require.NoError(t, os.WriteFile(filepath.Join(base, "presets.d/mine.yaml"), []byte("allow: [other.example]\n"), 0o644))
	assert.False(t, all.Current(base, "a"))
	next, _ := all.Reload(base, Host{})
	now := next.Agents["a"].Grants
	assert.False(t, before.Equal(now))
	assert.NotEqual(t, before.Version(), now.Version(), "an approval does not outlive the rules")
	d, _ = now.Hosts().Connect("mine.example", 443)
	assert.False(t, d.Allow)

	require.NoError(t, os.WriteFile(filepath.Join(base, "presets.d/mine.yaml"), []byte("alow: []\n"), 0o644))
	last, errs := next.Reload(base, Host{})
	assert.Len(t, errs, 2)
	assert.ErrorContains(t, errs[0], `presets.d/mine.yaml:1: unknown key "alow"`)
	d, _ = last.Agents["a"].Grants.Hosts().Connect("other.example", 443)
	assert.True(t, d.Allow, "the last good preset holds")
}

func hostsOf(t *testing.T, text string) *hosts.Policy {
	t.Helper()
	return hosts.Compile(networkOf(t, text), nil)
}

// TestHostsWithin: in a task a connection must be allowed by both.
func TestHostsWithin(t *testing.T) {
	pinned := "{allow: [{host: m.internal, address: '127.0.0.1:8443'}]}"
	other := "{allow: [{host: m.internal, address: '127.0.0.1:9'}]}"
	for name, c := range map[string]struct {
		member, caller string
		kind           hosts.Kind
		want           string // the decision about m.internal, and where it is
	}{
		"both host":            {"host", "host", hosts.HostNetwork, "allow"},
		"caller none":          {"host", "none", hosts.None, "deny caller boss: network: none"},
		"member none":          {"none", "host", hosts.None, "deny network: none"},
		"caller has rules":     {"host", pinned, hosts.Rules, "allow 127.0.0.1:8443"},
		"member has rules":     {pinned, "host", hosts.Rules, "allow 127.0.0.1:8443"},
		"both":                 {pinned, pinned, hosts.Rules, "allow 127.0.0.1:8443"},
		"pinned by the caller": {"{allow: [m.internal]}", pinned, hosts.Rules, "allow 127.0.0.1:8443"},
		"differ":               {pinned, other, hosts.Rules, "deny caller boss: another address or ca"},
		"caller denies":        {"{allow: [m.internal]}", "{deny: [m.internal], ask: true}", hosts.Rules, "deny caller boss: network.deny: m.internal"},
		"caller asks":          {"{allow: [m.internal]}", "{ask: true}", hosts.Rules, "ask caller boss: network.ask: true"},
		"both ask":             {"{ask: true}", "{ask: true}", hosts.Rules, "ask network.ask: true"},
		"member asks":          {"{ask: true}", "{allow: [m.internal]}", hosts.Rules, "ask network.ask: true"},
	} {
		h := hostsOf(t, c.member).Within(hostsOf(t, c.caller), "boss", "hand")
		assert.Equal(t, c.kind, h.Kind(), name)
		d, route := h.Connect("m.internal", 443)
		got := map[bool]string{true: "allow"}[d.Allow]
		switch {
		case d.Ask:
			got = "ask " + d.Rule
		case !d.Allow:
			got = "deny " + d.Rule
			assert.Zero(t, route, name)
		case route.Address.IsValid():
			got += " " + route.Address.String()
		}
		assert.Equal(t, c.want, got, name)
		if strings.Contains(d.Rule, "boss") && d.Kind == scope.KindHost {
			assert.Contains(t, d.Remedy, "members: {hand: {may: widen}}", name)
		}
	}
	var none *hosts.Policy
	d, _ := none.Connect("a.example", 443)
	assert.False(t, d.Allow)
	assert.Equal(t, hosts.None, none.Kind())
	broken := hosts.Compile(hosts.Network{Kind: hosts.Rules, Rules: network.Spec{Allow: []network.HostRule{{Host: "a b"}, {Host: "a.example"}}}}, nil)
	d, _ = broken.Connect("a.example", 443)
	assert.False(t, d.Allow, "rules that do not compile allow nothing")
}

// TestHostsWithinRequest: the caller's methods and paths hold too, and its credential
// is not the member's.
func TestHostsWithinRequest(t *testing.T) {
	caller := hostsOf(t, "{allow: [{host: a.example, methods: [GET], credential: {from: {env: KEY}}}]}")
	h := hostsOf(t, "{allow: [a.example]}").Within(caller, "boss", "hand")
	_, route := h.Connect("a.example", 443)
	assert.True(t, route.Intercept, "or the caller's methods would not hold")
	d, secret := h.Request("a.example", 443, "GET", "/")
	assert.True(t, d.Allow)
	assert.Empty(t, secret)
	d, _ = h.Request("a.example", 443, "POST", "/")
	assert.False(t, d.Allow)
	assert.Equal(t, scope.KindRequest, d.Kind)
	assert.Empty(t, h.Credentials())
}

// TestServerHosts: a server has its own rules, in a task within the member's.
func TestServerHosts(t *testing.T) {
	base := baseOf(t, map[string]string{
		"agents.d/hand.md": definition("hand", "network: {allow: [a.example]}\nmcp_servers: {s: {command: x, network: {allow: [a.example, b.example], presets: [npm]}}, n: {command: x}}"),
		"agents.d/boss.md": definition("boss", "network: {allow: [a.example]}\nmembers: [hand]"),
	})
	all, errs := Load(base, Host{})
	require.Empty(t, errs)
	hand, boss := all.Agents["hand"].Grants, all.Agents["boss"].Grants
	for _, c := range []struct {
		g    *Grants
		name string
		want []bool // a.example, b.example, registry.npmjs.org
	}{{hand, "s", []bool{true, true, true}}, {hand.Within(boss), "s", []bool{true, false, false}}, {hand, "n", []bool{false, false, false}}, {hand, "unknown", []bool{false, false, false}}} {
		for i, host := range []string{"a.example", "b.example", "registry.npmjs.org"} {
			d, _ := c.g.ServerHosts(c.name).Connect(host, 443)
			assert.Equal(t, c.want[i], d.Allow, c.name+" "+host)
		}
	}
}

// TestNetworkCA: certificates that nothing would use are an error with the remedy.
func TestNetworkCA(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, &key.PublicKey, key)
	require.NoError(t, err)
	ca := strconv.Quote(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	parse := func(list, more string) error {
		_, err := ParseDefinition("a.md", []byte(definition("a", "network: {"+list+": [{host: x.internal, ca: "+ca+more+"}]}")))
		return err
	}
	for _, list := range []string{"allow", "ask"} {
		assert.ErrorContains(t, parse(list, ""), `a.md:3: network: "x.internal": ca: is for requests that the proxy decides`)
		assert.ErrorContains(t, parse(list, ", ports: [8443]"), "add methods, paths, a credential or intercept: true, or remove ca")
		assert.NoError(t, parse(list, ", intercept: true"))
	}
	assert.NoError(t, parse("allow", ", methods: [GET]"))
	assert.NoError(t, parse("allow", ", paths: [/a]"))
	assert.NoError(t, parse("allow", ", credential: {from: {env: KEY}}"))
}

// TestPresetsLost: while a preset of the operator does not load, no preset with its name allows more. A running daemon keeps
// the last good one.
func TestPresetsLost(t *testing.T) {
	base, user := t.TempDir(), t.TempDir()
	require.NoError(t, os.Chmod(user, 0o700))
	write := func(dir, name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "presets.d"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "presets.d", name+".yaml"), []byte(text), 0o600))
	}
	host := func(all map[string]*hosts.Preset, name string) string {
		if all[name] == nil {
			return ""
		}
		return all[name].Allow[0].Host
	}
	write(user, "npm", "allow: [user.example]")
	write(user, "go", "allow: [user.example]")
	write(base, "npm", "allow: [base.example]")
	good, errs := hosts.Presets(base, user)
	require.Empty(t, errs)
	assert.Equal(t, "base.example", host(good, "npm"))
	assert.Equal(t, "user.example", host(good, "go"))
	assert.NotEmpty(t, host(good, "pypi"))

	write(user, "npm", "bad")
	write(user, "go", "bad")
	write(user, "pypi", "bad")
	all, errs := hosts.Presets(base, user)
	assert.Len(t, errs, 3)
	assert.Equal(t, "base.example", host(all, "npm"))
	assert.Empty(t, host(all, "go"))
	assert.Empty(t, host(all, "pypi"))
	assert.NotEmpty(t, host(all, "debian"))
	all, _ = hosts.ReadPresets(base, user, good)
	assert.Equal(t, "user.example", host(all, "go"))
	assert.Equal(t, host(good, "pypi"), host(all, "pypi"))

	write(base, "npm", "bad")
	all, _ = hosts.Presets(base, user)
	assert.Empty(t, host(all, "npm"))
	write(user, "npm", "allow: [user.example]")
	all, _ = hosts.Presets(base, user)
	assert.Empty(t, host(all, "npm"), "not the user's in place of the base's")

	write(base, "npm", "allow: [base.example]")
	require.NoError(t, os.Chmod(filepath.Join(user, "presets.d"), 0o777))
	for range 2 {
		all, errs = hosts.ReadPresets(base, user, all)
		assert.Len(t, errs, 1)
	}
	assert.Equal(t, "base.example", host(all, "npm"))
	all, _ = hosts.Presets(base, user)
	for range 2 {
		assert.Empty(t, host(all, "debian"))
		all, _ = hosts.ReadPresets(base, user, all)
	}
}
