package printable

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCommand: a shell reads a line as the words that it was made of. Words that would print as others have no line.
func TestCommand(t *testing.T) {
	words := []string{"a", "", "a b", "a'b", `a"b`, "$(id)", "`id`", "*", `\*\*`, "~", "#", "!a", "=a", "a;b", "{a,b}", "ä", "-"}
	cmd := exec.Command("/bin/sh", "-c", `printf '%s\0' `+Command(words...))
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, words, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"))
	assert.Equal(t, "scopefs allow a.example --dir .", Command("scopefs", "allow", "a.example", "--dir", "."))
	for _, word := range []string{"a\nb", "\x1b[2J", "a\xff", "p\u0430ypal", "a\u202eb"} {
		assert.Empty(t, Command("scopefs", "allow", word), "%q", word)
	}
}
