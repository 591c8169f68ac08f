package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/fleet/order"
)

// TestFleetSettings: an error of the key fleet is one line that says what to write.
func TestFleetSettings(t *testing.T) {
	_, ada, err := order.NewKey("ada")
	require.NoError(t, err)
	_, twin, err := order.NewKey("ada")
	require.NoError(t, err)
	for text, want := range map[string]string{
		"fleet: {nats: 'tls://nats.example', name: web-1, trust: ['" + ada + "'], credential: {file: /t}}": "",
		"fleet: {nats: 'nats://127.0.0.1:4222', credential: {file: /t}}":                                   "",
		"fleet: {name: web-1}": "write nats",
		"fleet: {nats: 'nats://nats.example', credential: {file: /t}}":                                     "readable on the way",
		"fleet: {nats: 'http://nats.example'}":                                                             "is no address",
		"fleet: {nats: 'tls://nats.example', name: 'a.b'}":                                                 "write letters, digits",
		"fleet: {nats: 'tls://nats.example', trust: [x]}":                                                  "scopefs fleet keygen prints one",
		"fleet: {nats: 'tls://nats.example', trust: ['" + ada + "', '" + twin + "']}":                      "two keys have the name",
		"fleet: {nats: 'tls://nats.example', name: a, definitions: true}":                                  "write name, and trust",
		"fleet: {nats: 'tls://nats.example', name: a}\nlog: {streams: [{name: fleet, syslog: 'tcp://x'}]}": "rename it",
	} {
		base := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte(text+"\n"), 0o600))
		_, err := Load(Paths{Base: base, State: filepath.Join(base, "state"), Run: filepath.Join(base, "run")}, Checks{})
		if want == "" {
			assert.NoError(t, err, text)
			continue
		}
		if assert.ErrorContains(t, err, want, text) {
			assert.NotContains(t, err.Error(), "\n", text)
		}
	}
}
