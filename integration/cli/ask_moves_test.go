package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackAskMoves: an approval of a path gives nothing that was at another path when it was given, and no name that outlasts it.
func TestAttackAskMoves(t *testing.T) {
	t.Parallel()
	for _, changes := range []string{"kept", "held"} {
		t.Run(changes, func(t *testing.T) { attackAskMoves(t, changes) })
	}
}

func attackAskMoves(t *testing.T, changes string) {
	h := harness.NewHost(t, map[string]string{"a": "view: {changes: " + changes + ", paths: {'**/secret': ask, 'docs/**': ask}}"})
	harness.Plant(t, h.Scope("a"), "q/secret=mine\n", "r/secret=theirs\n", "top/q/secret=mine\n", "top/r/secret=theirs\n", "docs/a=one\n")
	script := func(text string) <-chan string {
		got := make(chan string, 1)
		go func() {
			out, _, _ := h.Try("run", "a", "-q", "--", "bash", "-c", "exec 2>&1; "+text)
			got <- out
		}()
		return got
	}
	got := script("cat q/secret; mv q q.old && mv r q; timeout 2 cat q/secret")
	h.Must("approvals", "approve", waits(h, "q/secret"))
	assert.NotContains(t, <-got, "theirs")

	got = script("echo 1 >>top/q/secret; python3 - <<'E'\nimport ctypes\nl=ctypes.CDLL(None)\n" +
		"print(l.renameat2(-100,b'top/q',-100,b'top/r',2))\nE\ntimeout 2 cat top/q/secret top/r/secret")
	h.Must("approvals", "approve", waits(h, "top/q/secret"))
	assert.NotContains(t, <-got, "theirs")

	got = script("echo 1 >>docs/a; ln docs/a free && echo linked")
	h.Must("approvals", "approve", waits(h, "docs/a"))
	assert.NotContains(t, <-got, "linked")

	// Directories without such a path move as ever.
	const moves = "mkdir -p n/m old/deep && touch n/m/f old/deep/f && " +
		"python3 -c 'import os; os.rename(\"n\", \"n2\"); os.rename(\"old/deep\", \"deep\")' && cat n2/m/f deep/f && echo moved"
	assert.Equal(t, "moved\n", <-script(moves))
}
