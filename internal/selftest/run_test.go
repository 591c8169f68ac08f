package selftest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestJudge: what was not tried is not held.
func TestJudge(t *testing.T) {
	script, call := Attempt{script: "x"}, Attempt{call: []string{"x"}}
	for output, want := range map[string]string{
		"BEGUN\n": Held, "BEGUN\nLACKS x\n": Held, "LACKS python3\n": Skipped, "bwrap: no\n": NotMade, "": NotMade,
	} {
		o := Outcome{Attempt: script, Output: output}
		o.judge()
		assert.Equal(t, want, o.State, output)
	}
	for output, want := range map[string]string{
		"text of a result\n": Held, "\nscopefs: of a runner\n": Held, "": NotMade,
		`scopefs: {"code":"denied","message":"no"}`:                      Held,
		`scopefs: {"code":"invalid","message":"no such table"}`:          Held,
		`scopefs: {"code":"invalid","message":"arguments: x is no y"}`:   NotMade,
		`scopefs: {"code":"unavailable","message":"the server is gone"}`: NotMade,
		`scopefs: {"code":"internal","message":"panic"}`:                 NotMade,
		`scopefs: no daemon`: NotMade,
	} {
		o := Outcome{Attempt: call, Output: output}
		o.judge()
		assert.Equal(t, want, o.State, output)
	}
	late := Outcome{Attempt: Attempt{script: "x", late: true}, Output: "BEGUN\n"}
	late.judge()
	assert.Equal(t, NotMade, late.State)
	late.Evidence = "it has the secret"
	late.judge()
	assert.Equal(t, Failed, late.State)
}

// TestLimited: the token is found wherever it is in a long output, in however many pieces.
func TestLimited(t *testing.T) {
	for _, before := range []int{0, maxOutput - 9, maxOutput - 3, maxOutput, maxOutput + 12345} {
		for _, piece := range []int{3, 1000, maxOutput} {
			l := &limited{token: "CANARY123456"}
			text := strings.Repeat("x", before) + "CANARY123456-file\n" + strings.Repeat("y", 5000)
			for rest := text; rest != ""; {
				n, err := l.Write([]byte(rest[:min(piece, len(rest))]))
				require.NoError(t, err)
				rest = rest[n:]
			}
			assert.Contains(t, l.String(), "CANARY123456", "%d %d", before, piece)
			assert.Less(t, len(l.String()), maxOutput+100)
		}
	}
}

// TestAttempts: every attempt has a name of its own and something to do, and each class is tried in several ways.
func TestAttempts(t *testing.T) {
	list, err := Attempts()
	require.NoError(t, err)
	names, classes := map[string]bool{}, map[string]int{}
	for _, a := range list {
		assert.False(t, names[a.ID], a.ID)
		names[a.ID] = true
		classes[a.Class]++
		assert.NotEmpty(t, a.Try, a.ID)
		assert.NotEqual(t, a.script != "", len(a.call) > 0 || a.calls != "", a.ID)
		assert.NotContains(t, a.script+a.calls+strings.Join(a.call, " "), "$WAY", a.ID)
	}
	assert.Len(t, classes, 9)
	for class, n := range classes {
		assert.Greater(t, n, 12, class)
	}
}
