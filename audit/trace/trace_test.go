package trace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

const valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestParse(t *testing.T) {
	upper := strings.ToUpper(valid)
	tests := map[string]struct{ parent, want string }{
		"valid":            {valid, valid},
		"not sampled":      {valid[:53] + "00", valid[:53] + "00"},
		"other flags":      {valid[:53] + "ff", valid},
		"empty":            {"", ""},
		"upper case":       {upper, ""},
		"another version":  {"01" + valid[2:], ""},
		"version ff":       {"ff" + valid[2:], ""},
		"no trace":         {"00-" + strings.Repeat("0", 32) + valid[35:], ""},
		"no span":          {valid[:36] + strings.Repeat("0", 16) + valid[52:], ""},
		"short":            {valid[:54], ""},
		"long":             {valid + "-00", ""},
		"a newline":        {valid + "\n", ""},
		"a blank":          {" " + valid, ""},
		"NUL":              {valid + "\x00", ""},
		"no hexadecimal":   {strings.Replace(valid, "4bf9", "4bg9", 1), ""},
		"Unicode digits":   {strings.Replace(valid, "4bf9", "٤bf", 1), ""},
		"a header":         {valid + "\r\nX-Admin: 1", ""},
		"JSON":             {valid + `","admin":true`, ""},
		"very long":        {strings.Repeat(valid, 1<<16), ""},
		"underscores":      {strings.ReplaceAll(valid, "-", "_"), ""},
		"the wrong places": {valid[:3] + valid[36:52] + "-" + valid[3:35] + valid[52:], ""},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) { assert.Equal(t, c.want, Parse(c.parent, "").String()) })
	}
}

func TestParseState(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("a=1,", 33), ",")
	var different []string
	for i := range 33 {
		different = append(different, "k"+strings.Repeat("x", i)+"=")
	}
	tests := map[string]struct{ state, want string }{
		"none":             {"", ""},
		"one":              {"rojo=00f067aa0ba902b7", "rojo=00f067aa0ba902b7"},
		"two":              {"rojo=00f067aa0ba902b7 ,\t,congo=t61rcWkgMzE,", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"},
		"a tenant":         {"0t@v=x y", "0t@v=x y"},
		"twice":            {"a=1,a=2", ""},
		"more than 32":     {many, ""},
		"no value":         {strings.Join(different, "1,"), ""},
		"upper case":       {"A=1", ""},
		"no key":           {"=1", ""},
		"a newline":        {"a=1\n", ""},
		"a newline inside": {"a=1\nb", ""},
		"two equal signs":  {"a=b=c", ""},
		"no ASCII":         {"a=ü", ""},
		"512":              {"a=" + strings.Repeat("x", 256) + ",b=" + strings.Repeat("y", 251), "a=" + strings.Repeat("x", 256) + ",b=" + strings.Repeat("y", 251)},
		"a long value":     {"a=" + strings.Repeat("x", 257), ""},
		"more than 512":    {"a=" + strings.Repeat("x", 256) + ",b=" + strings.Repeat("y", 252), ""},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			got := Parse(valid, c.state)
			assert.Equal(t, c.want, got.State)
			assert.Equal(t, valid, got.String(), "the traceparent is valid without")
		})
	}
	assert.Zero(t, Parse("", "a=1"), "no state without a parent")
}

func TestOf(t *testing.T) {
	call := audit.Event{Event: audit.KindCall, Agent: "a", Session: "c1", Call: "x"}
	session := OfSession("a", "c1")
	assert.Equal(t, session.ID, Of(call).ID)
	assert.NotEqual(t, session.Span, Of(call).Span)
	assert.Equal(t, Of(call), Of(audit.Event{Event: audit.KindFile, Agent: "a", Session: "7-1", Parent: "c1", Call: "x"}), "a sandbox works for the client")
	assert.Equal(t, session, Of(audit.Event{Agent: "a", Session: "7-1", Parent: "c1"}))
	assert.NotEqual(t, session.ID, OfSession("b", "c1").ID, "two agents")
	assert.NotEqual(t, OfSession("a", "bc"), OfSession("ab", "c"))

	made := call
	made.Trace = valid
	assert.Equal(t, valid[3:35], Of(made).String()[3:35])
	assert.Equal(t, Of(call).Span, Of(made).Span)
	made.Trace = "00-evil"
	assert.Equal(t, Of(call), Of(made), "what the log has is read as strictly")
	assert.Zero(t, Of(audit.Event{Event: audit.KindDaemon}))
	assert.NotEqual(t, Event(audit.Event{Seq: 1}, ""), Event(audit.Event{Seq: 2}, ""))
	assert.NotEqual(t, Event(audit.Event{Seq: 1}, ""), Event(audit.Event{Seq: 1}, "x"))
}

// TestIDsStay holds the ids: an exporter and a daemon of different versions must agree.
func TestIDsStay(t *testing.T) {
	assert.Equal(t, "00-a86fd852ffb3718fe776dc42f55a403a-14f825b2bbc32dd8-01", Of(audit.Event{Agent: "a", Session: "c1", Call: "x"}).String())
	assert.Equal(t, "00-a86fd852ffb3718fe776dc42f55a403a-cfe5566c98c84e8d-01", OfSession("a", "c1").String())
}
