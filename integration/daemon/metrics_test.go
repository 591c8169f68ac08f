package daemon

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestMetrics: the daemon's metrics are in the format of Prometheus, on the control socket and at the address of
// --metrics, count what was recorded, and have every metric of the dashboard.
func TestMetrics(t *testing.T) {
	t.Parallel()
	h := harness.LayOut(t, map[string]string{"a": "view: {paths: {'no/**': hide}, changes: direct}\ntools: [bash]", "b": ""})
	h.Put("scopefs.yaml", "log: {anchors: [{name: here, every: 1s, command: [/bin/true]}]}\n")
	said, err := os.Create(t.TempDir() + "/said")
	require.NoError(t, err)
	defer said.Close()
	h.Stderr = said
	h.Start("--metrics", "127.0.0.1:0")
	harness.Plant(t, h.Scope("a"), "no/x=1")
	h.Must("call", "--agent", "a", "bash", "command=cat no/x; cat no/x; curl -s http://no.example/; true")

	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`).FindString(harness.ReadAll(t, said.Name()))
	resp, err := http.Get(address)
	require.NoError(t, err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	require.NoError(t, err)
	_, err = parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(t, err)
	assert.Contains(t, resp.Header.Get("Content-Type"), "version=0.0.4")

	printed := h.Must("metrics")
	all, err := parser.TextToMetricFamilies(strings.NewReader(printed))
	require.NoError(t, err)
	value := func(name string, labels map[string]string) float64 {
		require.Contains(t, all, name)
		sum := 0.
		for _, m := range all[name].Metric {
			if fits(m, labels) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return sum
	}
	assert.GreaterOrEqual(t, value("scopefs_events_total", map[string]string{"agent": "a", "event": "file", "verdict": "deny"}), 2.)
	assert.Equal(t, 2., value("scopefs_events_total", map[string]string{"agent": "a", "event": "call", "op": "bash", "verdict": "allow"}))
	assert.Equal(t, 1., value("scopefs_duration_seconds", map[string]string{"agent": "a", "event": "call"}))
	assert.GreaterOrEqual(t, value("scopefs_events_total", map[string]string{"event": "network", "verdict": "deny"}), 1.)
	assert.Zero(t, value("scopefs_events_total", map[string]string{"agent": "b", "event": "call"}))
	assert.Equal(t, 2., value("scopefs_agents", map[string]string{"state": "mounted"}))

	page, err := os.ReadFile("../../packaging/grafana/scopefs.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(page, &board))
	assert.NotEmpty(t, board.Panels)
	named := map[string]bool{}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			for _, name := range regexp.MustCompile(`scopefs_\w+`).FindAllString(target.Expr, -1) {
				name = strings.TrimSuffix(name, "_bucket")
				named[name] = true
				assert.Contains(t, printed, "# TYPE "+name+" ", p.Title)
				assert.Contains(t, string(text), "# TYPE "+name+" ", p.Title)
			}
		}
	}
	assert.Greater(t, len(named), 10)
	h.Eventually("the anchor's age", func() bool {
		return regexp.MustCompile(`scopefs_anchor_age_seconds\{name="here"\} \d`).MatchString(h.Must("metrics"))
	})

	// A page from elsewhere, whose name leads here.
	r, err := http.NewRequest(http.MethodGet, address, nil)
	require.NoError(t, err)
	r.Host = "rebound.example"
	resp, err = http.DefaultClient.Do(r)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
}

func fits(m *dto.Metric, labels map[string]string) bool {
	left := len(labels)
	for _, l := range m.Label {
		if want, ok := labels[l.GetName()]; ok && want == l.GetValue() {
			left--
		}
	}
	return left == 0
}
