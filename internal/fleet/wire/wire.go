// Package wire declares what the daemon of a node, the commands of an operator and the process that speaks to NATS say to each
// other about a fleet, and what nodes publish.
package wire

import (
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/tools/approvals"
)

// Look returns the node's state when it differs from the one of a version, or after LookTime the version alone.
const Look = driver.Method[Seen, State]("fleet look")

// Decide has the daemon decide by a signed order: see package order. Only a daemon that ends returns an error.
const Decide = driver.Method[[]byte, Outcome]("fleet decide")

// Define gives the daemon signed definitions: see package order. At most MaxDefined at once. Only a daemon that ends returns an
// error.
const Define = driver.Method[[][]byte, driver.None]("fleet define")

// MaxDefined bounds the definitions of one call.
const MaxDefined = 16

// LookTime bounds how long Look waits.
const LookTime = 10 * time.Second

// Seen names a state.
type Seen struct{ Version string }

// State is what a node shows of itself. A request is in it whole, without its preview, or Cut.
type State struct {
	Version string // differs when Node or Waits differ
	Node    Node
	Waits   []approvals.Waiting
}

// Node is a node as ps shows it. Of agents that do not fit More counts.
type Node struct {
	Name    string      `json:"node"`
	Version string      `json:"version"` // of scopefs
	Log     string      `json:"log"`     // the id of its log
	Agents  []api.Agent `json:"agents"`
	More    int         `json:"more,omitempty"`
	Waits   int         `json:"waits"` // requests

	Definitions []Held `json:"definitions,omitempty"` // from the fleet
}

// Held is the last version of an agent's definition that a node took.
type Held struct {
	Name    string `json:"name"`
	Version int64  `json:"version"`
	By      string `json:"by,omitempty"`    // the name of the key; "": the node does not trust it any more
	Holds   bool   `json:"holds"`           // unless the node itself defines an agent of the name
	Error   string `json:"error,omitempty"` // why a later version does not hold
}

// Outcome is what a node did with an order.
type Outcome struct {
	Nonce   string `json:"nonce,omitempty"` // of an order that a trusted key has signed
	Done    bool   `json:"done"`
	Text    string `json:"text"`
	By      string `json:"by,omitempty"` // the name of the key
	Request string `json:"request,omitempty"`
}

// Operate is the first call of an operator's command. Its result says what confines the process.
const Operate = driver.Method[config.Stream, []string]("fleet operate")

// The calls of a command.
const (
	Prepare = driver.Method[Server, driver.None]("fleet prepare") // makes or changes the streams and buckets
	Nodes   = driver.Method[After, NodePage]("fleet nodes")
	Waits   = driver.Method[After, WaitPage]("fleet waits")
	Events  = driver.Method[Query, EventPage]("fleet events")
	Send    = driver.Method[Order, Outcome]("fleet send") // waits up to SendTime for the node; without an answer Text is ""
	Defined = driver.Method[After, DefinedPage]("fleet defined")
	Put     = driver.Method[SeenDefinition, driver.None]("fleet put") // in place of the version that the server had; see Serial
)

// SendTime bounds how long Send waits.
const SendTime = 15 * time.Second

// Server says how the server keeps what nodes publish.
type Server struct {
	Replicas int           // of each stream
	Keep     time.Duration // events
	MaxBytes int64         // of events; -1: no limit
}

// After begins a page behind a key; "" reads anew.
type After struct{ Key string }

// SeenNode is a node, as of the server.
type SeenNode struct {
	Node
	Heard time.Time `json:"heard"` // when it was last heard
}

// NodePage is a part of all nodes, by name.
type NodePage struct {
	Nodes []SeenNode
	More  string // the key of the next page; "": it is the last one
}

// SeenWait is a request that waits on a node, as of the server.
type SeenWait struct {
	Node string `json:"node"`
	approvals.Waiting
}

// WaitPage is a part of all requests.
type WaitPage struct {
	Waits []SeenWait
	More  string
}

// Query selects events.
type Query struct {
	Node, Agent string // "": all
	After       uint64 // the server's number of the last event that was read; 0: none
	Since       time.Time
	Wait        time.Duration // for a first event; 0: none
}

// EventPage is a part of the events, in the server's order. Those of one node are in the order of its log.
type EventPage struct {
	Events []SeenEvent
	After  uint64 // for the next page
	End    bool   // there were no more
}

// SeenEvent is an event as a node recorded it.
type SeenEvent struct {
	Node string
	Log  string // the id of its log, as its message says
	Line []byte // of the log
}

// Order is a signed order for a node.
type Order struct {
	Node, Nonce string
	Signed      []byte
}

// SeenDefinition is a definition as the server has it.
type SeenDefinition struct {
	Name   string
	Serial uint64 // the server's number of what it has under the name; 0: nothing
	Signed []byte
}

// DefinedPage is a part of all definitions, by name.
type DefinedPage struct {
	Definitions []SeenDefinition
	More        string
}
