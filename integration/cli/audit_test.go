package cli

import (
	"encoding/csv"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	ocsf "github.com/valllabh/ocsf-schema-golang/ocsfvalidate/1.2"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestAudit: scopefs audit selects, groups, counts and exports what was recorded of two agents.
func TestAudit(t *testing.T) {
	h := harness.NewHost(t, map[string]string{
		"a": "view: {paths: {'secret/**': hide, 'fixed.txt': read}}\nnetwork: {allow: [ok.example]}\ntools: [bash, read_file]",
		"b": "",
	})
	harness.Plant(t, h.Scope("a"), "fixed.txt=1", "secret/key=k", "+SUM(A1).txt=2")
	_, _, _ = h.Try("call", "--agent", "a", "bash", "command=cat secret/key secret/key; echo 2 >fixed.txt; curl -s http://no.example/x https://no.example; true")
	h.Must("call", "--agent", "a", "read_file", "path=+SUM(A1).txt")
	_, _, _ = h.Try("call", "--agent", "a", "read_file", "path=../b")
	h.Must("call", "--agent", "b", "bash", "command=true")
	audit := func(words ...string) (lines []string) {
		out := strings.TrimSuffix(h.Must(append([]string{"audit"}, words...)...), "\n")
		if out == "" {
			return nil
		}
		return strings.Split(out, "\n")
	}

	t.Run("filters", func(t *testing.T) {
		session := h.Last("b", "bash").Session
		for filter, want := range map[string]func(string) bool{
			"--path secret/** --op lookup":       func(l string) bool { return strings.Contains(l, "secret") && strings.Contains(l, " lookup ") },
			"--path *.txt --denied":              func(l string) bool { return strings.Contains(l, "fixed.txt EACCES") },
			"--host *.example":                   func(l string) bool { return strings.Contains(l, "no.example") },
			"--tool read_file":                   func(l string) bool { return strings.Contains(l, " read_file ") },
			"--verdict violation":                func(l string) bool { return strings.Contains(l, " violation ") },
			"--rule path --agent a":              func(l string) bool { return strings.Contains(l, ": read)") || strings.Contains(l, ": hide)") },
			"--session " + session:               func(l string) bool { return strings.Contains(l, " b ") },
			"--call " + h.Last("b", "bash").Call: func(l string) bool { return strings.Contains(l, " b ") },
		} {
			lines := audit(strings.Fields(filter)...)
			assert.NotEmpty(t, lines, filter)
			for _, l := range lines {
				assert.True(t, want(l), "%s: %s", filter, l)
			}
		}
		assert.Empty(t, audit("--agent", "b", "--path", "**"))
		for _, bad := range [][]string{{"--path", "["}, {"--verdict", "no"}, {"--since", "yesterday"}, {"export"}, {"export", "--format", "xml"}} {
			_, errs, code := h.Try(append([]string{"audit"}, bad...)...)
			assert.Equal(t, 2, code, "%s %s", bad, errs)
		}
	})

	t.Run("tree", func(t *testing.T) {
		lines := audit("--tree", "--agent", "a")
		call := -1
		for i, l := range lines {
			if strings.HasPrefix(l, "  call ") && strings.Contains(l, " bash ok ") {
				call = i
			}
		}
		require.Positive(t, call, lines)
		var below []string
		for _, l := range lines[call+1:] {
			if !strings.HasPrefix(l, "    ") {
				break
			}
			below = append(below, l)
		}
		text := strings.Join(below, "\n")
		for _, want := range []string{"secret", "fixed.txt EACCES", "no.example"} {
			assert.Contains(t, text, want)
		}
	})

	t.Run("summary", func(t *testing.T) {
		var list []struct {
			Count                 int
			Op, Of, Rule, Command string
		}
		require.NoError(t, json.Unmarshal([]byte(h.Must("audit", "--summary", "--json", "--host", "no.example")), &list))
		require.NotEmpty(t, list)
		assert.Equal(t, "no.example", list[0].Of)
		assert.GreaterOrEqual(t, list[0].Count, 1)
		assert.Contains(t, list[0].Command, "scopefs allow no.example")
		assert.Regexp(t, `(?m)^×\d+ +a +deny +open-write +fixed.txt `, h.Must("audit", "--summary"))
	})

	t.Run("export", func(t *testing.T) {
		n := len(audit("--json"))
		rows, err := csv.NewReader(strings.NewReader(h.Must("audit", "export", "--format", "csv"))).ReadAll()
		require.NoError(t, err)
		assert.Len(t, rows, n+1)
		for _, row := range rows {
			for _, cell := range row {
				assert.NotContains(t, "=+-@", (cell + " ")[:1], cell)
			}
		}
		last := rows[len(rows)-1][0]
		before, err := strconv.Atoi(last)
		require.NoError(t, err)
		after, err := csv.NewReader(strings.NewReader(h.Must("audit", "export", "--format", "csv", "--after", strconv.Itoa(before-1)))).ReadAll()
		require.NoError(t, err)
		assert.Len(t, after, 2)
		assert.Equal(t, last, after[1][0])

		assert.Error(t, ocsf.Validate("file_activity", []byte(`{"class_uid":1001}`)), "the schemas refuse")
		classes := map[int]bool{}
		lines := audit("export", "--format", "ocsf")
		assert.Len(t, lines, n)
		for _, l := range lines {
			classes[fitsOCSF(t, l)] = true
		}
		assert.Subset(t, classes, map[int]bool{1001: true, 4001: true, 6002: true, 6003: true})

		lines = audit("export", "--format", "otlp")
		assert.Len(t, lines, n)
		for _, l := range lines {
			assert.NoError(t, protojson.Unmarshal([]byte(l), &logs.LogsData{}), l)
		}
	})
}

// fitsOCSF checks an event against the published schema of its class, and returns the class.
func fitsOCSF(t *testing.T, line string) int {
	var e struct {
		ClassUID int `json:"class_uid"`
	}
	require.NoError(t, json.Unmarshal([]byte(line), &e))
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &fields))
	// The schemas are of classes with all profiles. Events of a host have neither a cloud, nor firewalls that decide.
	fields["cloud"] = map[string]any{"provider": "none"}
	full, err := json.Marshal(fields)
	require.NoError(t, err)
	assert.NoError(t, ocsf.Validate(map[int]string{
		1001: "file_activity", 1007: "process_activity", 4001: "network_activity", 4002: "http_activity", 6002: "application_lifecycle", 6003: "api_activity",
	}[e.ClassUID], full), line)
	return e.ClassUID
}
