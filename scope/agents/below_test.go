package agents

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// text returns up to n of the parts, joined.
func text(r *rand.Rand, n int, parts ...string) string {
	var b strings.Builder
	for range 1 + r.IntN(n) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	return b.String()
}

// TestPolicyBelow: the rules below a directory decide about each path there as those of the root do.
func TestPolicyBelow(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 8))
	matched := 0
	for range 4000 {
		spec := scope.PolicySpec{Access: []scope.Access{scope.Write, scope.Read}[r.IntN(2)]}
		for range 1 + r.IntN(3) {
			pattern := text(r, 5, "a", "b", "/", "*", "**/", "/**", "[ab]", "{a,b/**}", `\*`, "A", "é")
			spec.Paths = append(spec.Paths, scope.PathRule{Pattern: pattern, Access: scope.Access(r.IntN(int(scope.Hide) + 1))})
			spec.Protect = append(spec.Protect, scope.Protect{Name: "p", Paths: []string{pattern}})
		}
		whole, err := scope.Compile(spec)
		if err != nil {
			continue
		}
		rel := strings.Trim(text(r, 4, "a", "b", "/a", "/b", "A", "/*", "/é"), "/")
		if rel == "" || strings.Contains(rel, "//") {
			continue
		}
		below, err := scope.Compile(specBelow(spec, rel))
		require.NoError(t, err, "%+v at %s", spec, rel)
		for range 20 {
			at := strings.Trim(text(r, 5, "a", "b", "/a", "/b", "/c", "A", "*", "é"), "/")
			want, got := whole.ByPaths(scope.OpStat, rel+"/"+at), below.ByPaths(scope.OpStat, at)
			if at != "" {
				require.Equal(t, want.Access, got.Access, "%+v at %s: %s", spec, rel, at)
				matched += min(len(want.Rule), 1)
			}
		}
	}
	assert.Greater(t, matched, 1000)
}
