package tools

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/tools"
)

// TestStoresMetrics: two agents write the same measurement and never meet; one
// that may only read writes nothing; a server that ends takes no other store along.
func TestStoresMetrics(t *testing.T) {
	const hush = "s3cret-of-the-operator"
	h := harness.LayOut(t, map[string]string{"a": "", "ab": "", "reader": "view: {access: read}", "none": "tools: [read_file]"})
	server := servertest.StartMetrics(t, t.TempDir(), hush)
	h.Put("influx.secret", hush+"\n")
	require.NoError(t, os.Chmod(filepath.Join(h.Base, "influx.secret"), 0o600))
	h.Put("scopefs.yaml", fmt.Sprintf("stores:\n  kv: {}\n  metrics: {url: 'http://%s', user: scopefs, credential: {file: %s/influx.secret}, timeout: 5s, own: [raw, daily], buckets: {team: [ab]}}\n", server.Address, h.Base))
	h.Start()

	point := func(of string) args {
		return args{"points": []args{{"measurement": "cpu", "tags": args{"host": "h"}, "fields": args{"of": of}, "time": time.Now().UTC().Truncate(time.Minute).Format(time.RFC3339)}}}
	}
	query := args{"measurement": "cpu", "fields": []args{{"name": "of"}}}
	users := map[string]*harness.User{}
	for _, id := range []string{"a", "ab"} {
		users[id] = h.Connect(id)
		assert.Equal(t, 1.0, users[id].Call("metrics_write", point("of "+id))["points"])
	}
	for id, u := range users {
		series := u.Call("metrics_query", query)["series"].([]any)
		require.Len(t, series, 1, id)
		rows := series[0].(args)["rows"].([]any)
		require.Len(t, rows, 1, id)
		assert.Equal(t, "of "+id, rows[0].([]any)[1])
		for _, measurement := range []string{`ab_"."autogen"."cpu`, "ab_..cpu", "/cpu/"} {
			assert.Empty(t, u.Call("metrics_query", args{"measurement": measurement, "fields": query["fields"]})["series"])
		}
		assert.Equal(t, tools.Invalid, u.Fails("metrics_query", args{"measurement": "cpu", "fields": query["fields"], "database": "ab_"}).Code)
		assert.Equal(t, tools.Invalid, u.Fails("metrics_write", args{"points": []args{{"measurement": "m\nn v=1", "fields": args{"v": 1}}}}).Code)
	}

	// Further buckets of its own.
	for id, u := range users {
		more := point("raw of " + id)
		more["bucket"] = "raw"
		assert.Equal(t, 1.0, u.Call("metrics_write", more)["points"])
	}
	for id, u := range users {
		for bucket, want := range map[string]int{"": 1, "raw": 1, "daily": 0} {
			in := args{"measurement": "cpu", "fields": query["fields"]}
			if bucket != "" {
				in["bucket"] = bucket
			}
			series := u.Call("metrics_query", in)["series"].([]any)
			assert.Len(t, series, want, "%s %s", id, bucket)
			assert.Contains(t, fmt.Sprint(series...), map[string]string{"": "[", "raw": "raw of " + id, "daily": ""}[bucket])
		}
	}
	e := users["a"].Fails("metrics_query", args{"measurement": "cpu", "fields": query["fields"], "bucket": "team"})
	assert.Equal(t, tools.Denied, e.Code)
	assert.Equal(t, "leave out bucket for your own, or name raw, or name daily", e.Hint)
	for _, bucket := range []string{"ab_raw", "ab_", "a_", "Raw", "raw_"} {
		assert.Equal(t, tools.Denied, users["a"].Fails("metrics_query", args{"measurement": "cpu", "fields": query["fields"], "bucket": bucket}).Code, bucket)
	}
	reader := h.Connect("reader")
	assert.NotContains(t, reader.List(), "metrics_write")
	assert.Empty(t, reader.Call("metrics_query", query)["series"])
	assert.NotContains(t, h.Connect("none").List(), "metrics_query")
	assert.Regexp(t, `metrics +influxdb +ok +a,ab,reader +metrics_write,metrics_query`, h.Must("stores"))

	server.Kill()
	assert.Equal(t, tools.Unavailable, users["a"].Fails("metrics_query", query).Code)
	assert.Equal(t, tools.Unavailable, users["a"].Fails("metrics_write", point("of a")).Code)
	users["a"].Call("kv_set", args{"key": "k", "value": "v"})
	out, _, code := h.Try("stores")
	assert.Equal(t, 1, code)
	assert.Regexp(t, `kv +sqlite +ok`, out)
	assert.Contains(t, out, "connection refused")
	for _, words := range [][]string{{"audit", "--json"}, {"agents", "show", "a", "--json"}} {
		assert.NotContains(t, h.Must(words...), hush)
	}
}
