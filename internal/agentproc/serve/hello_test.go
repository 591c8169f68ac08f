package serve

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agentproc/wire"
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/tools/egress"
	"golang.org/x/sys/unix"
)

// TestHelloOnce: the next daemon gets a request that is made during the list once.
func TestHelloOnce(t *testing.T) {
	ours, theirs, err := packets.Pair(wire.MaxMessage)
	require.NoError(t, err)
	defer ours.Close()
	fd, err := unix.Dup(int(theirs.Fd()))
	require.NoError(t, err)
	theirs.Close()
	other, err := packets.Open(fd, wire.MaxMessage)
	require.NoError(t, err)
	defer other.Close()
	s := &server{wire: ours, boxes: map[string]*box{}, pending: map[uint64]*pending{}}
	remote, err := egress.NewRemote(egress.Options{}, nil, false)
	require.NoError(t, err)
	for i := range 2000 { // more than the socket takes
		s.boxes[fmt.Sprint(i)] = &box{remote: remote}
	}
	go s.hello(7)
	var msg wire.Message
	_, err = other.Receive(&msg)
	require.NoError(t, err)
	require.Equal(t, wire.OpHello, msg.Op)
	go func() { _, _, _ = s.call(context.Background(), "0", egress.Request{Op: egress.OpLease}, nil) }()
	for range 100 { // it is sent at once, or waits
		s.mu.Lock()
		n := len(s.pending)
		s.mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	got := map[uint64]int{}
	for len(got) == 0 || msg.Op != wire.OpListed {
		msg = wire.Message{}
		_, err = other.Receive(&msg)
		require.NoError(t, err)
		if msg.Op == wire.OpRequest {
			got[msg.ID]++
			break
		}
	}
	require.NoError(t, other.Socket.SetReadDeadline(time.Now().Add(300*time.Millisecond)))
	for {
		msg = wire.Message{}
		if _, err = other.Receive(&msg); err != nil {
			break
		}
		if msg.Op == wire.OpRequest {
			got[msg.ID]++
		}
	}
	assert.Equal(t, map[uint64]int{1: 1}, got)
}
