package limit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

func take(t *testing.T, q *Queue, id scope.ID) (done func()) {
	t.Helper()
	done, err := q.Take(context.Background(), id)
	require.NoError(t, err)
	return done
}

// TestQueueTurns: agents have their turns one after the other, however many calls each has.
func TestQueueTurns(t *testing.T) {
	q := NewQueue(3, 2, time.Minute)
	names := map[chan struct{}]string{}
	lanes := []*lane{}
	for _, id := range []scope.ID{"loud", "calm"} {
		l := &lane{id: id, taken: 2}
		for n := range 3 {
			turn := make(chan struct{})
			names[turn] = fmt.Sprint(id, n)
			l.waiting = append(l.waiting, turn)
		}
		lanes = append(lanes, l)
		q.agents[id] = l
		q.ring = append(q.ring, l)
		q.taken += 2
	}
	var order []string
	served := func() {
		for turn, name := range names {
			select {
			case <-turn:
				order = append(order, name)
				delete(names, turn)
			default:
			}
		}
	}
	q.end(lanes[0])
	served()
	assert.Empty(t, order, "there are more turns than all may have")
	for range 3 {
		q.end(lanes[0])
		served()
		q.end(lanes[1])
		served()
	}
	assert.Len(t, order, 6)
	for n := range 3 { // each in its order, and none twice ahead of the other
		assert.ElementsMatch(t, []string{fmt.Sprint("loud", n), fmt.Sprint("calm", n)}, order[2*n:2*n+2])
	}
	q.end(lanes[1])
	for len(q.agents) > 0 {
		for _, l := range lanes {
			if l.taken > 0 {
				q.end(l)
			}
		}
	}
	assert.Zero(t, q.taken)
	assert.Empty(t, q.ring)
}

// TestQueueBeside: an agent has fewer turns at a time while another one takes turns, and as many as before a second later.
func TestQueueBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue(8, 4, time.Minute)
		q.Beside = 1
		most := func() int { // turns of the agent loud at a time
			ctx, cancel := context.WithCancel(t.Context())
			var taken atomic.Int32
			var calls sync.WaitGroup
			for range 6 {
				calls.Go(func() {
					if done, err := q.Take(ctx, "loud"); err == nil {
						taken.Add(1)
						<-ctx.Done()
						done()
					}
				})
			}
			synctest.Wait()
			cancel()
			calls.Wait()
			return int(taken.Load())
		}
		assert.Equal(t, 4, most(), "there is no other agent")
		take(t, q, "calm")()
		assert.Equal(t, 1, most())
		time.Sleep(besideTime / 2)
		take(t, q, "calm")()
		time.Sleep(besideTime / 2)
		assert.Equal(t, 1, most())
		time.Sleep(besideTime)
		assert.Equal(t, 4, most(), "the other agent takes no turns")
		assert.Empty(t, q.agents)
	})
}

// TestQueueEnds: a call that is cancelled while it waits leaves nothing; one that takes
// long keeps nobody from his turn.
func TestQueueEnds(t *testing.T) {
	q := NewQueue(1, 1, 50*time.Millisecond)
	done := take(t, q, "a")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := q.Take(ctx, "a")
	assert.ErrorIs(t, err, context.Canceled)
	again := take(t, q, "a") // after the time of a turn
	done()
	again()
	again()
	assert.Empty(t, q.agents)
	assert.Zero(t, q.taken)
}

// TestQueueNeighbour: among hundreds of calls of another agent a call waits for none.
func TestQueueNeighbour(t *testing.T) {
	q := NewQueue(8, 4, 50*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	for range 300 {
		calls.Go(func() {
			for {
				done, err := q.Take(ctx, "loud")
				if err != nil {
					return
				}
				time.Sleep(time.Millisecond)
				done()
			}
		})
	}
	for range 100 {
		began := time.Now()
		done := take(t, q, "calm")
		assert.Less(t, time.Since(began), 10*time.Second)
		q.mu.Lock()
		assert.LessOrEqual(t, q.taken, q.all+1)
		q.mu.Unlock()
		done()
	}
	cancel()
	calls.Wait()
	assert.Zero(t, q.taken)
}
