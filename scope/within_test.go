package scope

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWithin: the spec allows nothing that one of the two denies, and without two lists of exceptions all that both allow.
func TestWithin(t *testing.T) {
	patterns := []string{"a", "a/b", "**/b", "*.c", "a/**/c", "x", "**/.git/hooks/**", "{a,x}/d"}
	paths := []string{"", "a", "a/b", "a/b/c", "b", "m.c", "a/d", "x", "x/d", ".git/hooks/pre-commit", "a/.git/config", "other"}
	r := rand.New(rand.NewPCG(1, 2))
	random := func() PolicySpec {
		s := PolicySpec{Access: []Access{Write, Read}[r.IntN(2)],
			Hardlinks: []Hardlinks{"", HardlinksAllow, HardlinksRead, HardlinksDeny}[r.IntN(4)]}
		for range r.IntN(4) {
			s.Paths = append(s.Paths, PathRule{Pattern: patterns[r.IntN(len(patterns))], Access: Access(r.IntN(int(accessCount)))})
		}
		if r.IntN(3) == 0 {
			s.Protect = []Protect{{Name: "list", Paths: patterns[:1+r.IntN(3)], Hold: r.IntN(2) == 0}}
		}
		if r.IntN(3) == 0 {
			s.Git = &GitRules{Hooks: r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				s.Git.Config = []string{"user.name", "core.editor"}[:r.IntN(3)]
			}
		}
		return s
	}
	for range 3000 {
		a, b := random(), random()
		both := a.Within(b)
		pa, err := Compile(a)
		require.NoError(t, err)
		pb, err := Compile(b)
		require.NoError(t, err)
		p, err := Compile(both)
		require.NoError(t, err)
		for _, rel := range paths {
			what := fmt.Sprintf("%+v within %+v: %q", a, b, rel)
			for op := range opCount {
				allowed := pa.File(op, rel).Allow && pb.File(op, rel).Allow
				got := p.File(op, rel).Allow
				assert.False(t, got && !allowed, "%s %v", what, op)
				if (a.Access == Write || b.Access == Write) && !a.Holds() && !b.Holds() { // nothing of git is held
					assert.Equal(t, allowed, got, "%s %v", what, op)
				}
			}
			if p.File(OpOpenWrite, rel).Allow && !p.Repository(rel) && (pa.Held(rel) || pb.Held(rel)) {
				assert.True(t, p.Held(rel), what)
			}
			moves := func(p *Policy) bool { return p.File(OpRenameFrom, rel).Allow && p.Move(rel).Allow }
			may := func(p *Policy) bool { return moves(p) || p.Move(rel).Access == Hold } // a copy is possible
			assert.False(t, moves(p) && (!may(pa) || !may(pb)), what)
		}
	}
}

// TestWithinParts: what File does not decide.
func TestWithinParts(t *testing.T) {
	for _, c := range []struct{ a, b, want Hardlinks }{
		{"", HardlinksRead, HardlinksRead}, {HardlinksDeny, HardlinksRead, HardlinksDeny}, {HardlinksAllow, "", HardlinksAllow},
	} {
		assert.Equal(t, c.want, PolicySpec{Hardlinks: c.a}.Within(PolicySpec{Hardlinks: c.b}).Hardlinks)
	}
	git := func(hooks bool, config ...string) PolicySpec {
		return PolicySpec{Git: &GitRules{Hooks: hooks, Config: config}}
	}
	assert.Equal(t, git(true, "b"), git(true, "a", "b").Within(git(false, "b", "c")))
	assert.Equal(t, git(true, "a"), git(true).Within(git(false, "a")), "without keys the config is free")
	assert.Equal(t, git(false, "a"), PolicySpec{}.Within(git(false, "a")))
	list := PolicySpec{Protect: []Protect{{Name: "l", Paths: []string{"x"}}}}
	assert.Equal(t, list, list.Within(list))
}
