package fs

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func compile(t testing.TB, paths ...scope.PathRule) *scope.Policy {
	p, err := scope.Compile(scope.PolicySpec{Paths: paths})
	require.NoError(t, err)
	return p
}

// TestStrictestName: with any sequence of link, unlink and rename, a decision is by the
// name on which the policy grants least.
func TestStrictestName(t *testing.T) {
	policies := []*scope.Policy{
		compile(t, scope.PathRule{Pattern: "r", Access: scope.Read}, scope.PathRule{Pattern: "h", Access: scope.Hide}),
		compile(t, scope.PathRule{Pattern: "w", Access: scope.Hide}),
		compile(t),
	}
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		tr := newTree()
		var dirs []*node
		for i, name := range []string{"w", "r", "h"} {
			dirs = append(dirs, found(t, tr, tr.root, name, dir(uint64(2+i)), false))
		}
		want := map[nameIn]bool{}
		var f *node
		for range 60 {
			at := nameIn{dirs[random.IntN(3)], fmt.Sprint(random.IntN(12))}
			switch random.IntN(4) {
			case 0, 1:
				f = found(t, tr, at.parent, at.name, file(9, 20), false)
				want[at] = true
			case 2:
				if f != nil && len(want) > 1 {
					tr.unlinked(f.ident(), at)
					delete(want, at)
				}
			case 3:
				to := nameIn{dirs[random.IntN(3)], fmt.Sprint(random.IntN(12))}
				if f != nil && want[at] && !want[to] {
					tr.moved(f.ident(), at, to)
					delete(want, at)
					want[to] = true
				}
			}
			if f == nil {
				continue
			}
			require.Len(t, f.names.list, len(want))
			policy := policies[random.IntN(len(policies))]
			most := scope.Write
			for at := range want {
				rel, _ := tr.path(at)
				most = max(most, policy.File(scope.OpStat, rel).Access)
			}
			rel, ok := tr.strictest(f, policy)
			require.True(t, ok)
			require.Equal(t, most, policy.File(scope.OpStat, rel).Access, "round %d: %s of %v", round, rel, paths(tr, f))
		}
	}
}

// TestManyNames: the cost of an operation does not depend on the number of links.
func TestManyNames(t *testing.T) {
	policy := compile(t, scope.PathRule{Pattern: "secret", Access: scope.Hide})
	const few, many = 10, 40_000
	cost := func(count int) time.Duration {
		tr := newTree()
		for i := range count {
			found(t, tr, tr.root, fmt.Sprint(i), file(9, uint32(count)), false)
		}
		least := time.Hour // of several batches: other processes may use the processor meanwhile
		for range 20 {
			began := time.Now()
			for i := range 100 {
				n := found(t, tr, tr.root, fmt.Sprint(i%few), file(9, uint32(count)), false)
				tr.moved(n.ident(), nameIn{tr.root, fmt.Sprint(i % few)}, nameIn{tr.root, "x"})
				tr.moved(n.ident(), nameIn{tr.root, "x"}, nameIn{tr.root, fmt.Sprint(i % few)})
				_, ok := tr.strictest(n, policy)
				require.True(t, ok)
			}
			least = min(least, time.Since(began))
		}
		return least
	}
	small, large := cost(few), cost(many)
	t.Logf("%d names: %v, %d names: %v", few, small, many, large)
	assert.Less(t, large, 10*small+5*time.Millisecond)
}

// TestTreeFull: a full table refuses new nodes and still finds the others.
func TestTreeFull(t *testing.T) {
	tr := newTree()
	crowded := 0
	tr.limit, tr.crowd = 100*(nodeSize+nameSize), func() { crowded++ }
	n := 0
	var err error
	var last *node
	for ; err == nil; n++ {
		var f *node
		if f, err = tr.found(tr.root, fmt.Sprint(n), file(uint64(10+n), 1), false); err == nil {
			last = f
		}
	}
	assert.InDelta(t, 100, n, 5)
	assert.Positive(t, crowded)
	assert.True(t, tr.full())
	assert.Same(t, last, found(t, tr, tr.root, fmt.Sprint(n-2), file(last.ident().Ino, 1), false))
	for id := range tr.byID {
		tr.forget(id, 5)
	}
	assert.Zero(t, tr.size, "what is forgotten takes nothing")
	assert.False(t, tr.full())
}
