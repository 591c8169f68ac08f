package session

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/tools/egress"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestTrustPrepared: OpenSandboxes makes the files of what a session trusts, so that its start does not make them again.
func TestTrustPrepared(t *testing.T) {
	s := &Shared{Host: &account.Host{Paths: config.Paths{State: t.TempDir()}}, Soon: true}
	for _, company := range []string{"", "-----BEGIN CERTIFICATE-----\n"} {
		s.Settings.Network.CA = company
		for kind, proxy := range map[hosts.Kind]bool{hosts.HostNetwork: false, hosts.None: true} {
			var spec sandbox.Spec
			s.equipNetwork(&spec, kind, func() map[string]egress.Secret { return nil })
			assert.Equal(t, proxy, spec.Proxy)
			assert.Contains(t, string(spec.Trust), company)
			if proxy {
				assert.Equal(t, string(spec.Trust), string(s.sandboxConfig().Trust()))
			}
		}
	}
}
