package forget

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
)

// Left returns what an agent may have on the servers of stores that forget does not remove there: it takes an administrator.
func Left(s config.Stores, id scope.ID) (all []api.Left) {
	if s.SQL != nil && s.SQL.Postgres != nil {
		if role, err := (share.Schemas{}).Apply(id, ""); err == nil {
			all = append(all, postgres(*s.SQL.Postgres, role))
		}
	}
	if s.Metrics != nil {
		part, _ := share.Buckets.Apply(id, "x") // cannot fail
		part = strings.TrimSuffix(part, "x")
		for _, own := range append([]string{""}, s.Metrics.Own...) {
			all = append(all, influx(s.Metrics, part+own))
		}
		if shared := slices.Sorted(maps.Keys(s.Metrics.Buckets)); len(shared) > 0 {
			all = append(all, api.Left{What: "its points in the buckets of several agents, until their retention ends: " +
				strings.Join(shared, ", ")})
		}
	}
	if s.Messages != nil && len(s.Messages.Channels) > 0 {
		all = append(all, api.Left{What: "its messages in channels and inboxes of others, until they end there: " +
			strings.Join(slices.Sorted(maps.Keys(s.Messages.Channels)), ", ")})
	}
	return all
}

// postgres returns the schema and the roles of an agent.
func postgres(p config.Postgres, role string) api.Left {
	login := "login_" + strings.TrimPrefix(role, "agent_")
	at := url.URL{Scheme: "postgres", User: url.User(p.User), Host: p.Address, Path: "/" + p.Database}
	if p.Network == "unix" {
		at.Host = ""
		at.RawQuery = url.Values{"host": {path.Dir(p.Address)}, "port": {strings.TrimPrefix(path.Ext(p.Address), ".")}}.Encode()
	} else if p.TLS != "" {
		at.RawQuery = "sslmode=verify-full"
	}
	return api.Left{What: fmt.Sprintf("schema %s, roles %[1]s and %s in PostgreSQL", role, login),
		Command: printable.Command("psql", at.String(), "-c", fmt.Sprintf(`DROP OWNED BY "%s", "%s"`, role, login),
			"-c", fmt.Sprintf(`DROP SCHEMA "%s" CASCADE`, role), "-c", fmt.Sprintf(`DROP ROLE "%s", "%s"`, login, role))}
}

// influx returns a database of an agent, a bucket of version 2.
func influx(s *config.MetricsStore, name string) api.Left {
	words := []string{"influxdb3", "delete", "database", "--host", s.URL.String(), name}
	switch cmp.Or(s.Version, 1) {
	case 1:
		port := cmp.Or(s.URL.Port(), map[string]string{"https": "443"}[s.URL.Scheme], "80")
		words = []string{"influx", "-host", s.URL.Hostname(), "-port", port, "-username", s.User,
			"-execute", fmt.Sprintf(`DROP DATABASE "%s"`, name)}
		if s.URL.Scheme == "https" {
			words = slices.Insert(words, 1, "-ssl")
		}
	case 2:
		words = []string{"influx", "bucket", "delete", "--host", s.URL.String(), "--org", s.Org, "--name", name}
	}
	at := s.URL.Host // without a port, the scheme's
	return api.Left{What: fmt.Sprintf("%s in InfluxDB at %s", name, at), Command: printable.Command(words...)}
}
