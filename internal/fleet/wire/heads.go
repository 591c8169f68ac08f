package wire

import (
	"time"

	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/driver"
)

// The calls of the process about heads of logs: see package heads.
const (
	Signs    = driver.Method[driver.None, Signing]("fleet signs")
	Cosign   = driver.Method[Asked, []byte]("fleet cosign")       // returns an Answer as JSON
	Cosigned = driver.Method[Told, driver.None]("fleet cosigned") // gives the daemon an Answer of another node
)

// The bounds of texts about heads.
const (
	MaxOffer  = 64 << 10 // bytes
	MaxAnswer = 8 << 10  // bytes
	MaxAsked  = 15       // nodes that sign one head
)

// Signing is how a node has its heads signed.
type Signing struct {
	Key   string        // of the node as a witness; "": it takes no part
	Every time.Duration // between two heads
	Ask   int           // other nodes for each head
	Keys  []string      // of other nodes; none: all
}

// Offer is a head that a node wants others to sign.
type Offer struct {
	Key     string        `json:"key"`  // of the log
	Head    string        `json:"head"` // signed by it
	Growths []tree.Growth `json:"growths,omitempty"`
}

// Answer is what a witness says about the log of a node.
type Answer struct {
	Key  string `json:"key"`            // of the witness
	Head string `json:"head,omitempty"` // the last one that it has signed, with its signature
	Why  string `json:"why,omitempty"`  // why it does not sign the one that was offered
}

// Asked is the Offer of a node, as JSON, and what others have answered to it.
type Asked struct {
	Node  string
	Offer []byte
	Seen  [][]byte // MaxAsked at most
}

// Told is the Answer of a witness, as JSON.
type Told struct {
	Witness string // the node
	Answer  []byte
}

// Heads is what a node shows of the heads of its log, and of those that it signs.
type Heads struct {
	Log     string    `json:"log"`     // the key of its log
	Witness string    `json:"witness"` // its key as a witness
	Size    int64     `json:"size"`    // lines below the last head that others have signed
	Signed  []string  `json:"signed"`  // the nodes that have signed that
	Time    time.Time `json:"time,omitzero"`
	Need    int       `json:"need,omitempty"` // how many must sign
	Logs    int       `json:"logs"`           // of other nodes, whose heads it signs
	Wrong   []Wrong   `json:"wrong,omitempty"`
}

// Wrong is what a node found out about the log of a node.
type Wrong struct {
	Node string    `json:"node"`
	What string    `json:"what"`
	Time time.Time `json:"time"`
}
