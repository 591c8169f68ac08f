package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/loopback"
	"github.com/scopefs/scopefs/internal/metrics"
)

// serveMetrics serves the metrics at an address, until stop.
func (d *Daemon) serveMetrics(address string) (stop func(), err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w: give another address with --metrics", err)
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", d.writeMetrics)
	server := &http.Server{Handler: loopback.Only(at, mux), ReadHeaderTimeout: headerTime, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
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
	out.Gauge("scopefs_build_info", "The version of the daemon.", 1, "version", d.Version)
	d.counted.Write(out)
	writeTop(out, d.Top(false))
	d.writeLog(out)
}

// writeTop writes what the agents use.
func writeTop(out *metrics.Writer, top api.Top) {
	out.Metric("scopefs_agents", "gauge", "Agents that are defined, by state.")
	states := map[api.State]int{}
	for _, a := range top.Agents {
		states[a.State]++
	}
	for _, state := range []api.State{api.Down, api.Starting, api.Mounted, api.Failed} {
		out.Value(float64(states[state]), "state", string(state))
	}
	for _, m := range []struct {
		name, kind, help string
		of               func(api.TopAgent) float64
	}{
		{"scopefs_agent_cpu_seconds", "gauge", "Processor time of the processes that run.", func(a api.TopAgent) float64 { return a.CPU }},
		{"scopefs_agent_memory_bytes", "gauge", "Resident memory.", func(a api.TopAgent) float64 { return float64(a.Memory) }},
		{"scopefs_agent_processes", "gauge", "Processes.", func(a api.TopAgent) float64 { return float64(a.Processes) }},
		{"scopefs_agent_written_bytes", "gauge", "What the processes that run gave to disks.", func(a api.TopAgent) float64 { return float64(a.Written) }},
		{"scopefs_calls_running", "gauge", "Calls in flight.", func(a api.TopAgent) float64 { return float64(a.Running) }},
	} {
		out.Metric(m.name, m.kind, m.help)
		for _, a := range top.Agents {
			out.Value(m.of(a), "agent", string(a.ID))
		}
	}
	for _, m := range []struct {
		name, help string
		of         func(*api.Quota) int64
	}{
		{"scopefs_agent_disk_bytes", "What an agent with limits takes.", func(q *api.Quota) int64 { return q.Bytes }},
		{"scopefs_agent_stores_bytes", "What stores hold of it.", func(q *api.Quota) int64 { return q.Stores }},
		{"scopefs_agent_disk_limit_bytes", "What it may take; 0: no limit.", func(q *api.Quota) int64 { return q.MaxBytes }},
		{"scopefs_agent_files", "Objects of an agent with limits.", func(q *api.Quota) int64 { return q.Files }},
		{"scopefs_agent_files_limit", "How many there may be; 0: no limit.", func(q *api.Quota) int64 { return q.MaxFiles }},
	} {
		out.Metric(m.name, "gauge", m.help)
		for _, a := range top.Agents {
			if a.Disk != nil {
				out.Value(float64(m.of(a.Disk)), "agent", string(a.ID))
			}
		}
	}
	sessions := map[[2]string]int{}
	for _, s := range top.Sessions {
		sessions[[2]string{string(s.Agent), string(s.Kind)}]++
	}
	out.Metric("scopefs_sessions", "gauge", "Sandboxes that run.")
	for of, n := range sessions {
		out.Value(float64(n), "agent", of[0], "kind", of[1])
	}
	out.Gauge("scopefs_approvals_waiting", "Calls and connections that wait for the operator.", float64(len(top.Approvals)))
	out.Metric("scopefs_disk_free_bytes", "gauge", "Free space of the file systems of the base and the log.")
	for _, disk := range top.Disks {
		out.Value(float64(disk.Free), "path", disk.Path)
	}
	out.Metric("scopefs_disk_size_bytes", "gauge", "Size of the file systems of the base and the log.")
	for _, disk := range top.Disks {
		out.Value(float64(disk.Size), "path", disk.Path)
	}
}

// writeLog writes the state of the log and of its anchors.
func (d *Daemon) writeLog(out *metrics.Writer) {
	failing := 0.
	if d.Log.Err() != nil {
		failing = 1
	}
	out.Gauge("scopefs_log_failing", "1 while the log cannot be written.", failing)
	_, size, _ := audit.Head(d.Paths.Audit()) // there is none before the first event is signed
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
	out.Metric("scopefs_stream_age_seconds", "gauge", "How long the oldest event has waited that a stream's receiver does not have; 0: none waits.")
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
