package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

func TestStoresMessages(t *testing.T) {
	h, err := Parse([]byte(`stores:
  messages: {url: "tls://nats.example:4222", user: u, password: {env: NATS}, messages: 5, size: 2MiB, age: 24h,
    channels: {team: ["research-*", coder], empty: []}, inboxes: {coder: [reviewer]}}
`), Checks{})
	require.NoError(t, err)
	require.Equal(t, Stores{Messages: &MessagesStore{
		URL: "tls://nats.example:4222", User: "u", Password: &credential.Source{Env: "NATS"}, Messages: 5, Size: 2 << 20, Age: 24 * time.Hour,
		Channels: map[string]agents.IDs{"team": {"research-*", "coder"}, "empty": {}}, Inboxes: map[string]agents.IDs{"coder": {"reviewer"}},
	}}, h.Stores)
	channels := h.Stores.Messages.Channels
	assert.True(t, channels["team"].Holds(scope.Principal{ID: "research-1", Origin: scope.FromOperator}))
	assert.False(t, channels["team"].Holds(scope.Principal{ID: "other", Origin: scope.FromOperator}))
	assert.False(t, channels["empty"].Holds(scope.Principal{ID: "coder", Origin: scope.FromOperator}))
	assert.False(t, channels["none"].Holds(scope.Principal{ID: "coder", Origin: scope.FromOperator}))
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
