// Package wire declares what the daemon of a node and the process that speaks to NATS say to each other about placement, and what
// the server has of a lease.
package wire

import (
	"time"

	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/scope"
)

// Turn gives the daemon the outcome of the last work, and returns the next. It waits until there is some, at most TurnTime.
const Turn = driver.Method[Report, Work]("placement turn")

// TurnTime bounds how long Turn waits.
const TurnTime = 3 * time.Second

// Bucket is the bucket of NATS that has a Value for each agent, by its id.
const Bucket = "scopefs_leases"

// Value is what the server has of the lease of an agent.
type Value struct {
	Node   string `json:"node"`
	Holder string `json:"holder"`           // random, of one daemon's state: two nodes may have one name
	Free   bool   `json:"free,omitempty"`   // it was given back
	Server string `json:"server,omitempty"` // the id of the server that wrote it, or of an earlier one
}

// Work is what the process does at the server.
type Work struct {
	Number uint64
	Ops    []Op
}

// Op reads the value of an agent, or replaces it.
type Op struct {
	Agent    scope.ID
	Write    *Value // nil: read
	Revision uint64 // with Write: that the server must have; 0: none
}

// Report is the outcome of work. An op that failed is not in it.
type Report struct {
	Number  uint64 // of the work; 0: none was done
	Server  string // its id after the work. A server that starts has another one
	Records []Record
}

// Record is what the server has of an agent.
type Record struct {
	Agent    scope.ID
	Revision uint64 // 0: it has no value
	Value    Value
	Wrote    bool // the op has written it
}
