package egress

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

// Door is the proxy of a sandbox, and its end.
type Door struct {
	*Proxy               // nil: the sandbox has none
	ended  chan struct{} // closed when the proxy has ended
	cancel context.CancelFunc
}

// Open serves a proxy until Close.
func (d *Door) Open(proxy *Proxy, listener net.Listener, logger *slog.Logger) {
	ctx, stop := context.WithCancel(context.Background())
	d.Proxy, d.cancel, d.ended = proxy, stop, make(chan struct{})
	go func() {
		defer close(d.ended)
		// A session that ends closes the listener.
		if err := proxy.Serve(ctx, listener); err != nil && !errors.Is(err, net.ErrClosed) {
			logger.Error("network", "err", err)
		}
	}()
}

// Close ends the proxy, and returns when its connections are closed.
func (d *Door) Close() {
	if d.Proxy == nil {
		return
	}
	d.cancel()
	<-d.ended
}
