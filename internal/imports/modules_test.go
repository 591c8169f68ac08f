package imports

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/scope"
)

const modules = `agent_type: watcher
credentials: CREDENTIALS
modules:
  sqlite: {mode: read, config: {db_dir: /data}}
  redis: {mode: write}
  influxdb: {mode: read, config: {org: house, buckets: [climate, "power use"]}}
  nats: {mode: write}
  http_proxy: {config: {allowed_services: [{name: api, base_url: 'https://api.example/v1', credential_key: API_TOKEN}, {name: open, base_url: 'https://open.example'}, {name: 'x*', base_url: 'https://x'}, {name: y, base_url: 'https://u:p@y'}]}}
  slack_webhook: {}
  alerts: {type: discord_webhook}
  ntfy: {config: {topic: 'house-{agent_id}', max_priority: high}}
  matrix: {config: {allowed_rooms: ['!a:example', '!b:example']}}
  smtp: {config: {from_address: a@example, allowed_recipients: [b@example]}}
`

// stores is what scopefs.yaml needs for modules, with secrets of the environment.
const stores = `stores:
  sql:
    dir: /data
  kv:
    redis: "redis.example:6380"
    tls: true
  metrics:
    url: INFLUXDB_URL
    version: 2
    org: house
    credential:
      env: INFLUXDB_TOKEN
    buckets:
      climate: [watcher]
      power use: [watcher]
  messages:
    url: NATS_URL
  services:
    api:
      url: "https://api.example/v1"
      agents: [watcher]
      methods: [GET, POST, PUT, DELETE]
      credential:
        env: API_TOKEN
      prefix: 'Bearer '
    open:
      url: "https://open.example"
      agents: [watcher]
      methods: [GET, POST, PUT, DELETE]
  notify:
    slack_webhook-watcher:
      kind: slack
      credential:
        env: SLACK_WEBHOOK_URL
      agents: [watcher]
    alerts-watcher:
      kind: discord
      credential:
        env: DISCORD_WEBHOOK_URL
      agents: [watcher]
    ntfy-watcher:
      kind: ntfy
      url: "https://ntfy.example/house-watcher"
      credential:
        env: NTFY_TOKEN
      agents: [watcher]
    matrix-watcher:
      kind: matrix
      url: MATRIX_HOMESERVER
      room: "!a:example"
      credential:
        env: MATRIX_ACCESS_TOKEN
      agents: [watcher]
    matrix-2-watcher:
      kind: matrix
      url: MATRIX_HOMESERVER
      room: "!b:example"
      credential:
        env: MATRIX_ACCESS_TOKEN
      agents: [watcher]
    smtp-watcher:
      kind: email
      url: "smtp://SMTP_HOST:SMTP_PORT"
      from: a@example
      to: [b@example]
      user: SMTP_USER
      credential:
        env: SMTP_PASSWORD
      agents: [watcher]
`

// TestManifestStores: each module's entry in scopefs.yaml, which scopefs reads when the
// operator has written the addresses, and each form of credentials. No value of the
// environment that may be a secret is in it.
func TestManifestStores(t *testing.T) {
	env := map[string]string{"REDIS_URL": "rediss://redis.example:6380", "NTFY_URL": "https://ntfy.example/", "MATRIX_HOMESERVER": "https://user:secret@matrix.example", "NATS_URL": "tls://nats.example?token=secret",
		"INFLUXDB_TOKEN": "secret", "API_TOKEN": "secret", "SLACK_WEBHOOK_URL": "https://hooks.example/secret"}
	for credentials, change := range map[string]func(string) string{
		"{source: env}": func(s string) string { return s },
		"{source: file, path: /run/secrets.yml}": func(s string) string {
			s = strings.NewReplacer("redis: \"redis.example:6380\"\n    tls: true", "redis: REDIS_URL", "https://ntfy.example/", "NTFY_URL/").Replace(s)
			return strings.ReplaceAll(strings.ReplaceAll(s, `"NTFY_URL/house-watcher"`, "NTFY_URL/house-watcher"), "env: ", "file: /run/secrets.yml\nkey: ")
		},
	} {
		r := one(t, Source{Tools: ours(t), Text: []byte(strings.Replace(modules, "CREDENTIALS", credentials, 1)), Format: ScopedMCP, Env: func(name string) (string, bool) { v, ok := env[name]; return v, ok }})
		got := strings.ReplaceAll(string(r.Stores), "\n      ", "\n")
		want := strings.ReplaceAll(change(stores), "\n      ", "\n")
		strip := func(s string) string { return strings.ReplaceAll(s, " ", "") }
		assert.Equal(t, strip(want), strip(got))
		assert.NotContains(t, string(r.Stores)+string(r.Text), "secret@")
		assert.NotContains(t, string(r.Stores), "token=")
		assert.NotContains(t, string(r.Stores), "hooks.example")
		accepted(t, r)
		text := strings.NewReplacer("REDIS_URL", "redis.example:1", "INFLUXDB_URL", "https://influx.example", "NATS_URL", "tls://nats.example", "NTFY_URL", "https://ntfy.example", "MATRIX_HOMESERVER", "https://matrix.example",
			"SMTP_HOST:SMTP_PORT", "mail.example:587").Replace(string(r.Stores))
		host, err := config.Parse([]byte(text), config.Checks{})
		require.NoError(t, err, "%s", text)
		assert.True(t, host.Stores.Services["api"].Allows(scope.Principal{ID: "watcher", Origin: scope.FromOperator}))
		assert.False(t, host.Stores.Services["api"].Allows(scope.Principal{ID: "other", Origin: scope.FromOperator}))
	}
	r := one(t, Source{Tools: ours(t), Format: ScopedMCP, Text: []byte("agent_type: w\nmodules: {slack: }\ncredentials: {source: vault, vault: {addr: 'https://v', path: 'secret/data/agents/{agent_type}'}}")})
	assert.Contains(t, string(r.Stores), "command: [/usr/bin/vault, kv, get, -mount=secret, -field=SLACK_WEBHOOK_URL, agents/w]")
	for text, want := range map[string]string{
		"credentials: {source: file}":                            "want source: env, file with path",
		"credentials: {source: keyring}":                         "want source: env, file with path",
		"modules: {redis: {mode: all}}":                          `mode is "all"`,
		"modules: {http_proxy: {config: {allowed_services: x}}}": "want a list",
	} {
		if !strings.Contains(text, "modules") {
			text += "\nmodules: {}"
		}
		_, err := Convert(Source{Tools: ours(t), Text: []byte("agent_type: a\n" + text), Format: ScopedMCP})
		assert.ErrorContains(t, err, want, text)
	}
	assert.Nil(t, one(t, Source{Tools: ours(t), Format: ScopedMCP, Text: []byte("agent_type: a\nmodules: {filesystem: {}}")}).Stores)
}
