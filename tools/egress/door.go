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
	Before *Door         // with the tunnels that an earlier daemon has left; nil: none
	ended  chan struct{} // closed when the proxy has ended
	cancel context.CancelFunc
}

// Open serves a proxy and its ports until Close.
func (d *Door) Open(proxy *Proxy, listener net.Listener, logger *slog.Logger, ports ...Port) {
	ctx, stop := context.WithCancel(context.Background())
	d.Proxy, d.cancel, d.ended = proxy, stop, make(chan struct{})
	go func() {
		defer close(d.ended)
		// A session that ends closes the listener.
		if err := proxy.Serve(ctx, listener, ports...); err != nil && !errors.Is(err, net.ErrClosed) {
			logger.Error("network", "err", err)
		}
	}()
}

// Adopt continues with tunnels that an earlier daemon has left, until Close: see Proxy.Adopt.
func (d *Door) Adopt(proxy *Proxy, all []Left) {
	ctx, stop := context.WithCancel(context.Background())
	d.Proxy, d.cancel, d.ended = proxy, stop, make(chan struct{})
	proxy.Adopt(ctx, all)
	go func() {
		defer close(d.ended)
		<-ctx.Done()
		proxy.closeAll()
		proxy.wait.Wait()
	}()
}

// Recheck is that of the proxies.
func (d *Door) Recheck() {
	for ; d != nil; d = d.Before {
		if d.Proxy != nil {
			d.Proxy.Recheck()
		}
	}
}

// Leave leaves the tunnels to the next daemon. Close follows.
func (d *Door) Leave() {
	for ; d != nil; d = d.Before {
		if d.Proxy != nil {
			d.leaveTunnels()
		}
	}
}

// Close ends the proxies, and returns when their connections are closed.
func (d *Door) Close() {
	for ; d != nil; d = d.Before {
		if d.Proxy != nil {
			d.cancel()
			<-d.ended
		}
	}
}
