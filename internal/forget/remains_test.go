package forget_test

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/forget"
	"github.com/scopefs/scopefs/scope/agents"
)

// TestLeft: what stays of an agent on servers is named, with the command that removes it.
func TestLeft(t *testing.T) {
	t.Parallel()
	at, err := url.Parse("https://influx.example:8086")
	require.NoError(t, err)
	metrics := func(version int) config.Stores {
		return config.Stores{Metrics: &config.MetricsStore{URL: at, Version: version, Org: "o", User: "u", Own: []string{"m"}}}
	}
	postgres := func(p config.Postgres) config.Stores { return config.Stores{SQL: &config.SQLStore{Postgres: &p}} }
	const roles = `-c 'DROP OWNED BY "agent_a", "login_a"' -c 'DROP SCHEMA "agent_a" CASCADE' -c 'DROP ROLE "login_a", "agent_a"'`
	for name, test := range map[string]struct {
		of   config.Stores
		want []api.Left
	}{
		"nothing": {of: config.Stores{SQL: &config.SQLStore{}, Messages: &config.MessagesStore{}}},
		"postgres": {postgres(config.Postgres{Network: "tcp", Address: "db.example:5433", TLS: "db.example", User: "admin", Database: "d"}), []api.Left{{
			What: "schema agent_a, roles agent_a and login_a in PostgreSQL", Command: "psql 'postgres://admin@db.example:5433/d?sslmode=verify-full' " + roles}}},
		"a socket": {postgres(config.Postgres{Network: "unix", Address: "/run/pg/.s.PGSQL.5432", User: "admin", Database: "d"}), []api.Left{{
			What: "schema agent_a, roles agent_a and login_a in PostgreSQL", Command: "psql 'postgres://admin@/d?host=%2Frun%2Fpg&port=5432' " + roles}}},
		"influx 1": {metrics(0), []api.Left{
			{What: "a_ in InfluxDB at influx.example:8086", Command: `influx -ssl -host influx.example -port 8086 -username u -execute 'DROP DATABASE "a_"'`},
			{What: "a_m in InfluxDB at influx.example:8086", Command: `influx -ssl -host influx.example -port 8086 -username u -execute 'DROP DATABASE "a_m"'`}}},
		"influx 2": {metrics(2), []api.Left{
			{What: "a_ in InfluxDB at influx.example:8086", Command: "influx bucket delete --host https://influx.example:8086 --org o --name a_"},
			{What: "a_m in InfluxDB at influx.example:8086", Command: "influx bucket delete --host https://influx.example:8086 --org o --name a_m"}}},
		"influx 3": {metrics(3), []api.Left{
			{What: "a_ in InfluxDB at influx.example:8086", Command: "influxdb3 delete database --host https://influx.example:8086 a_"},
			{What: "a_m in InfluxDB at influx.example:8086", Command: "influxdb3 delete database --host https://influx.example:8086 a_m"}}},
		"channels": {config.Stores{Messages: &config.MessagesStore{Channels: map[string]agents.IDs{"x": nil, "b": nil}}}, []api.Left{
			{What: "its messages in channels and inboxes of others, until they end there: b, x"}}},
	} {
		assert.Equal(t, test.want, forget.Left(test.of, "a"), name)
	}
}
