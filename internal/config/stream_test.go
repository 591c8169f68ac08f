package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestStreamSettings: a stream that cannot work is one line of what to correct.
func TestStreamSettings(t *testing.T) {
	for text, want := range map[string]string{
		"{name: a, syslog: 'tcp://siem.example'}":                                                                           "",
		"{name: a, syslog: 'unix:///dev/log', from: start, late: 10s}":                                                      "",
		"{name: a, otlp: 'https://c.example/in', headers: {X-Tenant: t}, traces: true, credential: {env: A}, prefix: 'B '}": "",

		"{name: a}": "streams: a: write syslog or otlp",
		"{name: a, syslog: 'tcp://x', otlp: 'https://x'}":            "streams: a: write syslog or otlp",
		"{name: ../a, syslog: 'tcp://x'}":                            `streams: name "../a": write letters`,
		"{name: a, syslog: 'tcp://x'}, {name: a, syslog: 'tcp://y'}": "streams: a is there twice",
		"{name: a, syslog: 'x:601'}":                                 `streams: a: syslog: "x:601" is no address: write tcp://HOST:PORT`,
		"{name: a, syslog: 'tcp://x/path'}":                          `syslog: "tcp://x/path" is no address`,
		"{name: a, syslog: 'unix://log'}":                            `syslog: "unix://log" is no address: write unix:///dev/log`,
		"{name: a, syslog: 'tcp://x', credential: {env: A}}":         "credential: syslog has none: remove it",
		"{name: a, syslog: 'tcp://x', traces: true}":                 "traces, headers, header and prefix are of otlp: remove them",
		"{name: a, otlp: 'http://x', credential: {env: A}}":          "the credential would be readable on the way",
		"{name: a, otlp: 'grpc://x'}":                                `otlp: "grpc://x" is no address: write https://HOST:PORT`,
		"{name: a, otlp: 'https://x', header: X}":                    "header and prefix are for a credential: write one",
		"{name: a, otlp: 'https://x', headers: {Host: x}}":           "is no name of a header",
		"{name: a, otlp: 'https://x', from: then}":                   "want one of [now start]",
		"{name: a, otlp: 'https://x', late: soon}":                   "late: ",
		"{name: a, otlp: 'https://x', late: 1s}":                     "late: 1s is too short",
		"{name: a, otlp: 'https://x', credential: {file: rel}}":      "is relative: write an absolute path",
	} {
		base := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(base, "scopefs.yaml"), []byte("log:\n  streams: ["+text+"]\n"), 0o600))
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

// TestStreamAddress: the daemon dials the receiver that the settings name.
func TestStreamAddress(t *testing.T) {
	for want, s := range map[string]Stream{
		"tcp siem.example:601":    {Syslog: "tcp://siem.example"},
		"tcp siem.example:6514":   {Syslog: "tls://siem.example"},
		"udp siem.example:514":    {Syslog: "udp://siem.example"},
		"unixgram /dev/log":       {Syslog: "unix:///dev/log"},
		"tcp [::1]:4318":          {OTLP: "https://[::1]/x"},
		"tcp collector.example:1": {OTLP: "http://collector.example:1"},
	} {
		network, address := s.Address()
		assert.Equal(t, want, network+" "+address)
	}
}
