package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/console"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/tools/approvals"
)

// page is the process that serves the daemon's web page.
type page struct {
	mu  sync.Mutex
	now *console.Process // nil: it does not run
}

// serveConsole serves the web page, until stop. A process that ends is started again.
func (d *Daemon) serveConsole(ctx context.Context, o console.Options) (stop func(), err error) {
	socket, err := console.Listen(o)
	if err != nil {
		return nil, err
	}
	start := func() (*console.Process, error) {
		return socket.Start(d.Paths, &view.LogWriter{Logger: d.Logger, Name: "console"})
	}
	first, err := start()
	if err != nil {
		socket.Close()
		return nil, err
	}
	d.Logger.Info("serving the console", "address", o.Listen, "link", "scopefs console prints it")
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer socket.Close()
		const pause = time.Second // longer than a start takes
		for process := first; ; {
			d.page.set(process)
			if process != nil {
				select {
				case <-process.Ended():
				case <-ctx.Done():
					process.Close()
					return
				}
				d.page.set(nil)
				d.Logger.Error("the console has ended: it is started again")
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			var err error
			if process, err = start(); err != nil {
				d.Logger.Error("console", "err", err)
				process = nil
			}
		}
	}()
	return func() { cancel(); <-ended }, nil
}

func (p *page) set(process *console.Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = process
}

// link returns a link to the page.
func (p *page) link(req api.LinkRequest) (any, error) {
	p.mu.Lock()
	process := p.now
	p.mu.Unlock()
	if process == nil {
		return nil, errors.New("the daemon serves no console: start it with --console, or run scopefs console")
	}
	ask := console.Request{Ask: console.AskLink}
	if req.Pair != "" {
		ask = console.Request{Ask: console.AskPair, Name: req.Pair, Role: devices.Role(req.Role)}
	}
	reply, err := process.Do(ask)
	return api.LinkReply{Link: reply.Link, QR: reply.QR}, err
}

// inbox returns the URL of the page's inbox; "": it has none that somebody else may know.
func (p *page) inbox() string {
	p.mu.Lock()
	process := p.now
	p.mu.Unlock()
	if process == nil {
		return ""
	}
	reply, err := process.Do(console.Request{Ask: console.AskInbox})
	if err != nil {
		return ""
	}
	return reply.Link
}

func (d *Daemon) consoleHandler(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/console/link", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var req api.LinkRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		return d.page.link(req)
	}))
	mux.HandleFunc("POST /v1/console/devices", d.changing(func(_ http.ResponseWriter, r *http.Request) (any, error) {
		var req api.DeviceRequest
		if err := body(r, &req); err != nil {
			return nil, err
		}
		if err := devices.CheckName(req.Name); err != nil {
			return nil, err
		}
		if !devices.All.Covers(devices.Role(req.Role)) {
			return nil, errors.New("the role is look, decide or all")
		}
		uid, _ := api.PeerOf(r.Context())
		e := audit.Event{Event: audit.KindDaemon, Outcome: "device paired", Detail: fmt.Sprintf("%s, role %s", req.Name, req.Role), UID: &uid}
		if req.Removed {
			e.Outcome = "device removed"
		}
		as, err := approvals.Reason(req.As)
		if err != nil {
			return nil, err
		}
		if as != "" {
			e.Detail += fmt.Sprintf(", as %q", as)
		}
		return struct{}{}, d.Record(r.Context(), e)
	}))
}
