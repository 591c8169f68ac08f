package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope/agents"
)

// MetricsStore is the store of metrics_write and metrics_query: an InfluxDB server.
type MetricsStore struct {
	URL        *url.URL
	Version    int    // of the server; 0: 1
	Org        string // of version 2
	User       string // of version 1
	Credential *credential.Source
	Addresses  []netip.Prefix
	Buckets    map[string]agents.IDs // who uses a bucket of several agents; by its name
	Own        []string              // buckets that each agent has for itself, by name
	Retention  time.Duration         // 0: the default
	Timeout    time.Duration         // of a call; 0: the default
}

func metricsField(out **MetricsStore) fields.Field {
	return func(n *yaml.Node) error {
		s := &MetricsStore{}
		*out = s
		err := fields.Mapping(map[string]fields.Field{
			"url":        storeURLField(&s.URL),
			"version":    fields.Number(&s.Version, fields.ParseCount, "!!int"),
			"org":        fields.Text(&s.Org),
			"user":       fields.Text(&s.User),
			"credential": fields.Credential(&s.Credential),
			"addresses":  prefixesField(&s.Addresses),
			"buckets": named(&s.Buckets, func(name string) error {
				if name == "" || len(name) > 128 || name[0] == '_' || strings.ContainsFunc(name, unicode.IsControl) {
					return fmt.Errorf("%q is no name of a bucket: write one without control characters that does not begin with _", name)
				}
				return nil
			}, readPatterns),
			"own":       fields.Texts(&s.Own, "own", checkOwnBucket),
			"retention": fields.Duration(&s.Retention),
			"timeout":   fields.Duration(&s.Timeout),
		})(n)
		for _, name := range s.Own {
			if _, shared := s.Buckets[name]; err == nil && shared {
				err = fmt.Errorf("own: %q is under buckets, too: name one of the two otherwise", name)
			}
		}
		return err
	}
}

// checkOwnBucket returns an error for a name that no bucket of one agent can have: its database is the id, which has no "_", that
// character and the name.
func checkOwnBucket(name string) error {
	other := func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') }
	if name == "" || len(name) > 32 || strings.ContainsFunc(name, other) {
		return fmt.Errorf("%.64q is no name of an agent's own bucket: write letters and digits, at most 32", name)
	}
	return nil
}
