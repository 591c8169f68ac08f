package config

import (
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
)

func TestStores(t *testing.T) {
	h, err := Parse([]byte(`stores:
  kv: {redis: "127.0.0.1:6379", user: u, password: {file: /etc/redis.pass}, keys: 10, size: 1MiB}
  sql:
  metrics: {url: "https://influx.example", version: 2, org: o, credential: {env: INFLUX}, addresses: [10.0.0.6], retention: 720h, timeout: 5s}
  services:
    grafana: {url: "https://grafana.example/api", agents: ["research-*"], methods: [GET, POST], paths: ["dashboards/**"],
      addresses: [10.0.0.5, "10.1.0.0/16"], credential: {env: GRAFANA}, prefix: "Bearer ", timeout: 5s}
  notify:
    ops: {kind: email, url: "smtp://mail.example:587", from: a@x.example, to: [b@x.example], user: u, credential: {env: MAIL}, agents: [a],
      addresses: [10.0.0.5], rate: 3, timeout: 5s}
  objects: {url: "https://s3.example:9000", bucket: b, prefix: p, region: r, access_key: k, secret_key: {env: S3}, addresses: [10.0.0.5], timeout: 5s}
`), Checks{})
	require.NoError(t, err)
	assert.Equal(t, Stores{
		KV:  &KVStore{Redis: "127.0.0.1:6379", User: "u", Password: &credential.Source{File: "/etc/redis.pass"}, Keys: 10, Size: 1 << 20},
		SQL: &SQLStore{},
		Metrics: &MetricsStore{
			URL: &url.URL{Scheme: "https", Host: "influx.example"}, Version: 2, Org: "o", Credential: &credential.Source{Env: "INFLUX"},
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.6/32")}, Retention: 720 * time.Hour, Timeout: 5 * time.Second,
		},
		Services: map[string]Service{"grafana": {
			URL: "https://grafana.example/api", Agents: []string{"research-*"}, Methods: []string{"GET", "POST"}, Paths: []string{"dashboards/**"},
			Addresses:  []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32"), netip.MustParsePrefix("10.1.0.0/16")},
			Credential: &credential.Source{Env: "GRAFANA"}, Prefix: "Bearer ", Timeout: 5 * time.Second,
		}},
		Notify: map[string]Channel{"ops": {
			Kind: "email", URL: &url.URL{Scheme: "smtp", Host: "mail.example:587"}, From: "a@x.example", To: []string{"b@x.example"}, User: "u",
			Credential: &credential.Source{Env: "MAIL"}, Agents: []string{"a"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")},
			Rate: 3, Timeout: 5 * time.Second,
		}},
		Objects: &ObjectStore{
			URL: &url.URL{Scheme: "https", Host: "s3.example:9000"}, Bucket: "b", Prefix: "p", Region: "r", AccessKey: "k", SecretKey: &credential.Source{Env: "S3"},
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/32")}, Timeout: 5 * time.Second,
		},
	}, h.Stores)
	assert.True(t, h.Stores.Services["grafana"].Allows(scope.Principal{ID: "research-01", Origin: scope.FromOperator}))
	assert.False(t, h.Stores.Services["grafana"].Allows(scope.Principal{ID: "other", Origin: scope.FromOperator}))
	assert.True(t, h.Stores.Notify["ops"].Allows(scope.Principal{ID: "a", Origin: scope.FromOperator}))
	assert.False(t, h.Stores.Notify["ops"].Allows(scope.Principal{ID: "ab", Origin: scope.FromOperator}))
}

func TestStoresWrong(t *testing.T) {
	for text, want := range map[string]string{
		"kv: {redis: nowhere}":                      "HOST:PORT",
		"kv: {password: {}}":                        "one of env, file and command",
		"kv: {password: {env: A, file: /b}}":        "one of env, file and command",
		"kv: {password: {file: b}}":                 "absolute",
		"kv: {pasword: x}":                          "pasword",
		"metrics: {url: nowhere}":                   "https://HOST",
		"metrics: {url: 'https://x', version: two}": "want a number",
		"metrics: {url: 'https://x', password: x}":  "password",

		"metrics: {url: 'https://x', own: [a_b]}":                     `own: "a_b" is no name of an agent's own bucket`,
		"metrics: {url: 'https://x', own: ['']}":                      "letters and digits",
		"metrics: {url: 'https://x', own: [raw], buckets: {raw: []}}": `own: "raw" is under buckets, too`,
		"mongo: {}":                                                                          "mongo",
		"services: {a: {url: x}}":                                                            "https://HOST/PATH",
		"services: {a/b: {url: 'https://x'}}":                                                "name of a service",
		"services: {a: {url: 'https://x', addresses: [x]}}":                                  "10.0.0.0/24",
		"services: {a: {url: 'https://x', header: 'A B'}}":                                   "header",
		"services: {a: {url: 'https://x', prefix: \"a\\nb\"}}":                               "prefix",
		"notify: {a/b: {kind: slack}}":                                                       "name of a channel",
		"notify: {a: {url: x}}":                                                              "https://HOST/PATH",
		"notify: {a: {kind: [x]}}":                                                           "kind",
		"notify: {a: {addresses: [x]}}":                                                      "10.0.0.0/24",
		"notify: {a: {header: 'A B'}}":                                                       "header",
		"notify: {a: {rate: 0}}":                                                             "above zero",
		"objects: {url: x}":                                                                  "https://HOST/PATH",
		"objects: {secret_key: x}":                                                           "secret_key",
		"objects: []":                                                                        "objects",
		"sql: {postgres: 'mysql://u@h/d', password: {env: A}}":                               "postgres://USER@HOST/DATABASE",
		"sql: {postgres: 'postgres://u@h/d'}":                                                "password: is missing",
		"sql: {password: {env: A}}":                                                          "password: is for a server",
		"sql: {dir: /d, postgres: 'postgres://u@h/d', password: {env: A}}":                   "dir: is for SQLite",
		"sql: {postgres: 'postgres://u:hush@h/d', password: {env: A}}":                       "holds a password",
		"sql: {postgres: 'postgres://h/d', password: {env: A}}":                              "names no user",
		"sql: {postgres: 'postgres://u@h', password: {env: A}}":                              "names no user",
		"sql: {postgres: 'postgres://u@h/d?options=-c', password: {env: A}}":                 "has \"options\"",
		"sql: {postgres: 'postgres://u@h/d?sslmode=disable', password: {env: A}}":            "write verify-full",
		"sql: {postgres: 'postgres://u@h/d?sslmode=prefer', password: {env: A}}":             "neither verify-full nor disable",
		"sql: {postgres: 'postgres://u@/d?host=/s&sslmode=verify-full', password: {env: A}}": "a socket has no TLS",
	} {
		_, err := Parse([]byte("stores: {"+text+"}"), Checks{})
		assert.ErrorContains(t, err, want, text)
	}
}

func TestStoresPostgres(t *testing.T) {
	for text, want := range map[string]Postgres{
		"postgres://u@db.example/d":                      {"tcp", "db.example:5432", "db.example", "u", "d"},
		"postgresql://u@127.0.0.1:6000/d":                {"tcp", "127.0.0.1:6000", "", "u", "d"},
		"postgres://u@localhost/d?sslmode=verify-full":   {"tcp", "localhost:5432", "localhost", "u", "d"},
		"postgres://u@/d?host=/run/postgresql&port=6000": {"unix", "/run/postgresql/.s.PGSQL.6000", "", "u", "d"},
	} {
		h, err := Parse([]byte("stores: {sql: {postgres: '"+text+"', password: {env: A}}}"), Checks{})
		require.NoError(t, err, text)
		assert.Equal(t, &SQLStore{Postgres: &want, Password: &credential.Source{Env: "A"}}, h.Stores.SQL)
	}
}
