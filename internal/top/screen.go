package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/tools/approvals"
)

// screen is the table of top, from two answers of the daemon. Every text in it may be an
// agent's: rows are escaped.
type screen struct {
	now api.Top
	cpu map[string]float64 // percent, by the id of a session or of an agent
}

// row is a line of the table.
type row struct {
	kind  rowKind
	id    string // of the session, or of the approval
	agent string
	text  string
}

func (r row) key() string { return fmt.Sprintf("%d %s %s", r.kind, r.agent, r.id) }

type rowKind int

const (
	agentRow rowKind = iota
	sessionRow
	approvalRow
)

const header = "AGENT / SESSION              KIND    AGE     CPU%      MEM  WRITTEN  PROCS  DENIED  CALLS  COMMAND"

// newScreen returns the table. before may be the zero Top.
func newScreen(before, now api.Top) *screen {
	s := &screen{now: now, cpu: map[string]float64{}}
	passed := now.Time.Sub(before.Time).Seconds()
	if before.Time.IsZero() || passed <= 0 {
		return s
	}
	old := map[string]float64{}
	for _, b := range before.Agents {
		old["agent "+string(b.ID)] = b.CPU
	}
	for _, a := range now.Agents {
		s.cpu["agent "+string(a.ID)] = max(0, a.CPU-old["agent "+string(a.ID)]) / passed * 100
	}
	for _, b := range before.Sessions {
		old[b.ID] = b.CPU
	}
	for _, n := range now.Sessions {
		s.cpu[n.ID] = max(0, n.CPU-old[n.ID]) / passed * 100
	}
	return s
}

// head returns the line above the table.
func (s *screen) head() string {
	head := fmt.Sprintf("scopefs top  %s  agents: %d, sessions: %d, calls that wait for approval: %d",
		s.now.Time.Local().Format(time.TimeOnly), len(s.now.Agents), len(s.now.Sessions), len(s.now.Approvals))
	for _, d := range s.now.Disks {
		head += fmt.Sprintf(", free in %s: %s of %s", printable.Text(d.Path), size(d.Free), size(d.Size))
	}
	return head
}

// rows returns the rows: of each agent what waits for approval first, then its sessions.
// Agents that do nothing are left out, unless idle is set.
func (s *screen) rows(idle bool) (rows []row) {
	for _, a := range s.now.Agents {
		own := s.of(a)
		if len(own) == 0 && a.Denials+a.Calls == 0 && a.State == api.Mounted && !idle {
			continue
		}
		about := string(a.State)
		if a.Running > 0 {
			about += fmt.Sprintf(", %d calls run", a.Running)
		}
		if a.Disk != nil {
			about += ", " + a.Disk.String()
		}
		if a.Error != "" {
			about += ": " + a.Error
		}
		text := cells{
			name: string(a.ID), kind: "agent", cpu: s.cpu["agent "+string(a.ID)], use: a.Use,
			denied: fmt.Sprint(a.Denials), calls: fmt.Sprint(a.Calls), about: about,
		}
		rows = append(rows, row{agentRow, "", string(a.ID), text.String()})
		rows = append(rows, own...)
	}
	return rows
}

// of returns the rows below an agent.
func (s *screen) of(a api.TopAgent) (rows []row) {
	for _, p := range s.now.Approvals {
		if p.Agent == a.ID {
			rows = append(rows, row{approvalRow, p.ID, string(a.ID), waits(p, s.now.Time)})
		}
	}
	for _, n := range s.now.Sessions {
		if n.Agent == a.ID {
			about := n.Command
			if about == "" || n.Kind == api.ServerSession {
				about = strings.TrimSpace(about + " " + n.Program)
			}
			text := cells{
				name: "  " + n.ID, kind: string(n.Kind), age: age(s.now.Time.Sub(n.Since)), cpu: s.cpu[n.ID], use: n.Use, about: about,
			}
			rows = append(rows, row{sessionRow, n.ID, string(a.ID), text.String()})
		}
	}
	return rows
}

// waits returns the row of a call that waits.
func waits(p approvals.Approval, now time.Time) string {
	about := printable.Text(p.Whose() + " " + p.Tool + " " + report.About(p))
	return fmt.Sprintf("  %-26s %-7s %-6s %s", printable.Text(p.ID), "waits", age(now.Sub(p.Asked)), about)
}

// cells are the columns of a row.
type cells struct {
	name, kind, age string
	cpu             float64 // percent
	use             api.Use
	denied, calls   string
	about           string
}

func (c cells) String() string {
	return fmt.Sprintf("%-28s %-7s %-6s %5.1f %8s %8s %6d %7s %6s  %s", printable.Text(c.name), c.kind, c.age, c.cpu,
		size(uint64(max(c.use.Memory, 0))), size(uint64(max(c.use.Written, 0))), c.use.Processes, c.denied, c.calls, printable.Text(c.about))
}

// size returns bytes with a unit, in at most eight characters.
func size(n uint64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value < 1000 {
			break
		}
		value, unit = value/1024, next
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f%s", value, unit)
	}
	return fmt.Sprintf("%.1f%s", value, unit)
}

// age returns a duration in its largest unit.
func age(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02d", d/time.Minute, d%time.Minute/time.Second)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02d", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// find returns the index of the row with a key, or -1.
func find(rows []row, key string) int {
	return slices.IndexFunc(rows, func(r row) bool { return r.key() == key })
}
