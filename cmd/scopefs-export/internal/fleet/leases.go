package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/internal/placement/wire"
	"github.com/scopefs/scopefs/tools/limit"
)

const (
	leaseTime    = 3 * time.Second // for one call of the server, less than a lease lasts
	leasesAtOnce = 16
	leasePause   = 3 * time.Second // after a bucket that is not there
)

// leases does the daemon's work for placement: one. What the server lacks or refuses there ends no other part of the node.
func (n *node) leases(ctx context.Context) error {
	report := wire.Report{Server: n.server()}
	for {
		work, err := wire.Turn.Call(ctx, n.daemon, report)
		if err != nil {
			return err
		}
		report = wire.Report{Number: work.Number, Server: n.server()}
		if len(work.Ops) == 0 {
			continue
		}
		kv, err := n.js.KeyValue(ctx, wire.Bucket)
		if err != nil {
			if err := wait(ctx, leasePause); err != nil {
				return err
			}
			continue
		}
		var mu sync.Mutex
		var doing sync.WaitGroup
		slots := limit.NewSlots(leasesAtOnce)
		for _, op := range work.Ops {
			free, err := slots.Take(ctx)
			if err != nil {
				break
			}
			doing.Go(func() {
				defer free()
				once, cancel := context.WithTimeout(ctx, leaseTime)
				defer cancel()
				if record, err := lease(once, kv, op); err == nil {
					mu.Lock()
					defer mu.Unlock()
					report.Records = append(report.Records, record)
				}
			})
		}
		doing.Wait()
	}
}

// server returns the id of the server. A server that starts has another one.
func (n *node) server() string { return n.js.Conn().ConnectedServerId() }

// lease reads or replaces one value. It reads the value that keeps it from replacing.
func lease(ctx context.Context, kv jetstream.KeyValue, op wire.Op) (wire.Record, error) {
	if op.Write != nil {
		text, err := json.Marshal(op.Write)
		if err != nil {
			return wire.Record{}, err
		}
		write := func() (uint64, error) { return kv.Update(ctx, string(op.Agent), text, op.Revision) }
		if op.Revision == 0 {
			write = func() (uint64, error) { return kv.Create(ctx, string(op.Agent), text) } // also where the operator has deleted one
		}
		if revision, err := write(); err == nil {
			return wire.Record{Agent: op.Agent, Revision: revision, Value: *op.Write, Wrote: true}, nil
		}
	}
	r := wire.Record{Agent: op.Agent}
	entry, err := kv.Get(ctx, string(op.Agent))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if r.Revision = entry.Revision(); json.Unmarshal(entry.Value(), &r.Value) != nil {
		r.Value = wire.Value{Node: fmt.Sprintf("of an unreadable lease %d", r.Revision)}
	}
	return r, nil
}
