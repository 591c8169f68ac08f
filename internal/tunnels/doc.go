// Package tunnels is the process that passes the bytes of agents' tunnels, and the daemon's side of it.
//
// The daemon decides about a connection, records it and connects; then it sends both sockets to the process. The process has
// no path, no capability and no network of its own. It outlives a daemon as views do, by the holder: the next daemon receives
// its sockets, and a list of the tunnels. A tunnel that ends without a daemon stays in that list until a daemon has recorded its
// end. The process ends the tunnels of a sandbox with process 1 of it.
//
// What the process says is checked: a daemon kills one that answers nonsense or not at all. The tunnels end with it, and the
// next tunnel starts another one.
package tunnels

import (
	"encoding/json"
	"time"
)

// Name is the argv[0] of the process.
const Name = "scopefs-tunnels"

// protocol is the number of the messages. A daemon takes over a process of the same number.
const protocol = 2

// The descriptors of the process.
const (
	controlFD = 3 // the control socket
	heartFD   = 4 // see heart.Heart
)

// maxTunnels bounds the tunnels of all agents. egress.Bounds bounds those of each.
const maxTunnels = 1 << 16

// memory bounds the data of the process, in bytes. An idle tunnel takes about 10 KiB.
const memory = 2 << 30

const (
	maxMeta  = 3 << 10 // bytes of Load.Meta
	maxOwner = 512     // bytes of the name of an owner
	maxError = 300     // bytes of an error's text
)

// An op is what a message is about.
type op string

const (
	// From the daemon.
	opOpen     op = "open"     // a tunnel: ID, Owner, Idle, Sent, Began, Meta, Free, both sockets, and perhaps a pidfd of the owner's sandbox
	opEnd      op = "end"      // a tunnel
	opRecorded op = "recorded" // the ends of tunnels, by IDs: they leave the list
	opLimit    op = "limit"    // Free says whether an owner has no limit
	opGive     op = "give"     // bytes to an owner
	opRefuse   op = "refuse"   // bytes to an owner: its tunnels that wait for bytes end
	opHello    op = "hello"    // from the next daemon, with a new ID; the process answers with the same message, opOwner, opItem and opListed

	// From the process.
	opFailed op = "failed" // it cannot be confined
	opEnded  op = "ended"  // a tunnel: Sent, Got, Took, Error, Limit
	opMore   op = "more"   // an owner wants bytes
	opGone   op = "gone"   // the sandbox of an owner
	opOwner  op = "owner"  // in the list: an owner whose sandbox runs
	opItem   op = "item"   // in the list: a tunnel
	opListed op = "listed" // that was all
)

// message is one packet between the daemon and the process.
type message struct {
	Op    op              `json:"op"`
	ID    uint64          `json:"id,omitempty"`
	IDs   []uint64        `json:"ids,omitempty"`
	Owner string          `json:"owner,omitempty"`
	Idle  time.Duration   `json:"idle,omitempty"`
	Began time.Time       `json:"began,omitzero"`
	Meta  json.RawMessage `json:"meta,omitempty"`
	Free  bool            `json:"free,omitempty"`
	Bytes int64           `json:"bytes,omitempty"`
	Sent  int64           `json:"sent,omitempty"`
	Got   int64           `json:"got,omitempty"`
	Ended bool            `json:"ended,omitempty"` // an item: as in opEnded
	Seen  bool            `json:"seen,omitempty"`  // an item: an earlier daemon had its opEnded
	Took  time.Duration   `json:"took,omitempty"`
	Error string          `json:"error,omitempty"` // "": both sides have ended, or the daemon has ended it
	Limit bool            `json:"limit,omitempty"` // opRefuse has ended it
}
