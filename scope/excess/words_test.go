package excess

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/bmatcuk/doublestar/v4"
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

// TestExpressions: an expression matches what the functions match that decide.
func TestExpressions(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	tried := map[string]int{}
	for range 30_000 {
		glob := "/" + text(r, 7, "a", "b", "/", "*", "?", "**", "/**", "/**/", "[ab]", "[^a]", "[b-d]", `\*`)
		word := "/" + text(r, 7, "a", "b", "/", "c", "*", "ab")
		if e, ok := GlobExpression(glob); ok && doublestar.ValidatePattern(glob) {
			tried["globs"]++
			require.Equal(t, doublestar.MatchUnvalidated(glob, word), e.Matches(word), "glob %q of %q", glob, word)
		}
		pattern := text(r, 7, "a", "b", "/", "*", "?", "**/", "[ab]", "[^a]", "[b-d]", "{a,b/**,c}", `\*`)
		policy, err := scope.Compile(scope.PolicySpec{Paths: []scope.PathRule{{Pattern: pattern, Access: scope.Read}}})
		rel := strings.Trim(word, "/")
		if err == nil && rel != "" && !strings.Contains(rel, "//") {
			tried["rules"]++
			covered := func(r rule) bool { e := r.expression(); return e.Matches(rel) }
			require.Equal(t, policy.ByPaths(scope.OpStat, rel).Access == scope.Read, slices.ContainsFunc(rulesOf(policy.Spec()), covered), "%q of %q", pattern, rel)
		}
	}
	assert.Greater(t, tried["globs"], 5000)
	assert.Greater(t, tried["rules"], 5000)
}

// TestWords: for each word there is one that the same expressions match.
func TestWords(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	any := Grammar{Next: func(int, rune) int { return 1 }, Ends: func(state int) bool { return state > 0 }}
	for range 500 {
		all := []Expression{WildExpression("*")}
		for range 1 + r.IntN(3) {
			all = append(all, WildExpression(text(r, 5, "a", "b", "*", "c")))
		}
		matches := func(word string) (set string) {
			for _, e := range all {
				set += map[bool]string{true: "1", false: "0"}[e.Matches(word)]
			}
			return set
		}
		found := map[string]string{}
		steps := 1 << 20
		require.True(t, Words(any, all, &steps, func(word string) bool { found[matches(word)] = word; return true }))
		for range 200 {
			word := text(r, 6, "a", "b", "c", "q")
			require.Contains(t, found, matches(word), word)
		}
	}
}

// TestWordsOfGrammar: two words that reach the same positions are two if they go on differently.
func TestWordsOfGrammar(t *testing.T) {
	t.Parallel()
	even := Grammar{Next: func(state int, _ rune) int { return 1 - state }, Ends: func(state int) bool { return state == 0 }}
	steps, words := 1000, []string{}
	require.True(t, Words(even, []Expression{WildExpression("*a")}, &steps, func(word string) bool { words = append(words, word); return true }))
	assert.Equal(t, []string{"", "xa"}, words)
	steps = 3
	assert.False(t, Words(even, []Expression{WildExpression("*a")}, &steps, func(string) bool { return true }))
}
