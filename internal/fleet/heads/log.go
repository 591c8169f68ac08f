// Package heads signs the heads of other nodes' logs, and keeps what other nodes have signed of the own one. A head is signed if
// it grows from the one that was signed before. What it grows from is on the disk before the signature is made.
package heads

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
)

// The bounds of what a witness keeps of a log.
const (
	maxHead   = 4 << 10  // bytes of a head
	maxRecord = 64 << 10 // bytes of a file
	maxKnown  = 32       // heads before the last one
)

// log is what a witness has signed of the log of a node. The node's file has its exported fields.
type log struct {
	Node  string  `json:"node"`
	Key   string  `json:"key"`            // of the log
	Head  string  `json:"head,omitempty"` // the last one that was signed, with the signature; "": none
	Known []known `json:"known,omitempty"`
	Wrong *wrong  `json:"wrong,omitempty"`

	key     note.Verifier
	last    tree.Head // of Head
	signed  time.Time // in this process
	smaller tree.Head // that was shown after last
	lacking int       // offers without a proof of their growth, in a row
}

// known is a head that was signed, or that another witness has.
type known struct {
	Size int64     `json:"size"`
	Root tlog.Hash `json:"root"`
}

// wrong is what speaks against a log.
type wrong struct {
	Kind  string    `json:"kind"` // an outcome
	What  string    `json:"what"`
	Time  time.Time `json:"time"`
	Heads []string  `json:"heads"` // the evidence, signed by the log
}

// parseKey reads the public key of a log.
func parseKey(text string) (note.Verifier, error) {
	key, err := note.NewVerifier(text)
	if err != nil || len(text) > 256 || !strings.HasPrefix(key.Name(), tree.OriginPrefix) {
		return nil, fmt.Errorf("%.100q is no key of a log", text)
	}
	return key, nil
}

// readLog reads the file of a node's log.
func readLog(dir *os.Root, node string) (*log, error) {
	f, err := dir.Open(node)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := bounded.Read(f, maxRecord)
	l := &log{}
	if err == nil {
		err = json.Unmarshal(text, l)
	}
	if err == nil && l.Node != node {
		err = fmt.Errorf("it is of the node %.64q", l.Node)
	}
	if err == nil {
		l.key, err = parseKey(l.Key)
	}
	if err == nil && l.Head != "" {
		l.last, err = tree.OpenHead([]byte(l.Head), l.key)
	}
	return l, err
}

// write writes the file of a log.
func (l *log) write(dir *os.Root) error {
	text, err := json.Marshal(l)
	if err == nil && len(text) > maxRecord {
		err = errors.New("it is too large")
	}
	if err == nil {
		err = durable.Replace(dir, l.Node, text)
	}
	return err
}

// follow returns the log with another last head.
func (l *log) follow(signed string, h tree.Head) *log {
	next := *l
	next.Known = append([]known(nil), l.Known...)
	if l.Head != "" {
		next.Known = append(next.Known, known{l.last.Size, l.last.Root})
	}
	next.Known = next.Known[max(0, len(next.Known)-maxKnown):]
	next.Head, next.last, next.smaller, next.lacking = signed, h, tree.Head{}, 0
	if next.Wrong != nil && next.Wrong.Kind != Forked {
		next.Wrong = nil
	}
	return &next
}

// root returns the root of the tree of a size, as far as the witness knows it.
func (l *log) root(size int64) (root tlog.Hash, ok bool) {
	if l.Head != "" && l.last.Size == size {
		return l.last.Root, true
	}
	for _, k := range l.Known {
		if k.Size == size {
			return k.Root, true
		}
	}
	return root, false
}
