package relay

import (
	"encoding/json"
	"time"
)

// Protocol is the number of the messages. A daemon takes over a process of the same number.
const Protocol = 2

// The descriptors of the process.
const (
	controlFD = 3 // the control socket
	heartFD   = 4 // see heart.Heart
)

// MaxTunnels bounds the tunnels of all agents. egress.Bounds bounds those of each.
const MaxTunnels = 1 << 16

// memory bounds the data of the process, in bytes. An idle tunnel takes about 10 KiB.
const memory = 2 << 30

// Bounds of texts.
const (
	MaxMessage = 4 << 10 // bytes
	MaxMeta    = 3 << 10 // bytes of Load.Meta
	MaxOwner   = 512     // bytes of the name of an owner
	maxError   = 300     // bytes of an error's text
)

// An Op is what a message is about.
type Op string

// What messages are about.
const (
	// From the daemon.
	OpOpen     Op = "open"     // a tunnel: ID, Owner, Idle, Sent, Began, Meta, Free, both sockets, and perhaps a pidfd of the owner's sandbox
	OpEnd      Op = "end"      // a tunnel
	OpRecorded Op = "recorded" // the ends of tunnels, by IDs: they leave the list
	OpLimit    Op = "limit"    // Free says whether an owner has no limit
	OpGive     Op = "give"     // bytes to an owner
	OpRefuse   Op = "refuse"   // bytes to an owner: its tunnels that wait for bytes end
	OpHello    Op = "hello"    // from the next daemon, with a new ID; the process answers with the same message, OpOwner, OpItem and OpListed

	// From the process.
	OpFailed Op = "failed" // it cannot be confined
	OpEnded  Op = "ended"  // a tunnel: Sent, Got, Took, Error, Limit
	OpMore   Op = "more"   // an owner wants bytes
	OpGone   Op = "gone"   // the sandbox of an owner
	OpOwner  Op = "owner"  // in the list: an owner whose sandbox runs
	OpItem   Op = "item"   // in the list: a tunnel
	OpListed Op = "listed" // that was all
)

// Message is one packet between the daemon and the process.
type Message struct {
	Op    Op              `json:"op"`
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
	Ended bool            `json:"ended,omitempty"` // an item: as in OpEnded
	Seen  bool            `json:"seen,omitempty"`  // an item: an earlier daemon had its OpEnded
	Took  time.Duration   `json:"took,omitempty"`
	Error string          `json:"error,omitempty"` // "": both sides have ended, or the daemon has ended it
	Limit bool            `json:"limit,omitempty"` // OpRefuse has ended it
}
