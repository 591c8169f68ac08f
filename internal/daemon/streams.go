package daemon

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/streams"
	"github.com/scopefs/scopefs/internal/view"
	"github.com/scopefs/scopefs/tools/approvals"
)

// startStreams gives the log to the receivers of scopefs.yaml, and the node to its fleet, until stop.
func (d *Daemon) startStreams() (stop func()) {
	host := streams.Host{
		Paths: d.Paths, Version: d.Version, Node: d.Settings.Fleet.Name, Logger: d.Logger, Record: d.Log.Record,
		Stderr: func(name string) io.Writer { return &view.LogWriter{Logger: d.Logger, Name: "stream " + name} },
	}
	list, leave := d.Settings.Log.Streams, func() {}
	if f := d.Settings.Fleet; f.Name != "" && d.only == "" {
		node, err := fleet.Join(f, fleet.Host{
			Paths: d.Paths, Version: d.Version, Agents: d.Agents, Approvals: d.Approvals, Enter: d.Enter, Record: d.Record,
			Reload: d.Reload, Logger: d.Logger,
			Decided: func(ctx context.Context, as string) func(approvals.Approval) error {
				return d.recordAs(ctx, nil, "", as)
			},
		})
		if err != nil {
			d.Logger.Error("the node does not join its fleet", "err", err)
		} else {
			d.node.Store(node)
			list, leave = append(slices.Clone(list), f.Stream()), node.Close
			host.Fleet = node.Handlers()
			d.Views.Placement.Handle(host.Fleet)
		}
	}
	all := streams.Start(list, host)
	d.streams.Store(all)
	return func() { all.Close(); leave() }
}

// outsideTime is how long anchors and streams may take to stop: they end their processes in less.
const outsideTime = 10 * time.Second

// within returns stop, bounded: one that waits for a disk that does not answer does not delay the daemon's end.
func (d *Daemon) within(limit time.Duration, what string, stop func()) func() {
	return func() {
		if !within(limit, stop) {
			d.Logger.Warn("the "+what+" do not stop: a disk does not answer", "after", limit)
		}
	}
}

// Streams returns how far the streams of the log are.
func (d *Daemon) Streams() []api.Stream {
	list := []api.Stream{}
	for _, s := range d.streams.Load().Status() {
		list = append(list, api.Stream{Name: s.Name, Sent: s.Sent, Lag: s.Lag, Age: s.Age.Seconds(), Late: s.Late, Error: s.Err})
	}
	return list
}
