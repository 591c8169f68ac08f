package fs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// memory is a Recorder of a test.
type memory struct {
	mu     sync.Mutex
	events []audit.Event
	fails  bool
}

func (m *memory) Record(_ context.Context, e audit.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fails {
		return errors.New("the disk is full")
	}
	m.events = append(m.events, e)
	return nil
}

func (m *memory) Err() error { return nil }

// take returns the events since the last call.
func (m *memory) take() []audit.Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.events
	m.events = nil
	return all
}

func quietView(t *testing.T, rules ...scope.PathRule) (*View, *memory) {
	t.Helper()
	policy, err := scope.Compile(scope.PolicySpec{Paths: rules})
	require.NoError(t, err)
	log := &memory{}
	v := &View{opt: Options{Recorder: log}}
	v.quiet.started = make(chan struct{}, 1)
	v.policy.Store(policy)
	return v, log
}

func (v *View) try(op scope.Op, rel string) fuse.Status {
	return status(v.decide(&ask{head: &fuse.InHeader{}, op: op}, rel))
}

// TestQuietHidesNoOtherProbe: a rule that is quiet leaves out repetitions of one operation
// on one path, and nothing else.
func TestQuietHidesNoOtherProbe(t *testing.T) {
	v, log := quietView(t, scope.PathRule{Pattern: "**/.env", Access: scope.Hide, Quiet: true},
		scope.PathRule{Pattern: "**/*.key", Access: scope.Hide, Quiet: true}, scope.PathRule{Pattern: "loud/**", Access: scope.Hide}, scope.PathRule{Pattern: "ro", Access: scope.Read})
	for _, c := range []struct {
		name     string
		op       scope.Op
		rel      string
		recorded bool
	}{
		{"the first", scope.OpLookup, ".env", true},
		{"again", scope.OpLookup, ".env", false},
		{"another path of the rule", scope.OpLookup, "sub/.env", true},
		{"a path below it", scope.OpLookup, ".env/x", true},
		{"the first again", scope.OpLookup, ".env", false},
		{"another operation", scope.OpOpen, ".env", true},
		{"a change", scope.OpCreate, ".env", true},
		{"the change again", scope.OpCreate, ".env", true},
		{"another rule", scope.OpLookup, "a.key", true},
		{"a loud rule beside the quiet one", scope.OpLookup, "loud/.env", true},
		{"the same again", scope.OpLookup, "loud/.env", true},
		{"a rule without quiet", scope.OpUnlink, "ro", true},
		{"a long path", scope.OpLookup, strings.Repeat("d/", 300) + ".env", true},
		{"the long path again", scope.OpLookup, strings.Repeat("d/", 300) + ".env", true},
	} {
		want := fuse.ENOENT
		if c.op.Mutates() {
			want = fuse.EACCES
		}
		assert.Equal(t, want, v.try(c.op, c.rel), c.name)
		assert.Equal(t, c.recorded, len(log.take()) == 1, c.name)
	}
	log.fails = true
	assert.Equal(t, fuse.EIO, v.try(scope.OpLookup, "new/.env"), "nothing is answered that should be in the log and is not")
	assert.Equal(t, fuse.EIO, v.try(scope.OpLookup, "new/.env"))
}

// TestQuietLosesNoCount: what is left out is counted in the next record, in one a minute
// later, or at the end of the view.
func TestQuietLosesNoCount(t *testing.T) {
	v, log := quietView(t, scope.PathRule{Pattern: "**/.env", Access: scope.Hide, Quiet: true})
	const each, clients = 500, 8
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for i := range each {
				v.try(scope.OpLookup, fmt.Sprintf("d%d/.env", i%3))
			}
		})
	}
	all.Wait()
	soon, next := v.quiet.expired(time.Now())
	assert.Empty(t, soon)
	assert.False(t, next.IsZero())
	v.quiet.held[repeated{scope.OpLookup, "d0/.env", "**/.env: hide"}].since = time.Now().Add(-quietTime)
	v.try(scope.OpLookup, "d0/.env") // after its minute: recorded, with the number
	total := int64(0)
	events := log.take()
	assert.Less(t, len(events), 3*clients+2)
	assert.NotZero(t, events[len(events)-1].Unrecorded)
	assert.Empty(t, events[len(events)-1].Outcome)

	v.ended, v.opt.Logger = make(chan struct{}), nil
	close(v.ended)
	v.tellQuiet()
	last := log.take()
	assert.Len(t, last, 2)
	for _, e := range append(events, last...) {
		total += e.Unrecorded
		if e.Outcome != outcomeRepeated {
			total++
		}
		assert.Equal(t, audit.Deny, e.Verdict)
		assert.Equal(t, "ENOENT", e.Errno)
	}
	assert.EqualValues(t, each*clients+1, total)
	assert.Empty(t, v.quiet.held)
}

// TestQuietIsBounded: a flood of distinct paths takes no more memory than 1024, and each is
// recorded.
func TestQuietIsBounded(t *testing.T) {
	v, log := quietView(t, scope.PathRule{Pattern: "**/.env", Access: scope.Hide, Quiet: true})
	for range 2 {
		for i := range 3 * maxQuiet {
			v.try(scope.OpLookup, fmt.Sprintf("%d/.env", i))
		}
	}
	assert.Len(t, v.quiet.held, maxQuiet)
	assert.Len(t, log.take(), 3*maxQuiet+2*maxQuiet, "the second time all that did not fit")
}
