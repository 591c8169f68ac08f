package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/scopefs/scopefs/audit/proof"
	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/internal/metrics"
)

// serveMetrics serves the metrics at an address, until stop.
func (d *Daemon) serveMetrics(address string) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", loopback.Refused(err, "give another address with --metrics"))
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", d.writeMetrics)
	server := &http.Server{Handler: loopback.Only(at, mux), ReadHeaderTimeout: headerTime, WriteTimeout: time.Minute,
		IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(loopback.NewConns(l, connections)) // it ends with Close
	}()
	d.Logger.Info("serving metrics", "url", "http://"+l.Addr().String()+"/metrics")
	return func() { server.Close(); <-served }, nil
}

// writeMetrics answers with what the daemon has counted, and what it is now.
func (d *Daemon) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := metrics.NewWriter(w)
	out.Gauge("scopefs_build_info", "The version of the daemon, and its name in a fleet.", 1, "version", d.Version,
		"node", d.Settings.Fleet.Name)
	d.counted.Write(out)
	metrics.WriteTop(out, d.Top(false))
	d.writeLog(out)
}

// writeLog writes the state of the log and of its anchors.
func (d *Daemon) writeLog(out *metrics.Writer) {
	failing := 0.
	if d.Log.Err() != nil {
		failing = 1
	}
	out.Gauge("scopefs_log_failing", "1 while the log cannot be written.", failing)
	_, size, _ := proof.Head(d.Paths.Audit()) // there is none before the first event is signed
	out.Gauge("scopefs_log_lines", "Lines below the log's last signed head.", float64(size))
	out.Metric("scopefs_anchor_age_seconds", "gauge", "Time since an anchor had the newest head; -1: never since the daemon started.")
	all := d.Anchors()
	for _, a := range all {
		age := -1.
		if !a.Kept.IsZero() {
			age = time.Since(a.Kept).Seconds()
		}
		out.Value(age, "name", a.Name)
	}
	out.Metric("scopefs_anchor_late", "gauge", "1 after the alarm that an anchor is late, until it has a head.")
	for _, a := range all {
		late := 0.
		if a.Late {
			late = 1
		}
		out.Value(late, "name", a.Name)
	}
	streams := d.streams.Load().Status()
	out.Metric("scopefs_stream_age_seconds", "gauge",
		"How long the oldest event has waited that a stream's receiver does not have; 0: none waits.")
	for _, s := range streams {
		out.Value(s.Age.Seconds(), "name", s.Name)
	}
	out.Metric("scopefs_stream_lag_events", "gauge", "Events of the log that a stream's receiver does not have.")
	for _, s := range streams {
		out.Value(float64(s.Lag), "name", s.Name)
	}
	out.Metric("scopefs_stream_late", "gauge", "1 while a stream is late.")
	for _, s := range streams {
		late := 0.
		if s.Late {
			late = 1
		}
		out.Value(late, "name", s.Name)
	}
}
