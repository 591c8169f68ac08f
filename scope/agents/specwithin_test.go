package agents

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// TestSpecWithin: the spec allows nothing that one of the two denies, and without two lists of exceptions all that both allow.
func TestSpecWithin(t *testing.T) {
	patterns := []string{"a", "a/b", "**/b", "*.c", "a/**/c", "x", "**/.git/hooks/**", "{a,x}/d"}
	paths := []string{"", "a", "a/b", "a/b/c", "b", "m.c", "a/d", "x", "x/d", ".git/hooks/pre-commit", "a/.git/config", "other"}
	r := rand.New(rand.NewPCG(1, 2))
	random := func() scope.PolicySpec {
		s := scope.PolicySpec{Access: []scope.Access{scope.Write, scope.Read}[r.IntN(2)],
			Hardlinks: []scope.Hardlinks{"", scope.HardlinksAllow, scope.HardlinksRead, scope.HardlinksDeny}[r.IntN(4)]}
		for range r.IntN(4) {
			s.Paths = append(s.Paths, scope.PathRule{Pattern: patterns[r.IntN(len(patterns))], Access: scope.Access(r.IntN(int(scope.Hide) + 1))})
		}
		if r.IntN(3) == 0 {
			s.Protect = []scope.Protect{{Name: "list", Paths: patterns[:1+r.IntN(3)], Hold: r.IntN(2) == 0}}
		}
		if r.IntN(3) == 0 {
			s.Git = &scope.GitRules{Hooks: r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				s.Git.Config = []string{"user.name", "core.editor"}[:r.IntN(3)]
			}
		}
		return s
	}
	for range 3000 {
		a, b := random(), random()
		both := within(a, b)
		pa, err := scope.Compile(a)
		require.NoError(t, err)
		pb, err := scope.Compile(b)
		require.NoError(t, err)
		p, err := scope.Compile(both)
		require.NoError(t, err)
		for _, rel := range paths {
			what := fmt.Sprintf("%+v within %+v: %q", a, b, rel)
			for op := range scope.Op(len(scope.OpNames())) {
				allowed := pa.File(op, rel).Allow && pb.File(op, rel).Allow
				got := p.File(op, rel).Allow
				assert.False(t, got && !allowed, "%s %v", what, op)
				if (a.Access == scope.Write || b.Access == scope.Write) && !a.Holds() && !b.Holds() { // nothing of git is held
					assert.Equal(t, allowed, got, "%s %v", what, op)
				}
			}
			if p.File(scope.OpOpenWrite, rel).Allow && !p.Repository(rel) && (pa.Held(rel) || pb.Held(rel)) {
				assert.True(t, p.Held(rel), what)
			}
			moves := func(p *scope.Policy) bool { return p.File(scope.OpRenameFrom, rel).Allow && p.Move(rel).Allow }
			may := func(p *scope.Policy) bool { return moves(p) || p.Move(rel).Access == scope.Hold } // a copy is possible
			assert.False(t, moves(p) && (!may(pa) || !may(pb)), what)
		}
	}
}

// TestSpecWithinParts: what File does not decide.
func TestSpecWithinParts(t *testing.T) {
	for _, c := range []struct{ a, b, want scope.Hardlinks }{
		{"", scope.HardlinksRead, scope.HardlinksRead}, {scope.HardlinksDeny, scope.HardlinksRead, scope.HardlinksDeny}, {scope.HardlinksAllow, "", scope.HardlinksAllow},
	} {
		assert.Equal(t, c.want, within(scope.PolicySpec{Hardlinks: c.a}, scope.PolicySpec{Hardlinks: c.b}).Hardlinks)
	}
	git := func(hooks bool, config ...string) scope.PolicySpec {
		return scope.PolicySpec{Git: &scope.GitRules{Hooks: hooks, Config: config}}
	}
	assert.Equal(t, git(true, "b"), within(git(true, "a", "b"), git(false, "b", "c")))
	assert.Equal(t, git(true, "a"), within(git(true), git(false, "a")), "without keys the config is free")
	assert.Equal(t, git(false, "a"), within(scope.PolicySpec{}, git(false, "a")))
	assert.True(t, within(scope.PolicySpec{Git: &scope.GitRules{Bare: true}}, git(false)).Git.Bare)
	list := scope.PolicySpec{Protect: []scope.Protect{{Name: "l", Paths: []string{"x"}}}}
	assert.Equal(t, list, within(list, list))
}
