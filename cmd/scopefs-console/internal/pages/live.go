package pages

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/internal/api"
)

// How often the daemon is asked.
const (
	watchedEvery = time.Second      // while somebody looks
	idleEvery    = 10 * time.Second // for the charts
	topTime      = 3 * time.Second  // for an answer
	fleetEvery   = 5 * time.Second  // a page of the fleet is shown again
)

// maxCells limits the cells whose text is known.
const maxCells = 100_000

// The bounds of streams.
const (
	maxViewers = 64
	maxOfOne   = 16 // of a visitor
)

// live asks the daemon what runs, once for all viewers, and sends them what has changed.
type live struct {
	client *api.Client
	wake   chan struct{} // somebody begins to look

	mu      sync.Mutex
	viewers map[chan []byte]string // whose
	last    api.Top
	before  api.Top // the answer before last
	used    api.Top // the last answer with an older Used, for rates
	lost    error   // why there is no answer
	cells   map[string]string
	fleet   time.Time // when the pages of the fleet were last shown again
	samples []sample  // of the last hour
	sampled bool      // by the last answer
}

func newLive(client *api.Client) *live {
	return &live{client: client, wake: make(chan struct{}, 1), viewers: map[chan []byte]string{}, cells: map[string]string{}}
}

// run asks until ctx ends.
func (l *live) run(ctx context.Context) {
	for {
		l.look(ctx)
		every := idleEvery
		if l.watched() {
			every = watchedEvery
		}
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

func (l *live) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.viewers) > 0
}

// state returns how many approvals and proposals wait, whether the daemon is of a fleet, and why it does not answer.
func (l *live) state() (waiting int, fleet bool, lost error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last.Approvals) + len(l.last.Proposals), l.last.Fleet, l.lost
}

// asked returns the time of the daemon's last answer.
func (l *live) asked() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.Time
}

// top returns what runs, at most a second old while somebody looks.
func (l *live) top(ctx context.Context) (now, used api.Top, err error) {
	l.mu.Lock()
	old := time.Since(l.last.Time) > 2*watchedEvery
	l.mu.Unlock()
	if old {
		l.look(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.used, l.lost
}

// look asks once.
func (l *live) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, topTime)
	defer cancel()
	top, err := l.client.TopCheap(ctx)
	if err != nil && ctx.Err() == context.Canceled {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = err
	if err != nil {
		l.send("state", map[string]any{"connected": false, "waiting": len(l.last.Approvals) + len(l.last.Proposals), "why": show(err.Error())})
		return
	}
	if top.Time.Equal(l.last.Time) {
		return
	}
	if !top.Used.Equal(l.last.Used) {
		l.used = l.last
	}
	l.before, l.last = l.last, top
	kept := len(l.samples)
	l.keep(top)
	l.sampled = kept != len(l.samples)
	l.change()
}

// change sends viewers what differs between the last two answers. The caller holds mu.
func (l *live) change() {
	var changed []string
	if !sameRows(l.before, l.last) {
		changed = append(changed, "top")
	}
	if l.before.Totals.Events != l.last.Totals.Events {
		changed = append(changed, "log")
	}
	if l.sampled {
		changed = append(changed, "samples")
	}
	if l.last.Fleet && time.Since(l.fleet) >= fleetEvery {
		l.fleet = time.Now()
		changed = append(changed, "fleet")
	}
	if !slices.EqualFunc(l.before.Approvals, l.last.Approvals, func(a, b approval) bool { return a.ID == b.ID && a.State == b.State }) ||
		!slices.Equal(l.before.Proposals, l.last.Proposals) {
		changed = append(changed, "approvals")
	}
	l.send("state", map[string]any{"connected": true, "waiting": len(l.last.Approvals) + len(l.last.Proposals), "changed": changed})
	if len(l.viewers) == 0 {
		clear(l.cells)
		return
	}
	r, cells, fresh := ratesOf(l.last, l.used), map[string]string{}, map[string]string{}
	same := l.last.Used.Equal(l.before.Used) && len(l.last.Agents) == len(l.before.Agents)
	for i, a := range l.last.Agents {
		if !same || a != l.before.Agents[i] {
			r.agent(cells, a)
		}
	}
	for _, s := range l.last.Sessions {
		r.session(cells, s)
	}
	diskCells(cells, l.last.Disks)
	if len(l.cells) > maxCells { // of sessions that have ended
		clear(l.cells)
	}
	for key, text := range cells {
		if l.cells[key] != text {
			l.cells[key], fresh[key] = text, text
		}
	}
	if len(fresh) > 0 {
		l.send("cells", fresh)
	}
}

// send sends an event to all viewers. One that does not read gets no more, and opens the stream again. The caller holds mu.
func (l *live) send(event string, data any) {
	if len(l.viewers) == 0 {
		return
	}
	text, err := json.Marshal(data)
	if err != nil {
		return
	}
	message := fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, text)
	for viewer := range maps.Clone(l.viewers) {
		select {
		case viewer <- message:
		default:
			delete(l.viewers, viewer)
			close(viewer)
		}
	}
}

// watch adds a viewer of a visitor, until leave. When there are too many, the visitor with the most loses one.
func (l *live) watch(visitor string) (events <-chan []byte, leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of, most := map[string]int{}, visitor
	for _, whose := range l.viewers {
		if of[whose]++; of[whose] > of[most] {
			most = whose
		}
	}
	if of[visitor] >= maxOfOne || len(l.viewers) >= maxViewers && most == visitor {
		return nil, nil, false
	}
	if len(l.viewers) >= maxViewers {
		for viewer, whose := range l.viewers {
			if whose == most {
				delete(l.viewers, viewer)
				close(viewer)
				break
			}
		}
	}
	viewer := make(chan []byte, 16)
	l.viewers[viewer] = visitor
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return viewer, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.viewers, viewer)
	}, true
}

// stream serves the events of the page in text/event-stream (HTML, section 9.2).
func (s *Site) stream(w http.ResponseWriter, r *http.Request) {
	events, leave, ok := s.live.watch(access.Of(r.Context()).ID)
	if !ok {
		http.Error(w, "there are too many viewers: close a page", http.StatusTooManyRequests)
		return
	}
	defer leave()
	control := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	write := func(text []byte) bool {
		_ = control.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, err := w.Write(text)
		return err == nil && control.Flush() == nil
	}
	if !write([]byte("retry: 1000\n\n")) {
		return
	}
	beat := time.NewTicker(15 * time.Second)
	defer beat.Stop()
	for {
		select {
		case text, ok := <-events:
			if !ok || !write(text) {
				return
			}
		case <-beat.C:
			if !write([]byte(":\n\n")) {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// sameRows reports whether two answers have the same agents and sessions, in the same states.
func sameRows(a, b api.Top) bool {
	return slices.EqualFunc(a.Agents, b.Agents,
		func(a, b api.TopAgent) bool { return a.ID == b.ID && a.State == b.State && a.Error == b.Error }) &&
		slices.EqualFunc(a.Sessions, b.Sessions, func(a, b api.TopSession) bool { return a.ID == b.ID }) &&
		slices.EqualFunc(a.Calls, b.Calls, func(a, b api.TopCall) bool { return a.ID == b.ID })
}

// key names a cell.
func key(parts ...string) string { return strings.Join(parts, " ") }
