package bridge

import (
	"context"
	"io"
	"net"
	"sync/atomic"

	"github.com/scopefs/scopefs/internal/client"
)

// Relay connects a client to an agent's tools until the client's input ends. dial connects, by a hello, and says whose pulse to watch;
// again reports that it has connected before. opened reports whether it has.
func Relay(ctx context.Context, in io.Reader, out, log io.Writer, hello client.Hello,
	dial func(ctx context.Context, again bool, hello client.Hello) (*net.UnixConn, *client.Pulse, error)) (opened bool, err error) {
	var pulse atomic.Pointer[client.Pulse] // of the running daemon
	b := &Bridge{
		In: in, Out: out, Log: log,
		Dial: func(ctx context.Context) (Conn, error) {
			conn, of, err := dial(ctx, opened, hello)
			if err != nil {
				return nil, err
			}
			opened = true
			pulse.Store(of)
			return conn, nil
		},
		Alive:   func(ctx context.Context) error { return pulse.Load().Check(ctx) },
		Private: client.MethodSandbox,
		Sandbox: func(line []byte) bool {
			resume, same, err := client.ParseSandboxLine(line)
			if hello.Resume = nil; err == nil && resume.Token != "" {
				hello.Resume = &resume
			}
			return err == nil && same
		},
	}
	err = b.Run(ctx)
	return opened, err
}
