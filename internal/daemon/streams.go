package daemon

import (
	"io"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/streams"
	"github.com/scopefs/scopefs/internal/view"
)

// startStreams gives the log to the receivers of scopefs.yaml, until stop.
func (d *Daemon) startStreams() (stop func()) {
	all := streams.Start(d.Settings.Log.Streams, streams.Host{
		Paths: d.Paths, Version: d.Version, Logger: d.Logger, Record: d.Log.Record,
		Stderr: func(name string) io.Writer { return &view.LogWriter{Logger: d.Logger, Name: "stream " + name} },
	})
	d.streams.Store(all)
	return all.Close
}

// outsideTime is how long anchors and streams may take to stop: they end their processes in less.
const outsideTime = 10 * time.Second

// within returns stop, bounded: one that waits for a disk that does not answer does not delay the daemon's end.
func (d *Daemon) within(limit time.Duration, what string, stop func()) func() {
	return func() {
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		select {
		case <-stopped:
		case <-time.After(limit):
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
