package session

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/internal/ledger"
	"github.com/scopefs/scopefs/tools/limit"
)

// TestSocketCrowd: a client that comes after a crowd of connections waits for none of them as
// long as it would for one alone.
func TestSocketCrowd(t *testing.T) {
	const crowd = 1000
	a := &Agent{Shared: &Shared{Host: &account.Host{}, Warnings: ledger.NewWarnings(slog.New(slog.DiscardHandler))}, slots: limit.NewSlots(0)}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	conns := make([]net.Conn, crowd)
	for i := range conns {
		conns[i], err = net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		defer conns[i].Close()
	}
	began := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.receive(t.Context(), &socket{listener: l}, account.User{UID: uint32(os.Getuid())}, work{})
	}()
	for _, conn := range conns {
		text, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(text), "clients already")
	}
	assert.Less(t, time.Since(began), crowd*refusePause/2)
	l.Close()
	<-done
}

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
	a := &Agent{Shared: &Shared{Host: &account.Host{}, Warnings: ledger.NewWarnings(slog.New(slog.DiscardHandler))}}
	l := &exhausted{}
	a.receive(context.Background(), &socket{listener: l}, account.User{}, work{})
	assert.Equal(t, 2, l.tries)
}
