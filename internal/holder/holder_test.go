package holder

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/holder/wire"
)

// TestLeft: a daemon that removes a place when it has left the holder to the next daemon does not kill the holder.
func TestLeft(t *testing.T) {
	t.Parallel()
	for range 50 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		other := os.NewFile(uintptr(pair[1]), "holder")
		h := &Holder{places: map[uint64]*Place{}}
		var killed atomic.Bool
		h.serve(pair[0], func() { killed.Store(true) })
		p := h.place(Place{Kind: wire.Web})

		var both sync.WaitGroup
		h.mu.Lock()
		both.Go(h.Leave)
		time.Sleep(time.Millisecond) // so that Leave has its turn first; the test passes in any order
		both.Go(p.Remove)
		time.Sleep(time.Millisecond)
		h.mu.Unlock()
		both.Wait()
		assert.False(t, killed.Load())
		require.NoError(t, other.Close())
	}
}
