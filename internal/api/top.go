package api

import (
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Top is what runs at a time. Commands, programs and approvals hold text of agents.
type Top struct {
	Time      time.Time            `json:"time"`
	Used      time.Time            `json:"used"` // when the processes were read: see Use
	Agents    []TopAgent           `json:"agents"`
	Sessions  []TopSession         `json:"sessions"`            // by agent, the oldest first
	Approvals []approvals.Approval `json:"approvals"`           // that wait, each Brief
	Proposals []string             `json:"proposals,omitempty"` // that wait, with their hashes
	Disks     []Disk               `json:"disks"`
	Calls     []TopCall            `json:"calls"` // in flight, by agent, the oldest first; 64 of an agent at most
	Totals    Totals               `json:"totals"`
	Fleet     bool                 `json:"fleet,omitempty"` // scopefs.yaml names one
}

// NewTop is that of no daemon.
func NewTop() Top {
	return Top{Time: time.Now(), Agents: []TopAgent{}, Sessions: []TopSession{}, Approvals: []approvals.Approval{},
		Disks: []Disk{}, Calls: []TopCall{}}
}

// TopCall is a call in flight.
type TopCall struct {
	ID      string    `json:"call"`
	Agent   scope.ID  `json:"agent"`
	Session string    `json:"session"`
	Tool    string    `json:"tool"`
	Chain   string    `json:"chain,omitempty"` // of agents, where another one called: a>b
	Since   time.Time `json:"since"`
}

// Totals are what a daemon has recorded since it started.
type Totals struct {
	Events  int64   `json:"events"`
	Calls   int64   `json:"calls"` // that ended, or were refused
	Denials int64   `json:"denials"`
	Ended   int64   `json:"calls_ended"`
	Took    float64 `json:"calls_seconds"` // how long those that ended took together
}

// add adds those of another daemon.
func (t *Totals) add(o Totals) {
	t.Events, t.Calls, t.Denials, t.Ended, t.Took = t.Events+o.Events, t.Calls+o.Calls, t.Denials+o.Denials, t.Ended+o.Ended, t.Took+o.Took
}

// Use is what processes use. It has what they wrote, not what their files take on a disk: the
// file systems that scopefs runs on count that for a directory only by a walk of the tree.
type Use struct {
	CPU       float64 `json:"cpu_seconds"`  // of processor, since they started, with children that have ended
	Memory    int64   `json:"memory_bytes"` // resident; what processes share counts for each
	Processes int     `json:"processes"`

	// Written is write_bytes of /proc/PID/io: what they, and their children that have ended, gave
	// file systems on a disk, also if it was overwritten or removed since. A tmpfs is on no disk.
	Written int64 `json:"written_bytes"`
}

// Add adds what others use.
func (u *Use) Add(v Use) {
	u.CPU += v.CPU
	u.Memory += v.Memory
	u.Processes += v.Processes
	u.Written += v.Written
}

// TopAgent is an agent, with what its view and sessions use.
type TopAgent struct {
	ID    scope.ID `json:"agent"`
	State State    `json:"state"`
	Error string   `json:"error,omitempty"`
	Use
	Denials int64 `json:"denials"` // of the last minute, violations included
	Calls   int64 `json:"calls"`   // of the last minute, refused ones included
	Running int64 `json:"calls_running"`
	Open    int64 `json:"connections"`

	Disk *Quota `json:"disk,omitempty"` // nil: it has no limits
}

// TopSession is a session, with what its sandbox uses.
type TopSession struct {
	Session
	Use
	Program string `json:"program,omitempty"` // the name of the process that used the processor most
}

// Disk is a file system.
type Disk struct {
	Path string `json:"path"`
	Free uint64 `json:"free_bytes"`
	Size uint64 `json:"size_bytes"`
}
