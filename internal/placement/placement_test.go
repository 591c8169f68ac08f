package placement

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/boottime"
	"github.com/scopefs/scopefs/internal/placement/wire"
)

// server is a server that compares and sets the value of one agent. It may lose what it had.
type server struct {
	id       int
	revision uint64 // of the last write of all
	record   wire.Record
	synced   wire.Record
}

func (s *server) do(op wire.Op) wire.Record {
	if op.Write != nil && op.Revision == s.record.Revision {
		s.revision++
		s.record = wire.Record{Agent: op.Agent, Revision: s.revision, Value: *op.Write}
		r := s.record
		r.Wrote = true
		return r
	}
	r := s.record
	r.Agent = op.Agent
	return r
}

// host is a host that the simulation drives: its process has one work at a time, which the server may do late.
type host struct {
	*Set
	work   *wire.Work
	report *wire.Report
	late   []wire.Op // sent, and given up by the process
	view   time.Duration
}

// TestOneHolder: whatever is late, lost, stopped or restarted, two hosts never hold the lease at the same time, and one of them holds
// it in the end.
func TestOneHolder(t *testing.T) {
	t.Parallel()
	held := [3]int{}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		clock, at := time.Duration(0), &server{}
		var hosts [3]*host
		for i := range hosts {
			hosts[i] = &host{Set: newSet(t, fmt.Sprint(i), func() time.Duration { return clock })}
			_ = hosts[i].Check("a")
		}
		id := func() string { return fmt.Sprint("server ", at.id) }
		holders := func() (n, who int) {
			for i, h := range hosts {
				if until, _ := h.Until("a"); until > h.view && h.Wanted("a") {
					h.view = until // the view keeps the latest
				}
				if h.view > clock {
					n, who = n+1, i
				}
			}
			return n, who
		}
		for range 600 {
			clock += time.Duration(r.IntN(1500)) * time.Millisecond
			h := hosts[r.IntN(len(hosts))]
			switch r.IntN(24) {
			case 0: // the process ends, and what it has sent arrives later
				if h.work != nil {
					h.late = append(h.late, h.work.Ops...)
				}
				h.work, h.report = nil, nil
			case 1: // the server crashes and has lost what it had not synced
				at.id++
				at.record = at.synced
			case 2:
				at.synced = at.record
			case 3:
				if len(h.late) > 0 {
					at.do(h.late[0])
					h.late = h.late[1:]
				}
			case 4: // scopefs down: the view has ended before
				if r.IntN(4) == 0 {
					h.view = 0
					h.Release("a", true)
				}
			case 5:
				_ = h.Check("a")
			case 6:
				if r.IntN(4) == 0 { // the host is stopped: for the others time goes on
					clock += Full
				}
			default:
				if h.work == nil {
					h.mu.Lock()
					if h.report != nil {
						h.take(*h.report)
					} else {
						h.take(wire.Report{Server: id()})
					}
					w := h.Set.work()
					h.mu.Unlock()
					h.work, h.report = &w, nil
				} else {
					report := wire.Report{Number: h.work.Number, Server: id()}
					for _, op := range h.work.Ops {
						if got := at.do(op); r.IntN(8) > 0 { // else the answer is lost
							report.Records = append(report.Records, got)
						}
					}
					h.work, h.report = nil, &report
				}
			}
			n, who := holders()
			require.LessOrEqual(t, n, 1, "seed %d at %v", seed, clock)
			if n == 1 {
				held[who]++
			}
		}
	}
	for i, n := range held {
		assert.Greater(t, n, 300, "host %d", i)
	}
}

func newSet(t *testing.T, node string, now func() time.Duration) *Set {
	t.Helper()
	s, err := New(node, t.TempDir())
	require.NoError(t, err)
	s.now = now
	return s
}

// TestHolder: the daemons of one state have one name, and other states others.
func TestHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, err := New("n", dir)
	require.NoError(t, err)
	two, err := New("n", dir)
	require.NoError(t, err)
	assert.Equal(t, one.holder, two.holder)
	assert.NotEqual(t, one.holder, newSet(t, "n", boottime.Now).holder)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "fleet", "holder"), []byte("?"), 0o600))
	_, err = New("n", dir)
	assert.ErrorContains(t, err, "holder: it is damaged: remove it")
}

// TestNoFleet: without a fleet no host has a lease.
func TestNoFleet(t *testing.T) {
	t.Parallel()
	var none *Set
	assert.ErrorIs(t, none.Acquire(context.Background(), "a"), ErrNoFleet)
	none.Release("a", true)
	none.Flush(context.Background())
	assert.Nil(t, none.State("a"))
	assert.False(t, none.Wanted("a"))
	until, lost := none.Until("a")
	assert.Zero(t, until)
	assert.False(t, lost)
}

// TestElsewhere: the error names the holder at once when that host renews the lease, and otherwise after a time.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	s := newSet(t, "one", boottime.Now)
	said := make(chan error, 1)
	go func() { said <- s.Acquire(context.Background(), "a") }()
	report := wire.Report{Server: "s"}
	for revision := uint64(1); ; revision++ {
		w, err := s.turn(context.Background(), report)
		require.NoError(t, err)
		report = wire.Report{Number: w.Number, Server: "s"}
		for _, op := range w.Ops {
			require.Nil(t, op.Write)
			report.Records = append(report.Records, wire.Record{Agent: op.Agent, Revision: revision, Value: wire.Value{Node: "two", Holder: "x"}})
		}
		select {
		case err := <-said:
			require.EqualError(t, err, "placement: one: node two has it: scopefs down a there, or wait until that node has not renewed it for 24s")
			assert.Equal(t, "no lease: node two has it, or had it last", s.State("a").String())
			return
		default:
			require.Less(t, revision, uint64(20))
		}
	}
}
