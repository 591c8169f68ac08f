package agent

import (
	"context"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
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
func TestSocketOutlivesWantOfDescriptors(t *testing.T) {
	a := &Agent{Shared: &Shared{Warnings: NewWarnings(slog.New(slog.DiscardHandler))}}
	l := &exhausted{}
	a.receive(context.Background(), &socket{listener: l}, user{}, work{})
	assert.Equal(t, 2, l.tries)
}
