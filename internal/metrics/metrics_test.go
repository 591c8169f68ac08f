package metrics

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/audit"
)

// TestSeries: an agent that calls tools of many names fills its own series alone.
func TestSeries(t *testing.T) {
	var s Set
	for i := range 2 * maxSeries {
		s.Count(audit.Event{Event: audit.KindCall, Agent: "a", Op: fmt.Sprint("tool", i), Verdict: audit.Deny})
	}
	s.Count(audit.Event{Event: audit.KindCall, Agent: "b", Op: "bash", Verdict: audit.Allow})
	var text bytes.Buffer
	w := NewWriter(&text)
	s.Write(w)
	assert.NoError(t, w.Err())
	assert.Equal(t, maxSeries+1, strings.Count(text.String(), `{agent="a",event="call"`))
	assert.Contains(t, text.String(), fmt.Sprintf(`{agent="a",event="call",op="other",verdict="deny"} %d`, maxSeries))
	assert.Contains(t, text.String(), `{agent="b",event="call",op="bash",verdict="allow"} 1`)
}
