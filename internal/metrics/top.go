package metrics

import "github.com/scopefs/scopefs/internal/api"

// WriteTop writes what the agents use.
func WriteTop(out *Writer, top api.Top) {
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
		{"scopefs_agent_written_bytes", "gauge", "What the processes that run gave to disks.",
			func(a api.TopAgent) float64 { return float64(a.Written) }},
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
