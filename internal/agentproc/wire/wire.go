// Package wire has the messages between a daemon and an agent's process: see package agentproc.
package wire

import (
	"github.com/scopefs/scopefs/internal/packets"
	"github.com/scopefs/scopefs/tools/egress"
)

// Protocol is the number of the messages. A daemon takes over a process of the same number.
const Protocol = 3

// The descriptors of the process.
const (
	ControlFD = 3 // the control socket
	HeartFD   = 4 // see heart.Heart
)

// MaxMessage bounds a message, in bytes.
const MaxMessage = packets.Max

// Op says what a message is about.
type Op string

// The messages of a daemon.
const (
	OpOpen   Op = "open"   // Box, Opening, with a pidfd of process 1 of the sandbox and its listening socket: serve it
	OpRoots  Op = "roots"  // Box, Text: a part of PEM certificates that sign hosts', beside the system's, before OpOpen
	OpPort   Op = "port"   // Box, Port, with its listening socket: serve that, too
	OpUnport Op = "unport" // Box, ID: listen at no port any more; answered with OpDone
	OpUpdate Op = "update" // Box, Opening: the rules have changed
	OpStop   Op = "stop"   // Box, Case: it is not allowed any more
	OpClose  Op = "close"  // Box, ID: end it; answered with OpDone, when the ends of its cases are recorded
	OpReply  Op = "reply"  // ID, Reply, perhaps with a connection: the answer to OpRequest
	OpHello  Op = "hello"  // ID, from the next daemon; answered with the same, OpBox and OpItem, OpListed, and the requests that have no reply
)

// The messages of a process.
const (
	OpFailed  Op = "failed"  // it cannot be confined: Text says why
	OpRequest Op = "request" // ID, Box, Request, perhaps with a connection
	OpCancel  Op = "cancel"  // ID: nobody waits for the reply
	OpDone    Op = "done"    // ID
	OpGone    Op = "gone"    // Box: its sandbox has ended
	OpBox     Op = "box"     // in the list: Box
	OpItem    Op = "item"    // in the list: Box, Item
	OpListed  Op = "listed"  // that was all
)

// Message is one packet.
type Message struct {
	Op      Op              `json:"op"`
	ID      uint64          `json:"id,omitempty"`
	Box     string          `json:"box,omitempty"`
	Opening *Opening        `json:"opening,omitempty"`
	Port    *Port           `json:"port,omitempty"`
	Case    uint64          `json:"case,omitempty"`
	Request *egress.Request `json:"request,omitempty"`
	Reply   *egress.Reply   `json:"reply,omitempty"`
	Item    *egress.Item    `json:"item,omitempty"`
	Text    string          `json:"text,omitempty"`
}

// Opening is what a process needs to serve the network of a sandbox.
type Opening struct {
	Connections int                 `json:"connections,omitempty"` // at a time, of this sandbox alone; 0: the bounds of the agent
	Secure      bool                `json:"secure,omitempty"`      // certificates are signed
	Upstream    string              `json:"upstream,omitempty"`    // HOST:PORT of the company's proxy
	Limited     bool                `json:"limited,omitempty"`     // there is a limit of bytes
	Credentials []egress.Credential `json:"credentials,omitempty"`
}

// Port is an egress.Port.
type Port struct {
	Way    egress.Way `json:"way"`
	At     uint16     `json:"at,omitempty"`
	Number uint16     `json:"number"`
}
