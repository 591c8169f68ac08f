package reader

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/limit"
)

// The times of a board.
const (
	boardTime = 2 * time.Second  // how old an answer may be
	idleTime  = 30 * time.Second // after which the process ends
	readTime  = 10 * time.Second // for the server
)

// maxWaits limits the requests of an answer.
const maxWaits = 200

// Board answers the control API with what the fleet's server has, with one look for all clients. Its process runs while
// somebody looks.
type Board struct {
	ctx    context.Context
	fleet  config.Fleet
	stderr io.Writer

	turn   *limit.Slots // one look after the other. Its holder has the fields below
	server *Server      // nil: none runs
	idle   *time.Timer  // ends it
	read   time.Time
	last   api.Fleet
}

// NewBoard returns the board of a fleet, which may be none, until ctx ends.
func NewBoard(ctx context.Context, f config.Fleet, stderr io.Writer) *Board {
	b := &Board{ctx: ctx, fleet: f, stderr: stderr, turn: limit.NewSlots(1)}
	context.AfterFunc(ctx, b.rest)
	return b
}

// Handle adds the board to the control API.
func (b *Board) Handle(mux *http.ServeMux, reply func(http.ResponseWriter, any), fail func(http.ResponseWriter, error)) {
	mux.HandleFunc("GET /v1/fleet", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readTime)
		defer cancel()
		if seen, err := b.look(ctx); err != nil {
			fail(w, err)
		} else {
			reply(w, seen)
		}
	})
}

func (b *Board) look(ctx context.Context) (api.Fleet, error) {
	if b.fleet.NATS == "" {
		return api.Fleet{}, &api.Error{Kind: api.NotFound, Text: "scopefs.yaml has no fleet"}
	}
	release, err := b.turn.Take(ctx)
	if err != nil {
		return api.Fleet{}, errors.New("the fleet's server does not answer")
	}
	defer release()
	if time.Since(b.read) < boardTime {
		return b.last, nil
	}
	if err := b.ctx.Err(); err != nil {
		return api.Fleet{}, err
	}
	if b.server == nil {
		if b.server, err = Open(ctx, b.fleet, b.stderr); err != nil {
			return api.Fleet{}, err
		}
		b.idle = time.AfterFunc(idleTime, b.rest)
	}
	b.idle.Reset(idleTime)
	if err := b.ask(ctx); err != nil {
		b.end()
		return api.Fleet{}, err
	}
	return b.last, nil
}

// ask asks the server. The caller has the turn.
func (b *Board) ask(ctx context.Context) error {
	nodes, err := b.server.Nodes(ctx)
	if err != nil {
		return err
	}
	waits, err := b.server.Waits(ctx)
	if err != nil {
		return err
	}
	b.last, b.read = api.Fleet{Nodes: []api.FleetNode{}, Waits: []api.FleetWait{}}, time.Now()
	for _, n := range nodes {
		b.last.Nodes = append(b.last.Nodes, Sum(n, b.read))
	}
	b.last.More = max(0, len(waits)-maxWaits)
	for _, w := range waits[:len(waits)-b.last.More] {
		b.last.Waits = append(b.last.Waits, api.FleetWait{Node: w.Node, About: report.About(w.Approval), Approval: w.Brief()})
	}
	return nil
}

// rest ends a process that nobody needed.
func (b *Board) rest() {
	release, err := b.turn.Take(context.Background())
	if err == nil {
		defer release()
		b.end()
	}
}

// end ends the process. The caller has the turn.
func (b *Board) end() {
	if b.server != nil {
		b.idle.Stop()
		b.server.Kill()
		b.server = nil
	}
}
