package fleet

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	loading "github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/library"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// The outcomes of events of [audit.KindDaemon] about definitions of the fleet. The detail names the agent, the version and the key.
const (
	DefinitionTaken   = "fleet definition taken"
	DefinitionRefused = "fleet definition refused"
)

// definePause is less than refusePause: a bucket with many keys that nobody has signed delays one that counts.
const definePause = 500 * time.Microsecond

// maxPending bounds the definitions that do not load, and are tried again with those that follow.
const maxPending = 64

// definitions are those of a node's fleet.
type definitions struct {
	host   Host
	cancel context.CancelFunc // of start
	work   sync.WaitGroup

	turn    *limit.Slots // its holder has the fields below
	library *library.Library
	pending map[scope.ID]*library.Held // newer versions that do not load
	refused *refusals

	mu    sync.Mutex
	shown []wire.Held // for held
}

func newDefinitions(l *library.Library, host Host) *definitions {
	d := &definitions{
		host: host, turn: limit.NewSlots(1), library: l, pending: map[scope.ID]*library.Held{},
		refused: newRefusals(DefinitionRefused, definePause, host.Record),
	}
	d.show(nil)
	return d
}

// start has the daemon load what Open has changed, until close: the keys that are trusted may be others than those of the last
// daemon.
func (d *definitions) start() {
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	if d.library.Changed() {
		d.work.Go(func() { d.host.Reload(ctx) })
	}
}

func (d *definitions) close() {
	if d == nil {
		return
	}
	d.cancel()
	d.work.Wait()
}

// held returns what the node shows of its definitions.
func (d *definitions) held() []wire.Held {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shown
}

// show sets what held returns. wrong says why versions do not load. The caller has the turn.
func (d *definitions) show(wrong map[scope.ID]error) {
	all := []wire.Held{}
	for _, h := range d.library.All() {
		one := wire.Held{Name: string(h.Name), Version: h.Version, By: h.By, Holds: h.Holds()}
		if err := wrong[h.Name]; err != nil && d.pending[h.Name] != nil {
			one.Error = printable.Text(err.Error())
		}
		all = append(all, one)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shown = all
}

// define takes the definitions that a trusted key has signed, that are newer than what the node has, and that load. Each that is
// taken, and each refusal, is recorded.
func (n *Node) define(ctx context.Context, all [][]byte) (none driver.None, err error) {
	d := n.definitions
	if d == nil {
		return none, nil
	}
	if len(all) > wire.MaxDefined {
		return none, fmt.Errorf("%d definitions: more than %d", len(all), wire.MaxDefined)
	}
	leave, err := n.host.Enter()
	if err != nil {
		return none, err
	}
	defer leave()
	release, err := d.turn.Take(ctx)
	if err != nil {
		return none, err
	}
	defer release()
	next, fresh := maps.Clone(d.pending), map[scope.ID]bool{}
	for _, signed := range all {
		h, err := d.library.Check(signed, time.Now())
		if err != nil {
			if err := d.refuse(ctx, h, err); err != nil {
				return none, err
			}
			continue
		}
		if h != nil && (next[h.Name] == nil || next[h.Name].Version < h.Version) {
			next[h.Name], fresh[h.Name] = h, true
		}
	}
	if len(fresh) == 0 {
		return none, nil
	}
	return none, d.take(ctx, next, fresh)
}

// take takes those of next that load, and keeps the others pending. It refuses those that are fresh and do not load.
func (d *definitions) take(ctx context.Context, next map[scope.ID]*library.Held, fresh map[scope.ID]bool) error {
	bad := map[scope.ID]error{}
	for range len(next) + 1 { // each turn leaves out at least one
		wrong, err := d.library.Try(values(next), func(dir string) (map[scope.ID]error, error) { return loading.Try(d.host.Paths, dir) })
		if err != nil {
			return d.refused.add(ctx, "all definitions: "+printable.Text(err.Error()))
		}
		more := false
		for id, h := range next {
			if err := wrong[id]; err != nil {
				if more = true; fresh[id] {
					if err := d.refuse(ctx, h, err); err != nil {
						return err
					}
				}
				bad[id] = err
				if delete(next, id); len(d.pending) < maxPending || d.pending[id] != nil {
					d.pending[id] = h
				}
			}
		}
		if !more {
			break
		}
	}
	for id, h := range next {
		if err := d.host.Record(ctx, audit.Event{Event: audit.KindDaemon, Agent: string(id), Outcome: DefinitionTaken,
			Detail: about(h)}); err != nil {
			return nil // without its record nothing changes. It comes again with the next connection
		}
		if err := d.library.Take(h); err != nil {
			if err := d.refuse(ctx, h, err); err != nil {
				return err
			}
			continue
		}
		delete(d.pending, id)
	}
	d.show(bad)
	if len(next) == 0 {
		return nil
	}
	if err := d.library.Lay(); err != nil {
		return d.refused.add(ctx, "all definitions: "+printable.Text(err.Error()))
	}
	d.host.Reload(context.WithoutCancel(ctx))
	return nil
}

func values(of map[scope.ID]*library.Held) (all []*library.Held) {
	for _, h := range of {
		all = append(all, h)
	}
	return all
}

// about names a version.
func about(h *library.Held) string {
	text := "a definition"
	if h.By != "" {
		what := "version"
		if h.Removed {
			what = "removal"
		}
		text = fmt.Sprintf("the %s of %s of the agent %.64q, by the fleet's key %s", what,
			time.UnixMilli(h.Version).UTC().Format(time.RFC3339Nano), h.Name, h.By)
	}
	return text
}

func (d *definitions) refuse(ctx context.Context, h *library.Held, why error) error {
	return d.refused.add(ctx, about(h)+": "+printable.Text(why.Error()))
}
