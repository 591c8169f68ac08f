package stores

import (
	"cmp"
	"fmt"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools/metrics"
)

// retention is how old points may be by default.
const retention = 365 * 24 * time.Hour

// metrics adds the store of time series.
func (s *Stores) metrics(config *config.MetricsStore) error {
	if config == nil {
		return nil
	}
	server := metrics.Server{
		URL: config.URL, Version: cmp.Or(config.Version, 1), Org: config.Org, User: config.User, Credential: config.Credential,
		Addresses: config.Addresses, Retention: cmp.Or(config.Retention, retention), Timeout: config.Timeout,
	}
	influx, err := metrics.Open(server)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	list, err := metrics.New(influx, server.Retention, metrics.Buckets{Shared: granted(config.Buckets), Own: config.Own})
	if err != nil {
		return err
	}
	s.add(store{name: "metrics", kind: "influxdb", tools: list, check: influx.Ping, close: influx.Close})
	s.tools = append(s.tools, list...)
	return nil
}
