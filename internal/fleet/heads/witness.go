package heads

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/witness"
)

// The outcomes of events about the log of another node. Forked is proven by what the log has signed, and stays: with the node's
// file removed, the server's copy of what this witness has signed shows it again. The others end with the next head that grows.
const (
	Forked     = "fleet log forked"
	RolledBack = "fleet log rolled back"
	Unproven   = "fleet log unproven"
)

const (
	maxLogs    = 4096
	leastPause = 500 * time.Millisecond // between two signatures for one log
	maxLacking = 3                      // offers without a proof, until that is Unproven
	keyName    = "key"
	publicName = "key.pub"
	logsDir    = "logs"
	namePrefix = "scopefs.witness/"
)

// Witness signs heads of other nodes' logs. Its methods are called one after the other.
type Witness struct {
	node   string
	keys   []string // that count; none: the first of each node
	dir    *os.Root // a file for each node
	at     string
	signer *witness.Signer
	own    note.Verifier
	logs   map[string]*log // by node
	whose  map[string]string
}

// Result is what came of an offer.
type Result struct {
	Answer  wire.Answer
	Pinned  string      // the key of the log, which counts from now on; "": it did before
	Refused string      // why nobody signs it, for a record
	Found   *wire.Wrong // that is new
	Kind    string      // of Found
}

// OpenWitness opens the witness of a node, in {state}. It makes its key at the first start.
func OpenWitness(state, node string, keys []string) (*Witness, error) {
	at := filepath.Join(state, "fleet", "witness")
	if err := os.MkdirAll(filepath.Join(at, logsDir), 0o700); err != nil {
		return nil, err
	}
	top, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	w := &Witness{node: node, keys: keys, at: filepath.Join(at, logsDir), logs: map[string]*log{}, whose: map[string]string{}}
	if w.signer, err = signerOf(top, node); err != nil {
		return nil, fmt.Errorf("%s: %w: restore it; without it a new key is made, which other nodes refuse", filepath.Join(at, keyName), err)
	}
	w.own = w.signer.Verifier()
	if w.dir, err = top.OpenRoot(logsDir); err != nil {
		return nil, err
	}
	if err := w.load(); err != nil {
		w.dir.Close()
		return nil, err
	}
	return w, nil
}

// signerOf reads the key of a witness, or makes it.
func signerOf(dir *os.Root, node string) (*witness.Signer, error) {
	text, err := dir.ReadFile(keyName)
	if errors.Is(err, fs.ErrNotExist) {
		var private string
		if private, err = witness.NewKey(namePrefix + node + "/" + randomID()); err != nil {
			return nil, err
		}
		text, err = []byte(private+"\n"), durable.Replace(dir, keyName, []byte(private+"\n"))
	}
	if err != nil {
		return nil, err
	}
	signer, err := witness.NewSigner(string(text))
	if err != nil {
		return nil, err
	}
	if old, err := dir.ReadFile(publicName); err == nil && string(old) == signer.Public()+"\n" {
		return signer, nil
	}
	return signer, durable.Replace(dir, publicName, []byte(signer.Public()+"\n"))
}

func (w *Witness) load() error {
	all, err := fs.ReadDir(w.dir.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range all {
		node := entry.Name()
		if !isNode(node) {
			continue // of a process that was killed
		}
		l, err := readLog(w.dir, node)
		if err != nil {
			return fmt.Errorf("%s: %w: restore it, or remove it: this node may sign another history of that log then", filepath.Join(w.at, node), err)
		}
		w.logs[node], w.whose[l.Key] = l, node
	}
	return nil
}

func isNode(name string) bool { return fields.IsPlainName(name, 64) && !strings.Contains(name, ".") }

// Close frees the witness's files.
func (w *Witness) Close() { w.dir.Close() }

// Public returns the public key.
func (w *Witness) Public() string { return w.signer.Public() }

// Logs counts the logs whose heads it signs, and says what speaks against some, at most max.
func (w *Witness) Logs(max int) (n int, all []wire.Wrong) {
	for node, l := range w.logs {
		if l.Head != "" {
			n++
		}
		if l.Wrong != nil {
			all = append(all, wire.Wrong{Node: node, What: l.Wrong.What, Time: l.Wrong.Time})
		}
	}
	slices.SortFunc(all, func(a, b wire.Wrong) int { return strings.Compare(a.Node, b.Node) })
	return n, all[:min(len(all), max)]
}

// Cosign signs the head that a node offers, or says why not. seen are answers of witnesses to the node, as the server has them.
func (w *Witness) Cosign(node string, offer []byte, seen [][]byte, now time.Time) Result {
	one := round{Witness: w, now: now}
	err := one.open(node, offer)
	if err == nil {
		err = one.compare(seen)
	}
	if err == nil {
		err = one.sign()
	}
	r := Result{Answer: wire.Answer{Key: w.signer.Public()}, Pinned: one.pinned, Found: one.found, Kind: one.kind}
	if err != nil {
		r.Answer.Why = err.Error()
		if _, quiet := errors.AsType[quietError](err); !quiet && r.Found == nil {
			r.Refused = r.Answer.Why
		}
	}
	if l := w.logs[node]; l != nil {
		r.Answer.Head = l.Head
	}
	return r
}

// quietError is a refusal that needs no record: it is usual, or was recorded.
type quietError string

func (e quietError) Error() string { return string(e) }

// round is one call of Cosign.
type round struct {
	*Witness
	now    time.Time
	offer  wire.Offer
	log    *log
	head   tree.Head // of the offer
	others []tree.Head
	texts  []string // of others
	pinned string
	found  *wire.Wrong
	kind   string
}

// open reads the offer, and finds the log that it is of.
func (r *round) open(node string, offer []byte) (err error) {
	if !isNode(node) || node == r.node {
		return fmt.Errorf("%.64q is no name of another node", node)
	}
	if len(offer) > wire.MaxOffer {
		return fmt.Errorf("it is larger than %d bytes", wire.MaxOffer)
	}
	if err := peer.Decode(offer, &r.offer); err != nil || len(r.offer.Head) > maxHead || len(r.offer.Growths) > 2*wire.MaxAsked {
		return errors.New("it is no head that this version reads")
	}
	r.log = r.logs[node]
	switch {
	case r.log != nil && r.log.Key != r.offer.Key:
		return fmt.Errorf("its log has another key than %s, which counts for the node: if you know why, stop the daemon and remove %s",
			r.log.key.Name(), filepath.Join(r.at, node))
	case len(r.keys) > 0 && !slices.Contains(r.keys, r.offer.Key):
		return errors.New("the key of its log is not among keys of fleet in scopefs.yaml")
	case r.log == nil:
		if len(r.logs) >= maxLogs {
			return fmt.Errorf("this node signs for %d logs: more are not taken", maxLogs)
		}
		if other := r.whose[r.offer.Key]; other != "" {
			return fmt.Errorf("its log is that of the node %s: give each its own {state}", other)
		}
		r.log = &log{Node: node, Key: r.offer.Key}
		if r.log.key, err = parseKey(r.offer.Key); err != nil {
			return err
		}
	}
	if r.head, err = tree.OpenHead([]byte(r.offer.Head), r.log.key); err != nil {
		return fmt.Errorf("its head is not signed by the log's key %s", r.log.key.Name())
	}
	if r.head.Size == 0 {
		return quietError("the log has no line")
	}
	if wrong := r.log.Wrong; wrong != nil && wrong.Kind == Forked {
		return quietError(wrong.What)
	}
	return nil
}

// compare compares the head with what this witness and others have signed. A head that this witness has signed, and does not
// know any more, counts as if it did: its files may have been restored from a copy.
func (r *round) compare(seen [][]byte) error {
	if len(seen) > wire.MaxAsked+1 {
		seen = seen[:wire.MaxAsked+1]
	}
	for _, text := range seen {
		var a wire.Answer
		if len(text) > wire.MaxAnswer || json.Unmarshal(text, &a) != nil || len(a.Head) > maxHead {
			continue
		}
		_, err := note.Open([]byte(a.Head), note.VerifierList(r.own))
		mine := err == nil
		h, err := tree.OpenHead([]byte(a.Head), r.log.key)
		if mine && err != nil {
			return fmt.Errorf("this node has signed heads of another log of the node %s", r.log.Node)
		}
		if err != nil {
			continue // of a log with another key, or made up
		}
		if root, ok := r.log.root(h.Size); ok && root != h.Root {
			return r.forked(h.Size, r.log.Head, a.Head)
		}
		if h.Size == r.head.Size && h != r.head {
			return r.forked(h.Size, a.Head)
		}
		if mine && h.Size > r.log.last.Size {
			r.log = r.log.follow(a.Head, h)
			if err := r.keep(); err != nil {
				return err
			}
		}
		r.others, r.texts = append(r.others, h), append(r.texts, a.Head)
	}
	return nil
}

// sign signs the head if it grows from all that is known.
func (r *round) sign() error {
	l, h := r.log, r.head
	root, ok := l.root(h.Size)
	switch {
	case ok && root != h.Root, ok && h.Size == l.last.Size && h.Counts != l.last.Counts:
		return r.forked(h.Size, l.Head)
	case h.Size < l.last.Size:
		return r.shrunk()
	case h.Size == l.last.Size: // it is signed
		l.smaller, l.lacking = tree.Head{}, 0
		return nil
	}
	if l.Head != "" {
		if err := r.grows(l.last, l.Head, "this node"); err != nil {
			return err
		}
	}
	for i, o := range r.others {
		if o.Size < h.Size {
			if err := r.grows(o, r.texts[i], "another node"); err != nil {
				return err
			}
		}
	}
	if r.now.Sub(l.signed) < leastPause {
		return quietError("it comes too soon after the last one")
	}
	n, err := note.Open([]byte(r.offer.Head), note.VerifierList(l.key))
	if err != nil {
		return err
	}
	signed, err := note.Sign(&note.Note{Text: n.Text, Sigs: n.Sigs}, r.signer)
	if err != nil {
		return err
	}
	r.log = l.follow(string(signed), h)
	r.log.signed = r.now
	return r.keep()
}

// grows returns an error unless the head grows from another one of the log, which a witness has signed.
func (r *round) grows(from tree.Head, text, who string) error {
	i := slices.IndexFunc(r.offer.Growths, func(g tree.Growth) bool { return g.From == from.Size })
	if i < 0 || r.offer.Growths[i].Check(r.head) != nil {
		what := fmt.Sprintf("it does not show how its head of %d lines grows from that of %d lines, which %s has signed", r.head.Size, from.Size, who)
		if r.log.lacking++; r.log.lacking < maxLacking || r.log.Head == "" {
			return quietError(what)
		}
		return r.against(Unproven, what, text)
	}
	if r.offer.Growths[i].Root != from.Root {
		return r.forked(from.Size, text)
	}
	return nil
}

// shrunk refuses a head that is smaller than the last one. One may be late on the way: two of them are a log that grows from
// less than it was.
func (r *round) shrunk() error {
	l := r.log
	what := fmt.Sprintf("its head has %d lines, after one of %d lines that this node has signed: its log was rolled back, or the server repeats old heads",
		r.head.Size, l.last.Size)
	if l.smaller.Size == 0 || l.smaller == r.head {
		l.smaller = r.head
		return quietError(what)
	}
	l.smaller = r.head
	return r.against(RolledBack, what, l.Head)
}

// forked is the error of a log that has signed two histories. heads are evidence beside the offered one.
func (r *round) forked(size int64, heads ...string) error {
	return r.against(Forked, fmt.Sprintf("its log %s has two histories: two heads of %d lines differ", r.log.key.Name(), size), heads...)
}

// against notes what speaks against the log, unless that is known.
func (r *round) against(kind, what string, heads ...string) error {
	l := r.log
	if l.Wrong != nil && (l.Wrong.Kind == kind || l.Wrong.Kind == Forked) {
		return quietError(l.Wrong.What)
	}
	next := *l
	next.Wrong = &wrong{Kind: kind, What: what, Time: r.now.UTC(), Heads: append(heads, r.offer.Head)}
	r.log = &next
	err := r.keep()
	r.found, r.kind = &wire.Wrong{Node: l.Node, What: what, Time: next.Wrong.Time}, kind
	return errors.Join(errors.New(what), err)
}

// keep has the log on the disk before anybody learns of it.
func (r *round) keep() error {
	if err := r.log.write(r.dir); err != nil {
		return fmt.Errorf("keep what was signed: %w", err)
	}
	if r.logs[r.log.Node] == nil {
		r.pinned = r.log.Key
		r.whose[r.log.Key] = r.log.Node
	}
	r.logs[r.log.Node] = r.log
	return nil
}
