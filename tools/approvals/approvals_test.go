package approvals

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	scoped "github.com/scopefs/scopefs/scope/context"
)

func ok(Approval) error { return nil }

// free is a count without limits.
func free() error { return nil }

func TestApprovalsAreBounded(t *testing.T) {
	a := NewSet(nil)
	for i := range maxWaiting {
		_, first, err := a.Ask(Approval{Agent: "a", Path: string(rune('a' + i))}, free)
		require.NoError(t, err)
		require.True(t, first)
	}
	_, _, err := a.Ask(Approval{Agent: "a", Path: "one more"}, free)
	assert.Equal(t, &Error{Message: "64 calls wait for the operator already"}, err)
	_, _, err = a.Ask(Approval{Agent: "b"}, free)
	assert.NoError(t, err, "each agent has its own bound")
}

// What one agent asks for is bounded, and its beginning is what a list shows.
func TestApprovalsOfLongArguments(t *testing.T) {
	a := NewSet(nil)
	long := func(c string) Approval {
		return Approval{Agent: "a", Tool: "t", Arguments: json.RawMessage(`{"x":"` + strings.Repeat(c, 6<<20) + `"}`)}
	}
	for _, c := range []string{"a", "b"} {
		_, first, err := a.Ask(long(c), free)
		assert.True(t, first)
		assert.NoError(t, err)
	}
	_, _, err := a.Ask(long("c"), free)
	assert.Equal(t, &Error{Message: "2 calls wait for the operator already"}, err)
	for _, p := range a.List() {
		text, err := json.Marshal(p.Brief())
		require.NoError(t, err)
		assert.Less(t, len(text), 4<<10)
		assert.Greater(t, len(p.Arguments), 6<<20, "only there")
	}
}

// TestApprovalsRecordUnlocked: calls of other agents go on while a decision, or the end of an approval, is recorded. The
// decision does not hold yet, and no second one is made.
func TestApprovalsRecordUnlocked(t *testing.T) {
	now := time.Now()
	a := NewSet(nil)
	a.now = func() time.Time { return now }
	ask := func(agent scope.ID) Approval {
		said, _, err := a.Ask(Approval{Agent: agent, Tool: "bash", Session: "s"}, free)
		require.NoError(t, err)
		return said
	}
	recorded, others := 0, make(chan error, 3)
	record := func(state string) func(Approval) error {
		return func(p Approval) error {
			recorded++
			a.Recheck([]scope.ID{"a"}, nil)
			assert.Equal(t, Waits, ask("other").State)
			assert.Equal(t, Waits, ask("a").State, "nothing holds while %s is recorded", state)
			go func() { // it waits, and loses
				_, err := a.Decide(p.ID, true, Answer{}, ok)
				others <- err
			}()
			return nil
		}
	}
	_, err := a.Decide(ask("a").ID, true, Answer{}, record("approved"))
	require.NoError(t, err)
	assert.ErrorIs(t, <-others, ErrNotFound)
	assert.Equal(t, Granted, ask("a").State)

	made, err := a.Stand(ask("a").ID, Terms{For: time.Minute}, Answer{}, record("standing"))
	require.NoError(t, err)
	assert.ErrorIs(t, <-others, ErrNotFound)
	assert.ErrorIs(t, <-others, ErrNotFound)
	assert.Equal(t, Granted, ask("a").State)
	assert.Equal(t, Stands, ask("a").State)
	_, err = a.Revoke(made.ID, Answer{}, func(Approval) error {
		assert.Equal(t, Waits, ask("a").State)
		return errors.New("not recorded")
	})
	assert.Error(t, err)
	require.NoError(t, a.Forget("a"))
	assert.Equal(t, Stands, ask("a").State, "it holds again")

	a.Ended = func(Approval, string) { recorded++; ask("other") }
	now = now.Add(2 * time.Minute)
	assert.Equal(t, Waits, ask("a").State)
	assert.Equal(t, 4, recorded)
}

// TestApprovalBeingRevoked: a call gets nothing of a grant whose end is being recorded.
func TestApprovalBeingRevoked(t *testing.T) {
	a := NewSet(nil)
	p, _, err := a.Ask(Approval{Agent: "a", Context: []scoped.Part{{Name: "x"}, {Name: "y"}}}, free)
	require.NoError(t, err)
	_, err = a.Decide(p.ID, true, Answer{Scopes: []string{"x"}}, ok)
	require.NoError(t, err)
	_, err = a.Revoke(p.ID, Answer{}, func(Approval) error {
		said, _, err := a.Ask(p, free)
		assert.Equal(t, Waits, said.State)
		assert.Empty(t, said.Granted)
		return err
	})
	require.NoError(t, err)
}

// drawer is a store of approvals that outlives those who use it.
type drawer struct {
	approvals map[string]Approval
	err       error
}

func newDrawer() *drawer { return &drawer{approvals: map[string]Approval{}} }

func (d *drawer) Put(p Approval) error {
	if d.err == nil {
		d.approvals[p.ID] = p
	}
	return d.err
}

func (d *drawer) Remove(p Approval) error {
	if _, ok := d.approvals[p.ID]; !ok {
		return fs.ErrNotExist
	}
	if d.err == nil {
		delete(d.approvals, p.ID)
	}
	return d.err
}

// restart returns approvals as the next daemon has them.
func (d *drawer) restart() *Set {
	s := NewSet(d)
	s.Resume(d.all()...)
	return s
}

func (d *drawer) all() []Approval { return slices.Collect(maps.Values(d.approvals)) }

func TestApprovalsOutliveTheDaemon(t *testing.T) {
	kept := newDrawer()
	ask := func(content string) Approval {
		said, _, err := kept.restart().Ask(Approval{Agent: "a", Tool: "bash", Path: "x", Content: content}, free) // before each request
		require.NoError(t, err)
		return said
	}
	id := ask("h").ID
	assert.Equal(t, id, ask("h").ID, "it waits still")
	_, err := kept.restart().Decide(id, true, Answer{}, ok)
	require.NoError(t, err)
	_, err = kept.restart().Decide(id, false, Answer{}, ok)
	assert.ErrorIs(t, err, ErrNotFound, "decided is decided")
	assert.Equal(t, Waits, ask("other").State, "it is for the content that it was for")
	assert.Equal(t, Granted, ask("h").State)
	second := ask("h")
	assert.Equal(t, Waits, second.State, "used is used")
	assert.NotEqual(t, id, second.ID)

	_, err = kept.restart().Decide(second.ID, false, Answer{}, ok)
	require.NoError(t, err)
	assert.Equal(t, Denied, ask("h").State, "denied is denied")
	require.NoError(t, kept.restart().Forget("a"))
	assert.Empty(t, kept.approvals)
}

// Time goes on while no daemon runs, and an approval does not gain by a clock
// that is set back.
func TestKeptApprovalsExpire(t *testing.T) {
	kept := newDrawer()
	p, _, err := kept.restart().Ask(Approval{Agent: "a", Tool: "bash"}, free)
	require.NoError(t, err)
	p, err = kept.restart().Decide(p.ID, true, Answer{}, ok)
	require.NoError(t, err)
	for _, after := range []time.Duration{lifetime + time.Second, -time.Second} {
		a := kept.restart()
		a.now = func() time.Time { return p.Asked.Add(after) }
		assert.Empty(t, a.List(), after)
		assert.Empty(t, kept.approvals, after)
		kept.approvals[p.ID] = p
	}
	assert.Len(t, kept.restart().List(), 1)
}

// What cannot be stored does not happen.
func TestApprovalsNotStored(t *testing.T) {
	kept, full, bash := newDrawer(), errors.New("disk full"), Approval{Agent: "a", Tool: "bash"}
	all := kept.restart()
	refused := func(cause error) {
		_, _, err := all.Ask(bash, free)
		e, ok := errors.AsType[*Error](err)
		require.True(t, ok, "%v", err)
		assert.ErrorIs(t, e.Cause, cause)
		assert.NotContains(t, e.Error(), cause.Error())
	}
	kept.err = full
	refused(full)
	assert.Empty(t, all.List())
	kept.err = nil
	p, _, err := all.Ask(bash, free)
	require.NoError(t, err)
	kept.err = full
	_, err = all.Decide(p.ID, true, Answer{}, ok)
	assert.ErrorIs(t, err, full)
	kept.err = nil
	_, err = all.Decide(p.ID, true, Answer{}, ok)
	require.NoError(t, err)
	kept.err = full
	refused(full)
	kept.err = nil
	p, _, err = all.Ask(bash, free)
	require.NoError(t, err)
	_, err = all.Decide(p.ID, true, Answer{}, ok)
	require.NoError(t, err)
	delete(kept.approvals, p.ID) // by the operator's hand, or another daemon's
	refused(fs.ErrNotExist)
}

// TestRace: of operators who decide at once exactly one decides, and the others learn what was decided, by whom.
func TestRace(t *testing.T) {
	for round := range 100 {
		a := NewSet(nil)
		p, _, err := a.Ask(Approval{Agent: "a", Tool: "bash"}, free)
		require.NoError(t, err)
		var recorded atomic.Int32
		record := func(Approval) error {
			recorded.Add(1)
			runtime.Gosched()
			return nil
		}
		var all sync.WaitGroup
		errs := make([]error, 4)
		start := make(chan struct{})
		for i := range errs {
			all.Go(func() {
				<-start
				said := Answer{By: fmt.Sprint("operator ", i), Shown: p.Hash}
				if p.Hash == "" {
					t.Error("a request has no hash")
				}
				switch i {
				case 0:
					_, errs[i] = a.Stand(p.ID, Terms{}, said, record)
				default:
					_, errs[i] = a.Decide(p.ID, i%2 == 0, said, record)
				}
			})
		}
		close(start)
		all.Wait()
		won := -1
		for i, err := range errs {
			if err == nil {
				require.Equal(t, -1, won, "two decisions hold in round %d: %v", round, errs)
				won = i
			}
		}
		require.NotEqual(t, -1, won, "%v", errs)
		for i, err := range errs {
			if i != won {
				require.ErrorContains(t, err, fmt.Sprintf("already by operator %d, at ", won))
			}
		}
		want := int32(1)
		if won == 0 {
			want = 2 // the standing approval, and the request
		}
		require.Equal(t, want, recorded.Load())
	}
}

// TestTimedOutMeanwhile: a request whose time is over while no daemon runs ends as timed out with the next one.
func TestTimedOutMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := newDrawer()
		first := NewSet(kept)
		_, _, err := first.Ask(Approval{Agent: "a", Tool: "bash"}, free)
		require.NoError(t, err)
		all := kept.all()
		first.Close()
		time.Sleep(24 * time.Hour)
		next := NewSet(kept)
		synctest.Wait()
		var ended []string
		next.Ended = func(p Approval, why string) { ended = append(ended, p.State+": "+why) }
		next.Resume(all...)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"waits: nobody decided in time"}, ended)
		assert.Empty(t, kept.approvals)
	})
}

// TestTimedOut: a request that nobody decides ends when its time is over, as timed out, without anybody looking.
func TestTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewSet(nil)
		var ended []string
		a.Ended = func(p Approval, why string) { ended = append(ended, p.State+": "+why) }
		p, _, err := a.Ask(Approval{Agent: "a", Tool: "bash"}, free)
		require.NoError(t, err)
		changes, stop := a.Watch()
		defer stop()
		assert.Equal(t, Waits, (<-changes).Outcome)
		u := <-changes
		assert.Equal(t, TimedOut, u.Outcome)
		assert.Equal(t, p.ID, u.Approval.ID)
		synctest.Wait()
		assert.Equal(t, []string{"waits: nobody decided in time"}, ended)
		_, err = a.Get(p.ID)
		assert.ErrorContains(t, err, "timed out")
		assert.ErrorIs(t, err, ErrNotFound)
		_, err = a.Decide(p.ID, true, Answer{}, ok)
		assert.NotContains(t, err.Error(), "denied")
	})
}

// TestReason: a reason is one line without characters that do more than stand there, and bounded.
func TestReason(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"use make":                          "use make",
		" a\x1b[2J\n\tb\u202ec\u200bd\xff ": "a [2J b c d",
		strings.Repeat("ü", MaxReason):      strings.Repeat("ü", MaxReason),
	} {
		got, err := Reason(text)
		assert.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := Reason(strings.Repeat("x", MaxReason+1))
	assert.ErrorContains(t, err, "write at most 500")
}

// TestText: an argument is the one that every reader takes.
func TestText(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"command":"ls","timeout":5}`: "ls", `{"a":{"COMMAND":"x"},"command":"ls"}`: "ls", `{"command":""}`: "",
	} {
		got, ok := Approval{Arguments: json.RawMessage(arguments)}.Text("command")
		assert.True(t, ok, arguments)
		assert.Equal(t, want, got, arguments)
	}
	for _, arguments := range []string{`{"command":"evil","Command":"ls"}`, `{"COMMAND":"ls","command":"evil"}`, `{"command":"evil","command":"ls"}`,
		`{"Command":"ls"}`, `{"command":1}`, `["command","ls"]`, `"command"`, `{"command":`, ``} {
		_, ok := Approval{Arguments: json.RawMessage(arguments)}.Text("command")
		assert.False(t, ok, arguments)
	}
}
