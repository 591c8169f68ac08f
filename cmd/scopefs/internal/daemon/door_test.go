package daemon

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope"
)

// exhausted is a listener for which there is no descriptor at first.
type exhausted struct {
	net.Listener
	tries int
}

func (l *exhausted) Accept() (net.Conn, error) {
	if l.tries++; l.tries == 1 {
		return nil, &net.OpError{Op: "accept", Err: unix.EMFILE}
	}
	return nil, net.ErrClosed
}

// An agent's socket answers again when there are descriptors again.
func TestDoorOutlivesWantOfDescriptors(t *testing.T) {
	d := &Daemon{warnings: newWarnings(slog.New(slog.DiscardHandler)), slots: map[scope.ID]chan struct{}{}}
	l := &exhausted{}
	d.receive(context.Background(), &door{listener: l}, "a", user{}, nil)
	assert.Equal(t, 2, l.tries)
}
