// Package bases is the daemon of a user: one process that starts a daemon for each base of the user's when a command needs it,
// and ends it. Each base has a process of its own. docs/performance.md says what one process for all would save.
package bases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/paths"
)

// Options say what a user's daemon does.
type Options struct {
	Own      config.Paths  // of the user's own base; Run has the socket
	Listener net.Listener  // of a service manager; nil: Serve listens
	Idle     time.Duration // how long the daemon of a base stays without a session
	// runs the daemon of the user's own base; nil: a command opens it, and Serve returns when nothing is open
	Keep   func(context.Context) error
	Stderr io.Writer // of the daemons of bases

	Notify   func(state string) // of sd_notify(3), without Keep
	Watchdog time.Duration
}

// server is a running user's daemon.
type server struct {
	Options
	ctx  context.Context // ends the daemons of bases
	stop func()

	ending  sync.WaitGroup // goroutines of bases
	stopped chan struct{}  // closed when all daemons have ended

	mu       sync.Mutex // nothing is waited for under it
	bases    map[string]*base
	requests int
	used     time.Time // the end of the last request or base
	closing  bool
}

// base is a base that the server serves.
type base struct {
	started chan struct{} // closed when daemon or err is set
	daemon  *embedded.Daemon
	err     error
}

const (
	// startPause is between two looks at a daemon that starts or ends.
	startPause = 20 * time.Millisecond
	// endTime bounds the end of the daemon of a base. After it the daemon is killed.
	endTime = 20 * time.Second
)

// Serve answers on the user's socket until ctx ends, a client stops it, or Keep returns. Then it ends the daemons of all
// bases.
func Serve(ctx context.Context, o Options) error {
	l := o.Listener
	if l == nil {
		lock, err := embedded.LockUser(o.Own.Run)
		if err != nil {
			return err
		}
		defer lock.Close()
		if l, err = api.Listen(o.Own.UserDaemon()); err != nil {
			return fmt.Errorf("socket of the user's daemon: %w", err)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{Options: o, ctx: ctx, stop: stop, stopped: make(chan struct{}), bases: map[string]*base{}, used: time.Now()}
	server := &http.Server{Handler: s.handler(), ConnContext: api.WithPeer, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	kept := make(chan error, 1)
	if o.Keep != nil {
		go func() { kept <- o.Keep(ctx) }()
	} else {
		o.Notify("READY=1")
		go s.watch()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
	case err = <-kept:
		kept <- nil
	}
	s.close()
	if o.Keep != nil {
		err = errors.Join(err, <-kept)
	}
	close(s.stopped)
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = server.Shutdown(late) // a client of Stop gets its answer
	return err
}

// close ends the daemons of all bases.
func (s *server) close() {
	s.mu.Lock()
	s.closing = true
	s.mu.Unlock()
	s.stop() // daemons that start end as well
	s.ending.Wait()
}

// watch ends the server when nothing has been open for a time, and sends WATCHDOG=1 while its lock is free.
func (s *server) watch() {
	every := max(min(s.Idle/4, 5*time.Second), startPause)
	if s.Watchdog > 0 {
		every = min(every, s.Watchdog/3)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		s.closing = s.closing || len(s.bases) == 0 && s.requests == 0 && time.Since(s.used) > s.Idle
		closing := s.closing
		s.mu.Unlock()
		if closing {
			s.stop()
		} else if s.Watchdog > 0 {
			s.Notify("WATCHDOG=1")
		}
	}
}

var errOther = errors.New("only the daemon's user and root may")

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/bases", func(w http.ResponseWriter, r *http.Request) {
		var req api.BaseRequest
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
			api.Refuse(w, http.StatusBadRequest, api.Error{Text: "request: " + err.Error(), Kind: api.Invalid})
			return
		}
		p, served := paths.Served(req.Base)
		if !served {
			api.Refuse(w, http.StatusNotFound, api.Error{Text: "the user's daemon does not serve " + req.Base, Kind: api.NotFound})
			return
		}
		if err := s.open(r.Context(), p, req.Env); err != nil {
			refused := api.Error{Text: err.Error(), Kind: api.Other}
			if errors.Is(err, errClosing) {
				refused.Kind = api.Closing
			}
			if ended, ok := errors.AsType[*exit.Error](err); ok {
				refused.Status = ended.Status
				if ended.Status == exit.Config {
					refused.Status = exit.Usage // of a command
				}
			}
			api.Refuse(w, http.StatusServiceUnavailable, refused)
			return
		}
		_ = json.NewEncoder(w).Encode(p)
	})
	mux.HandleFunc("POST /v1/stop", func(w http.ResponseWriter, _ *http.Request) {
		s.stop()
		<-s.stopped
		_ = json.NewEncoder(w).Encode(struct{}{})
	})
	return api.Only(uint32(os.Geteuid()), errOther, api.MaxRequest, mux)
}

var errClosing = errors.New("the user's daemon is ending")

// open returns when a daemon of the base answers. It starts one if none runs.
func (s *server) open(ctx context.Context, p config.Paths, env []string) error {
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests--
		s.used = time.Now()
	}()
	for !api.NewClient(p).Answers(ctx) {
		b, err := s.base(p, env)
		if err != nil {
			return err
		}
		var started chan struct{} // nil: Keep starts it
		if b != nil {
			started = b.started
		}
		pause := time.After(startPause)
		select {
		case <-started:
			if b.err != nil || api.NewClient(p).Answers(ctx) {
				return b.err
			}
			<-pause // it ends
		case <-pause:
		case <-s.ctx.Done():
			return errClosing
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// base returns a base that is open or opens; nil is the one that Keep runs.
func (s *server) base(p config.Paths, env []string) (*base, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, errClosing
	}
	b := s.bases[p.Base]
	if b == nil && (s.Keep == nil || p.Base != s.Own.Base) {
		b = &base{started: make(chan struct{})}
		s.bases[p.Base] = b
		s.ending.Go(func() { s.run(b, p, env) })
	}
	return b, nil
}

// run runs the daemon of a base until it ends.
func (s *server) run(b *base, p config.Paths, env []string) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.bases, p.Base)
		s.used = time.Now()
	}()
	b.err = embedded.WaitFree(s.ctx, p) // of an earlier daemon that ends
	if b.err == nil {
		b.daemon, b.err = embedded.StartBase(s.ctx, p, ofClient(env), s.Stderr, "--idle", s.Idle.String())
	}
	close(b.started)
	if b.err != nil {
		return
	}
	select {
	case <-b.daemon.Ended:
	case <-s.ctx.Done():
	}
	b.daemon.End(endTime)
}

// ofClient returns the environment of a client without what a service manager says to it.
func ofClient(env []string) []string {
	return slices.DeleteFunc(env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == "NOTIFY_SOCKET" || strings.HasPrefix(name, "WATCHDOG_") || strings.HasPrefix(name, "LISTEN_")
	})
}
