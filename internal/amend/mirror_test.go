package amend

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/definitions"
)

// TestMirror: a private mirror is allowed what a preset allows its host, and no more, in one change.
func TestMirror(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "network: none")
	d, err := Open(p, "a")
	require.NoError(t, err)
	said, err := d.Allow(Change{Name: "npm.corp.example:8443", As: "npm", Address: netip.MustParseAddrPort("10.0.0.7:0")})
	require.NoError(t, err)
	assert.Contains(t, said, "npm.corp.example:8443: allowed (network.allow: npm.corp.example")
	hosts := d.agent.Grants.Hosts()
	for request, want := range map[[2]string]bool{
		{"GET", "/repository/npm/left-pad"}:                                    true,
		{"POST", "/-/npm/v1/security/advisories/bulk"}:                         true,
		{"POST", "/repository/npm/-/npm/v1/security/audits/quick"}:             true,
		{"PUT", "/repository/npm/left-pad"}:                                    false,
		{"POST", "/repository/npm/left-pad"}:                                   false,
		{"POST", "/-/npm/v1/security/advisories/bulk/../../../../../left-pad"}: false,
	} {
		decision, _ := hosts.Request("npm.corp.example", 8443, request[0], request[1])
		assert.Equal(t, want, decision.Allow, request)
	}
	_, route := hosts.Connect("npm.corp.example", 8443)
	assert.Equal(t, "10.0.0.7", route.Address.Addr().String())
	other, _ := hosts.Connect("npm.corp.example", 443)
	assert.False(t, other.Allow)

	for preset, want := range map[string]string{"none": "there is no preset", "anthropic": "has a key"} {
		_, err = d.Allow(Change{Name: "x.example", As: preset})
		assert.ErrorContains(t, err, want)
	}
}

// TestPresetAddress: a host of a preset whose address is not public gets what the preset allows it, at that address.
func TestPresetAddress(t *testing.T) {
	t.Parallel()
	for _, as := range []string{"", "npm"} {
		d, err := Open(agentOf(t, "network: {presets: [npm, anthropic]}"), "a")
		require.NoError(t, err)
		said, err := d.Allow(Change{Name: "registry.npmjs.org", As: as, Address: netip.MustParseAddrPort("203.0.113.80:0")})
		require.NoError(t, err)
		assert.Contains(t, said, "registry.npmjs.org: allowed (network.allow: registry.npmjs.org")
		hosts := d.agent.Grants.Hosts()
		for request, want := range map[[2]string]bool{
			{"GET", "/left-pad"}:                                       true,
			{"POST", "/-/npm/v1/security/audits/quick"}:                true,
			{"POST", "/repository/npm/-/npm/v1/security/audits/quick"}: false,
			{"PUT", "/left-pad"}:                                       false,
		} {
			decision, _ := hosts.Request("registry.npmjs.org", 443, request[0], request[1])
			assert.Equal(t, want, decision.Allow, request)
		}
		_, route := hosts.Connect("registry.npmjs.org", 443)
		assert.Equal(t, "203.0.113.80", route.Address.Addr().String())
		_, err = d.Allow(Change{Name: "api.anthropic.com", Address: netip.MustParseAddrPort("203.0.113.80:0")})
		assert.ErrorContains(t, err, "preset anthropic has a key")
	}
}

// TestYarn: what yarn reads is a mirror of npm's registry, and its refusal proposes the preset, not the host.
func TestYarn(t *testing.T) {
	t.Parallel()
	p := agentOf(t, "network: none")
	for _, host := range []string{"registry.npmjs.org", "registry.yarnpkg.com"} {
		assert.Equal(t, "scopefs allow npm", command(p, definitions.Read(p, nil), "a", Host, host), host)
	}
}
