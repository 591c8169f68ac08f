package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/agent"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/outlive"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// runs are the sandboxes of scopefs run, and of clients of scopefs mcp or HTTP, that the last daemon has left.
type runs struct {
	left    []outlive.Item  // that no agent has yet
	web     []*holder.Place // sessions over HTTP
	settled chan struct{}   // closed when every sandbox is taken over or has ended
	over    <-chan struct{} // closed when the daemon ends: no client is lost from then on, but for its connection

	mu  sync.Mutex
	all []*leftRun
}

// leftRun is one of them.
type leftRun struct {
	outlive.Item
	box     *session.Sandbox // nil: it has ended
	process *sandbox.Process // of a run
	back    chan struct{}    // closed when its client has returned
	taken   bool             // back is closed; guarded by runs.mu
	why     error            // why this daemon has ended it; guarded by runs.mu
}

// clientTime bounds the wait for the client of a sandbox that was taken over. It connects within milliseconds.
const clientTime = 15 * time.Second

// adopt continues with what the last daemon has left of an agent's sandboxes, before the view's clients are asked for.
func (d *Daemon) adopt(a *agent.Agent) {
	for _, item := range d.runs.take(a.ID()) {
		l := &leftRun{Item: item, back: make(chan struct{})}
		var err error
		if l.box, l.process, err = a.Adopt(item); err != nil {
			d.dropRun(l, err)
			continue
		}
		d.runs.mu.Lock()
		d.runs.all = append(d.runs.all, l)
		d.runs.mu.Unlock()
	}
}

// take returns what is left of an agent, once.
func (r *runs) take(id scope.ID) (of []outlive.Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var others []outlive.Item
	for _, item := range r.left {
		if item.Agent == id {
			of = append(of, item)
		} else {
			others = append(others, item)
		}
	}
	r.left = others
	return of
}

// settleRuns ends the sandboxes that would be made in another way now, or whose view is another one, and those whose client
// does not return.
func (d *Daemon) settleRuns() {
	for _, item := range d.runs.left {
		d.dropRun(&leftRun{Item: item}, errors.New("its agent or its view is gone"))
	}
	d.runs.mu.Lock()
	all := d.runs.all
	d.runs.mu.Unlock()
	for _, l := range all {
		if l.box == nil {
			continue
		}
		err := l.box.Same()
		if err == nil && l.Web != "" && (d.Web == nil || d.Web.Claim != l.Web) {
			err = errors.New("this daemon serves no HTTP, or its tokens have another key")
		}
		if err != nil {
			d.endRun(l, err)
			continue
		}
		d.Event(audit.Event{Event: audit.KindSandbox, Agent: string(l.Agent), Session: l.Name, Parent: l.Parent,
			Outcome: outlive.Taken, PID: l.Outliving.PID})
		go d.awaitClient(l)
	}
	close(d.runs.settled)
}

// dropRun ends a sandbox that this daemon does not continue with.
func (d *Daemon) dropRun(l *leftRun, why error) {
	d.noteRun(l, why)
	l.End()
	l.RecordExit(d, d.Paths.Audit(), outlive.EndedWith)
	l.RecordEnd(d, d.Paths.Audit(), why.Error())
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	d.runs.all = append(d.runs.all, l)
}

func (d *Daemon) noteRun(l *leftRun, why error) {
	d.Logger.Info("a sandbox of the last daemon ends", "agent", l.Agent, "session", l.Name, "err", why)
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	l.why = why
}

// awaitClient ends a sandbox whose client does not return. Clients over HTTP have no connection to return with: the daemon does
// it for them.
func (d *Daemon) awaitClient(l *leftRun) {
	leave, err := d.Enter() // the log is open until the end is recorded
	if err != nil {
		return
	}
	defer leave()
	late := time.NewTimer(clientTime)
	defer late.Stop()
	if a := d.agent(l.Agent); l.Web != "" && a != nil {
		ctx, cancel := context.WithTimeout(context.Background(), webTime)
		defer cancel()
		if _, err := a.WebFace(ctx); err != nil {
			d.Logger.Warn("a sandbox of clients over HTTP", "agent", l.Agent, "session", l.Name, "err", err)
		}
	}
	select {
	case <-l.back:
	case <-l.box.Done():
		if !l.box.Left() && !l.box.Claimed() {
			d.noteRun(l, l.box.Err())
		}
		d.endRun(l, nil)
	case <-late.C:
		d.endRun(l, errors.New("its client has not returned"))
	}
}

// endRun ends a sandbox that has no client.
func (d *Daemon) endRun(l *leftRun, why error) {
	d.runs.mu.Lock()
	taken := l.taken || !l.box.Claim()
	l.taken = true
	d.runs.mu.Unlock()
	if taken {
		return
	}
	if why != nil {
		d.noteRun(l, why)
		l.box.Because = why
		_ = l.box.Close() // End returns the error
	}
	if l.process != nil {
		if exit, err := l.process.Wait(); err == nil {
			l.RecordExit(d, d.Paths.Audit(), exit.Outcome())
		} else if !errors.Is(err, sandbox.ErrLeft) {
			l.RecordExit(d, d.Paths.Audit(), outlive.EndedWith)
		}
	}
	l.box.End()
}

// returnedTo returns the sandbox of a client of scopefs mcp, once: see session.Shared. A client that did not wait for this daemon
// has connected again: the sandbox is for that connection.
func (d *Daemon) returnedTo(ctx context.Context, id scope.ID, resume api.Resume, conn net.Conn) *session.Sandbox {
	select {
	case <-d.runs.settled:
	case <-ctx.Done():
		return nil
	}
	user, known := api.PeerUID(conn)
	if !known || api.HungUp(conn) {
		return nil
	}
	l, err := d.runs.returned(id, resume, &user, api.ClientSession)
	if err == nil && l.box != nil {
		return l.box
	}
	d.Logger.Info("a client of the last daemon gets a new sandbox", "agent", id, "session", resume.Session, "err", err)
	return nil
}

// returnedWeb returns the sandbox of an agent's clients over HTTP, once: see session.Shared.
func (d *Daemon) returnedWeb(ctx context.Context, id scope.ID) (*session.Sandbox, error) {
	select {
	case <-d.runs.settled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.runs.mu.Lock()
	defer d.runs.mu.Unlock()
	for _, l := range d.runs.all {
		if l.Agent == id && l.Web != "" && l.why == nil && !l.taken {
			l.taken = true
			close(l.back)
			return l.box, nil
		}
	}
	return nil, nil
}

// returned returns what is left for a client, once. kind is that of its session.
func (r *runs) returned(id scope.ID, resume api.Resume, by *uint32, kind api.SessionKind) (*leftRun, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.all {
		switch {
		case l.Agent != id || (l.Parent != "") != (kind == api.ClientSession) || !l.Is(resume.Session, resume.Token, by):
		case l.why != nil:
			return nil, fmt.Errorf("the next daemon has ended the sandbox: %w", l.why)
		case !l.taken:
			l.taken = true
			close(l.back)
			return l, nil
		}
	}
	return nil, errors.New("the sandbox has ended")
}

// resume continues with a run whose daemon has ended. Its sandbox and command are those of that daemon.
func (d *Daemon) resume(w http.ResponseWriter, r *http.Request, a *agent.Agent, by *uint32, req api.RunRequest) error {
	select {
	case <-d.runs.settled:
	case <-r.Context().Done(): // the client tries again with the next daemon
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			conn.Close()
		}
		return nil
	}
	var notes notes
	purpose, unattended := d.purposeOf(a, by, req, &notes)
	defer unattended()
	if by == nil {
		notes.last = append(notes.last, a.Waiting)
		if req.Program != nil {
			purpose.Login = req.Program.Login
		}
	}
	l, err := d.runs.returned(a.ID(), *req.Resume, by, api.RunSession)
	if err != nil {
		return err
	}
	var conn *runConn
	defer func() { // after the sandbox's end, as in runFor
		if conn != nil {
			conn.Close()
		}
	}()
	for _, id := range l.Lent {
		if def := d.Definitions()[id]; def != nil {
			d.leases.take(id, def.View.Closed)
		}
	}
	defer d.endRoots(context.WithoutCancel(r.Context()), l.Lent)
	defer l.box.End()
	gone := func() {
		select {
		case <-d.runs.over: // the sandbox is left, or ends with the others
		default:
			d.Logger.Info("the client of a command of the last daemon has left it", "agent", l.Agent, "session", l.Name)
			_ = l.box.Close()
		}
	}
	ended := func(outcome string) { l.RecordExit(a, d.Paths.Audit(), outcome) }
	l.box.Connect(purpose)
	if by == nil {
		notes.last = append(notes.last, l.box.NotePorts())
	}
	if conn, err = takeOver(w); err != nil {
		gone()
		if _, err := l.process.Wait(); !errors.Is(err, sandbox.ErrLeft) {
			ended("abandoned")
		}
		return nil
	}
	if attend(conn, l.process, req.Stops, api.FromRun{}, nil, &notes, gone, ended) {
		tell(r.Context(), conn, l.box)
	}
	return nil
}
