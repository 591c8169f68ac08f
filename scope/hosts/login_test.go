package hosts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope/network"
)

func read(t *testing.T, text string) (Network, error) {
	var doc yaml.Node
	require.NoError(t, yaml.Unmarshal([]byte(text), &doc))
	var n Network
	err := Field(&n, nil)(doc.Content[0])
	return n, err
}

// TestLoginRules: the entries of a login hold in its runs, there in place of the others for their hosts, and nowhere else.
func TestLoginRules(t *testing.T) {
	n, err := read(t, `{allow: [{host: api.test, credential: {from: {env: API_KEY}}}, {host: API.test, paths: ["/v1/**"], login: a}, {host: sub.test, login: a},
  {host: other.test, login: b}, {host: plain.test}, {host: asked.test, login: a}, {host: denied.test, login: a}], ask: [asked.test], deny: [denied.test]}`)
	require.NoError(t, err)
	without := Compile(n, nil)
	in, ok := without.For("a")
	require.True(t, ok)
	_, ok = without.For("c")
	assert.False(t, ok)
	for _, c := range []struct {
		of         *Policy
		host, path string
		allow, ask bool
		secret     string
	}{
		{without, "api.test", "/keys", true, false, "API_KEY"},
		{without, "api.test", "/v1/x", true, false, "API_KEY"},
		{without, "sub.test", "/", false, false, ""},
		{without, "other.test", "/", false, false, ""},
		{without, "plain.test", "/", true, false, ""},
		{in, "api.test", "/keys", false, false, ""},
		{in, "api.test", "/v1/x", true, false, "login:a"},
		{in, "sub.test", "/", true, false, "login:a"},
		{in, "other.test", "/", false, false, ""},
		{in, "plain.test", "/", true, false, ""},
		{in, "asked.test", "/", false, true, ""}, // nothing in ask or deny gives way
		{in, "denied.test", "/", false, false, ""},
	} {
		d, secret := c.of.Request(c.host, 443, "GET", c.path)
		assert.Equal(t, c.allow, d.Allow, c)
		assert.Equal(t, c.ask, d.Ask, c)
		if d.Allow {
			assert.Equal(t, c.secret, secret, c)
		}
	}
	_, route := in.Connect("sub.test", 443)
	assert.True(t, route.Intercept)
	assert.Contains(t, without.Credentials(), "API_KEY")
	assert.NotContains(t, in.Credentials(), "API_KEY", "the sandbox has no variable of a key that is not used")
	assert.NotContains(t, without.Names(), "sub.test")
	assert.Contains(t, in.Names(), "sub.test")

	// A caller's rules bind a login as everything else.
	narrow := without.Within(Compile(Network{Kind: Rules, Rules: network.Spec{Allow: []network.HostRule{{Host: "plain.test"}}}}, nil), "caller", "member")
	in, ok = narrow.For("a")
	require.True(t, ok)
	d, _ := in.Request("sub.test", 443, "GET", "/")
	assert.False(t, d.Allow)

	for text, want := range map[string]string{
		`{allow: [{host: api.test, login: a, credential: {from: {env: X}}}]}`: "has a credential and a login",
		`{allow: [{host: "*.test", login: a}]}`:                               "are for one host",
	} {
		_, err := read(t, text)
		assert.Error(t, err, want)
	}
}
