package heads

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
)

// Name is that of the file in {state}/heads with the last head that other nodes have signed. No anchor has it.
const Name = "fleet"

const (
	maxWitnesses  = 256 // whose keys a node keeps
	maxCollected  = 4   // heads for which signatures are collected
	witnessesName = "witnesses"
	maxKeys       = 256 << 10 // bytes of a file
	publicLogKey  = "key.pub" // of the log, in its directory
)

func randomID() string {
	var id [8]byte
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// Own has the signatures of other nodes for heads of this node's log. Its methods are called one after the other.
type Own struct {
	node, state, audit string
	keys               []string // of witnesses and logs that count; none: the first of each node
	need               int      // signatures; at least 1
	dir                *os.Root
	pins               map[string]string // keys of witnesses by node
	key                note.Verifier     // of the log; nil: there was none yet
	keyText            string
	heads              []*collected // by size
	kept               *collected   // in {state}/heads; nil: none
	time               time.Time    // of the last signature
	ahead              int64        // lines of a head that a witness has, if the log has fewer
	aheadSeen          int          // how often
}

// collected is a head with signatures.
type collected struct {
	tree.Head
	note note.Note                 // with the log's signature alone
	by   map[string]note.Signature // by node
}

// Given is what came of an answer.
type Given struct {
	Pinned  string // the key of the witness, which counts from now on; "": it did before
	Refused string // why it does not count, for a record
	Why     string // why the witness does not sign
	Found   string // that speaks against the own log
}

// OpenOwn opens what {state} has of the heads of a node's log, whose directory is log.
func OpenOwn(dir, log, node string, keys []string, need int) (*Own, error) {
	at := filepath.Join(dir, "fleet", "witness")
	if err := os.MkdirAll(at, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	o := &Own{node: node, state: dir, audit: log, keys: keys, need: max(need, 1), dir: root}
	if o.pins, err = Pins(dir); err != nil {
		root.Close()
		return nil, fmt.Errorf("%w: restore it, or remove it: the first key of each node counts then", err)
	}
	o.resume()
	return o, nil
}

// Pins returns the keys of witnesses that count, by node.
func Pins(state string) (map[string]string, error) {
	name, pins := filepath.Join(state, "fleet", "witness", witnessesName), map[string]string{}
	text, err := bounded.File(name, maxKeys)
	if errors.Is(err, fs.ErrNotExist) {
		return pins, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &pins)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return pins, nil
}

// resume reads the last head that others have signed. One that cannot be read is replaced by the next.
func (o *Own) resume() {
	text, err := bounded.File(filepath.Join(o.state, state.Heads, Name), maxKeys)
	if err != nil || o.logKey() != nil {
		return
	}
	for node := range o.pins {
		if h, sig, err := o.signed(string(text), node); err == nil {
			o.add(h, string(text), node, sig)
		}
	}
	if len(o.heads) > 0 {
		o.kept = o.heads[0]
	}
}

// Close frees the files.
func (o *Own) Close() { o.dir.Close() }

// logKey reads the log's key, which is there with its first head.
func (o *Own) logKey() error {
	if o.key != nil {
		return nil
	}
	text, err := bounded.File(filepath.Join(o.audit, publicLogKey), maxHead)
	if err == nil {
		o.keyText = strings.TrimSpace(string(text))
		o.key, err = parseKey(o.keyText)
	}
	return err
}

// signed returns the head of a note, and the signature of a node whose key is known.
func (o *Own) signed(text, node string) (h tree.Head, sig note.Signature, err error) {
	key, err := witness.NewVerifier(o.pins[node])
	if err != nil {
		return h, sig, err
	}
	if h, err = tree.OpenHead([]byte(text), o.key); err != nil {
		return h, sig, errors.New("what it has signed is no head of this log")
	}
	n, err := note.Open([]byte(text), note.VerifierList(key))
	if err != nil {
		return h, sig, errors.New("its signature is wrong")
	}
	return h, n.Sigs[0], nil
}

// Take takes the answer of a node that was asked to sign.
func (o *Own) Take(node string, text []byte) (g Given) {
	var a wire.Answer
	if len(text) > wire.MaxAnswer || json.Unmarshal(text, &a) != nil || len(a.Head) > maxHead {
		g.Refused = "it is no answer that this version reads"
		return g
	}
	if !isNode(node) || node == o.node {
		return g
	}
	err := o.logKey()
	if err == nil {
		g.Pinned, err = o.pin(node, a.Key)
	}
	if err != nil {
		g.Refused = err.Error()
		return g
	}
	if g.Why = a.Why; a.Head == "" {
		return g
	}
	h, sig, err := o.signed(a.Head, node)
	if err != nil {
		g.Refused = err.Error()
		return g
	}
	if i := slices.IndexFunc(o.heads, func(c *collected) bool { return c.Size == h.Size && c.Head != h }); i >= 0 {
		g.Found = fmt.Sprintf("this log has signed two heads of %d lines, which other nodes have: it was written anew", h.Size)
		return g
	}
	if g.Found = o.behind(h); g.Found == "" && o.add(h, a.Head, node, sig) {
		if err := o.keep(); err != nil {
			g.Refused = "keep its signature: " + err.Error()
		}
	}
	return g
}

// pin returns an error unless a key of a witness counts for a node. The first one that a node has counts, if none are listed.
func (o *Own) pin(node, key string) (pinned string, err error) {
	switch old := o.pins[node]; {
	case len(o.keys) > 0 && !slices.Contains(o.keys, key):
		return "", errors.New("its key is not among keys of fleet in scopefs.yaml")
	case old == key:
		return "", nil
	case old != "" && len(o.keys) == 0:
		return "", fmt.Errorf("it has another key than %.100s, which counts: if you know why, stop the daemon and remove the key from %s",
			old, filepath.Join(o.state, "fleet", "witness", witnessesName))
	case old == "" && len(o.pins) >= maxWitnesses:
		return "", fmt.Errorf("the keys of %d nodes count: more are not taken", maxWitnesses)
	}
	verifier, err := witness.NewVerifier(key)
	if err != nil || !strings.HasPrefix(verifier.Name(), namePrefix) || len(key) > 256 {
		return "", errors.New("it has no key of a witness")
	}
	next := maps.Clone(o.pins)
	next[node] = key
	all, err := json.Marshal(next)
	if err == nil {
		err = durable.Replace(o.dir, witnessesName, all)
	}
	if err != nil {
		return "", err
	}
	o.pins = next
	return key, nil
}

// behind says that a witness has signed a head of more lines than the log has: it was rolled back. The file of the head may be
// old for a moment after the kernel has stopped, so it must be so twice.
func (o *Own) behind(h tree.Head) string {
	_, size, err := audit.Head(o.audit)
	if err != nil || size >= h.Size {
		if h.Size >= o.ahead {
			o.ahead, o.aheadSeen = 0, 0
		}
		return ""
	}
	o.ahead = max(o.ahead, h.Size)
	if o.aheadSeen++; o.aheadSeen != 2 {
		return ""
	}
	return fmt.Sprintf("this log has %d lines, and it has signed a head of %d lines that other nodes have: it was rolled back", size, h.Size)
}

// add adds a signature, and reports whether it is new.
func (o *Own) add(h tree.Head, text, node string, sig note.Signature) bool {
	i, found := slices.BinarySearchFunc(o.heads, h.Size, func(c *collected, size int64) int { return int(c.Size - size) })
	if !found {
		n, err := note.Open([]byte(text), note.VerifierList(o.key))
		if err != nil || o.kept != nil && h.Size < o.kept.Size {
			return false
		}
		o.heads = slices.Insert(o.heads, i, &collected{Head: h, note: note.Note{Text: n.Text, Sigs: n.Sigs}, by: map[string]note.Signature{}})
	}
	c := o.heads[i]
	if _, there := c.by[node]; there {
		return false
	}
	c.by[node] = sig
	if at := witness.Time(sig); at.After(o.time) {
		o.time = at
	}
	o.heads = o.heads[max(0, len(o.heads)-maxCollected):]
	return true
}

// keep writes the newest head that enough nodes have signed, or more than have signed the one that was written.
func (o *Own) keep() error {
	for _, c := range slices.Backward(o.heads) {
		if len(c.by) < o.need && o.kept != nil && c != o.kept && len(c.by) < len(o.kept.by) {
			continue
		}
		n := c.note
		for _, node := range slices.Sorted(maps.Keys(c.by)) {
			n.Sigs = append(n.Sigs[:len(n.Sigs):len(n.Sigs)], c.by[node])
		}
		text, err := note.Sign(&n)
		if err != nil {
			return err
		}
		if err := state.SaveHead(o.state, Name, text); err != nil {
			return err
		}
		o.kept = c
		o.heads = slices.DeleteFunc(o.heads, func(other *collected) bool { return other.Size < c.Size })
		return nil
	}
	return nil
}

// Show sets what the node shows of its own heads.
func (o *Own) Show(h *wire.Heads) {
	if h.Signed, h.Need = []string{}, o.need; o.logKey() == nil {
		h.Log = o.keyText
	}
	if o.kept != nil {
		h.Size, h.Signed, h.Time = o.kept.Size, slices.Sorted(maps.Keys(o.kept.by)), o.time
	}
}

// Behind returns the size of the newest head that enough nodes have signed, and how many lines of the log are not below it.
func (o *Own) Behind() (lines, size int64, err error) {
	_, lines, err = audit.Head(o.audit)
	if o.kept != nil && len(o.kept.by) >= o.need {
		size = o.kept.Size
	}
	return lines - size, size, err
}
