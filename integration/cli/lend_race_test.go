package cli

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackLendAtOnce: of two commands that lend one directory at once with different access, none gets the access of the other one.
func TestAttackLendAtOnce(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	tree(t, top, 0)
	h := harness.NewHost(t, map[string]string{"a": "dir: " + top + "/proj"})
	h.Must("run", "a", "--", "true")
	for i := range 8 {
		wide := make(chan string, 1)
		go func() {
			out, _, _ := h.Try("run", "a", "-q", "--with", top+"/lib", "--", "sh", "-c", "cat ../lib/b; sleep 0.2")
			wide <- out
		}()
		out, stderr, code := h.Try("run", "a", "-q", "--with", top+"/lib:ask", "--", "timeout", "1", "cat", "../lib/b")
		assert.NotContains(t, out, "theirs", fmt.Sprint(i, stderr, code))
		<-wide
	}
}
