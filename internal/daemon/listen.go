package daemon

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/loopback"
)

// listening holds, by flag, why the daemon does not serve at an address of its command line.
type listening struct {
	mu   sync.Mutex
	errs map[string]error
}

// The pauses between two attempts to listen at an address.
const (
	listenPause     = 250 * time.Millisecond
	longListenPause = 10 * time.Second
)

// serveAt serves at the address of a flag until wait is called or ctx ends. While open fails, the daemon does everything
// else, and serveAt calls open again: another user of the host may have taken the port while no daemon ran, and gives it
// back some time. The error is in Agents.
func (d *Daemon) serveAt(ctx context.Context, flag string, open func() (stop func(), err error)) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop, err := open()
	d.listening.set(d, flag, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for pause := listenPause; err != nil; pause = min(2*pause, longListenPause) {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			stop, err = open()
			d.listening.set(d, flag, err)
		}
		<-ctx.Done()
		stop()
	}()
	return func() { cancel(); <-ended }
}

// set keeps the result of an attempt, and logs it if it is another one than before.
func (l *listening) set(d *Daemon, flag string, err error) {
	l.mu.Lock()
	was := l.errs[flag]
	if l.errs == nil {
		l.errs = map[string]error{}
	}
	if l.errs[flag] = err; err == nil {
		delete(l.errs, flag)
	}
	l.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		d.Logger.Error("an address cannot be served: the daemon tries again", "err", err)
	case err == nil && was != nil:
		d.Logger.Info("an address is served now", "flag", "--"+flag)
	}
}

// failures returns the errors, in the order of the flags.
func (l *listening) failures() (errs []error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, flag := range slices.Sorted(maps.Keys(l.errs)) {
		errs = append(errs, l.errs[flag])
	}
	return errs
}

// listenHTTP returns how the daemon listens for MCP on the loopback interface: at the address of the command line, or by the
// socket of the service manager, which keeps the port while no daemon runs. Nil: it does not.
func (d *Daemon) listenHTTP() (func() (*loopback.Listener, netip.AddrPort, error), error) {
	switch {
	case d.inherited != nil:
		return func() (*loopback.Listener, netip.AddrPort, error) { return loopback.Inherited(d.inherited) }, nil
	case d.http == "":
		return nil, nil
	}
	if err := loopback.Check("http", d.http); err != nil {
		return nil, err
	}
	return func() (*loopback.Listener, netip.AddrPort, error) {
		l, at, err := loopback.Listen(d.http)
		if err != nil {
			err = loopback.Refused(err, "give another address with --http")
		}
		return l, at, err
	}, nil
}
