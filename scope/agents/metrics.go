package agents

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
)

// MetricsStore is the store of metrics_write and metrics_query: an InfluxDB server.
type MetricsStore struct {
	URL        *url.URL
	Version    int    // of the server; 0: 1
	Org        string // of version 2
	User       string // of version 1
	Credential *credential.Source
	Addresses  []netip.Prefix
	Buckets    map[string]Patterns // who uses a bucket of several agents; by its name
	Retention  time.Duration       // 0: the default
	Timeout    time.Duration       // of a call; 0: the default
}

func metricsField(out **MetricsStore) field {
	return func(n *yaml.Node) error {
		s := &MetricsStore{}
		*out = s
		return mappingField(map[string]field{
			"url":        storeURLField(&s.URL),
			"version":    numberField(&s.Version, parseCount, "!!int"),
			"org":        textField(&s.Org),
			"user":       textField(&s.User),
			"credential": credentialField(&s.Credential),
			"addresses":  prefixesField(&s.Addresses),
			"buckets": grantedField(&s.Buckets, func(name string) error {
				if name == "" || len(name) > 128 || name[0] == '_' || strings.ContainsFunc(name, unicode.IsControl) {
					return fmt.Errorf("%q is no name of a bucket: write one without control characters that does not begin with _", name)
				}
				return nil
			}),
			"retention": durationField(&s.Retention),
			"timeout":   durationField(&s.Timeout),
		})(n)
	}
}
