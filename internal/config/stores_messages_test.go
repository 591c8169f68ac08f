package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
)

func TestStoresMessages(t *testing.T) {
	h, err := Parse([]byte(`stores:
  messages: {url: "tls://nats.example:4222", user: u, password: {env: NATS}, messages: 5, size: 2MiB, age: 24h,
    channels: {team: ["research-*", coder], empty: []}, inboxes: {coder: [reviewer]}}
`), Checks{})
	require.NoError(t, err)
	require.Equal(t, Stores{Messages: &MessagesStore{
		URL: "tls://nats.example:4222", User: "u", Password: &credential.Source{Env: "NATS"}, Messages: 5, Size: 2 << 20, Age: 24 * time.Hour,
		Channels: map[string]Patterns{"team": {"research-*", "coder"}, "empty": {}}, Inboxes: map[string]Patterns{"coder": {"reviewer"}},
	}}, h.Stores)
	channels := h.Stores.Messages.Channels
	assert.True(t, channels["team"].Allow("research-1"))
	assert.False(t, channels["team"].Allow("other"))
	assert.False(t, channels["empty"].Allow("coder"))
	assert.False(t, channels["none"].Allow("coder"))
	for text, want := range map[string]string{
		"channels: {a.b: [x]}": "name of a channel",
		"channels: {'>': [x]}": "name of a channel",
		"channels: [team]":     "channels",
		"channels: {team: x}":  `"team" is a text: want a list`,
		"messages: -1":         "above zero",
		"inboxes: {A: [x]}":    "invalid agent id",
		"size: 1KiB":           "1MiB",
	} {
		_, err := Parse([]byte("stores: {messages: {"+text+"}}"), Checks{})
		assert.ErrorContains(t, err, want, text)
	}
}
