package branch

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// basesName is the journal of what the branch showed at paths before it changed them first. The process that changes the branch
// appends to it, and one that commits or discards. The last record of a path counts.
//
// A record is a prefix, a header in JSON and a content. One that a crash has cut off ends the journal.
const basesName = "bases"

// The bounds of the journal. Removals have half of it: the tree that a client removes must not take the room of what it edits.
const (
	maxBase      = 1 << 20 // a content, in bytes
	maxBases     = 10_000
	maxBasesSize = 256 << 20 // bytes
	maxNoted     = 1_000     // records that one commit or discard adds
	maxHeaders   = 32 << 20  // bytes without contents, which CreateBases reads
)

const (
	baseMagic  = "SFB1"
	basePrefix = len(baseMagic) + 4 + sha256.Size // the length of the header, and its hash
	maxHeader  = plan.MaxXattrs * 2
)

// origin is what a path of the branch showed before the branch changed it: a version of an object of Base.
type origin struct {
	ident
	Path    []byte       `json:"p"`           // in the branch. JSON has no strings that are not UTF-8
	Base    []byte       `json:"b,omitempty"` // its path in Base, if that is another one
	Attr    journal.Attr `json:"a"`
	Length  int64        `json:"l"` // of the content; -1: it is not kept
	Sum     []byte       `json:"h,omitempty"`
	Entries []byte       `json:"e,omitempty"` // of an index of git: see scope.SumGitIndex
	Removal bool         `json:"r,omitempty"`
	Gone    [][]byte     `json:"g,omitempty"` // only this: the records of these paths, and below them, do not count any more

	at     int64 // where the content is
	header int64 // bytes before it
}

func openBases(top beneath.Dir) (beneath.File, error) {
	f, err := journal.OpenOrCreate(top, basesName)
	if err == nil {
		var st beneath.Stat
		if st, err = f.Stat(); err == nil && st.Nlink != 1 {
			err = beneath.ErrStale
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", basesName, err)
	}
	return f, err
}

// scanOrigins calls each for the records of a journal from an offset on, up to one that is none or for which each returns false,
// and returns where they end.
func scanOrigins(f beneath.File, size int64, each func(*origin) bool) (end int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var prefix [basePrefix]byte
	for {
		n, err := f.ReadAt(prefix[:], size)
		if err != nil {
			return size, err
		}
		length := binary.LittleEndian.Uint32(prefix[len(baseMagic):])
		if n < basePrefix || string(prefix[:len(baseMagic)]) != baseMagic || length > maxHeader {
			return size, nil
		}
		header := make([]byte, length)
		if n, err = f.ReadAt(header, size+int64(basePrefix)); err != nil {
			return size, err
		}
		sum := sha256.Sum256(header[:n])
		var r origin
		if !bytes.Equal(sum[:], prefix[len(baseMagic)+4:]) || json.Unmarshal(header, &r) != nil || r.Length > maxBase {
			return size, nil
		}
		r.at = size + int64(basePrefix) + int64(length)
		after := r.at + max(r.Length, 0)
		if after > int64(st.Size) {
			return size, nil
		}
		r.header = int64(basePrefix) + int64(length)
		if size = after; !each(&r) {
			return size, nil
		}
	}
}

// of returns the record if it is of a path of Base; else nil.
func (r *origin) of(base string) *origin {
	if r == nil || cmp.Or(string(r.Base), string(r.Path)) != base {
		return nil
	}
	return r
}

// text returns the content of a record; false if it was not kept, or the disk has lost it.
func (r *origin) text(f beneath.File) ([]byte, bool) {
	if r.Length < 0 {
		return nil, false
	}
	text := make([]byte, r.Length)
	n, err := f.ReadAt(text, r.at)
	sum := sha256.Sum256(text)
	return text, err == nil && n == len(text) && bytes.Equal(sum[:], r.Sum)
}

// appendOrigin appends a record with its content.
func appendOrigin(f beneath.File, r *origin, content []byte) error {
	header, err := json.Marshal(r)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(header)
	record := make([]byte, 0, basePrefix+len(header)+len(content))
	record = append(record, baseMagic...)
	record = binary.LittleEndian.AppendUint32(record, uint32(len(header)))
	record = append(append(append(record, sum[:]...), header...), content...)
	n, err := f.WriteAt(record, 0, true)
	if err == nil && n < len(record) {
		err = unix.ENOSPC
	}
	return err
}

// originOf returns a record of the object of root at a path, with its content if it is a text. It reports whether the object
// did not change meanwhile.
func originOf(root *beneath.Root, rel string, st *beneath.Stat) (r *origin, content []byte, steady bool) {
	r = &origin{ident: plan.IdentOf(st), Path: []byte(rel), Length: -1, Attr: journal.Attr{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid}}
	if !st.IsRegular() {
		return r, nil, true
	}
	f, err := root.Open(rel, unix.O_RDONLY, st.ID())
	if err != nil {
		return r, nil, false
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return r, nil, false
	}
	r.ident = plan.IdentOf(&before)
	r.Attr = journal.Attr{Mode: uint32(before.Mode), UID: before.Uid, GID: before.Gid, XAttrs: f.UserXattrs(plan.MaxXattrs)}
	r.Entries = history.IndexSum(root, rel, rel, &before)
	if before.Size > maxBase {
		return r, nil, true
	}
	content = make([]byte, before.Size)
	n, err := f.ReadAt(content, 0)
	after, failed := f.Stat()
	if err != nil || failed != nil || n < len(content) || plan.IdentOf(&after) != r.ident {
		return r, nil, false
	}
	if !mergeable(content) {
		return r, nil, true
	}
	sum := sha256.Sum256(content)
	r.Length, r.Sum = int64(n), sum[:]
	return r, content, true
}

// Bases keeps what a branch shows before clients change it: see hold.Keeper. Its methods may be used from any goroutine.
type Bases struct {
	layers *hold.Layers
	top    beneath.Dir // State
	file   beneath.File
	taken  beneath.File

	mu      sync.Mutex
	end     int64   // what is read of the file: other processes append, too
	records int     // with a path
	removed int     // of removals
	known   origins // nil for each path that has a record
}

var _ hold.Keeper = (*Bases)(nil)

// NewBases returns the Bases of layers, and drops the end of their journal that a crash has torn. Call it while no other process uses
// the branch. A journal that is no more of use is emptied.
func NewBases(layers *hold.Layers) (_ *Bases, err error) {
	b := &Bases{layers: layers, known: origins{}}
	if b.top, err = layers.State.Dir(""); err != nil {
		return nil, err
	}
	if b.file, err = openBases(b.top); err == nil {
		b.taken, err = journal.OpenOrCreate(b.top, takenName)
	}
	if err != nil {
		return nil, err
	}
	st, err := b.file.Stat()
	size, headers := int64(0), int64(0)
	if err == nil && st.Size < 2*maxBasesSize { // no larger one is ours
		size, err = scanOrigins(b.file, 0, func(r *origin) bool {
			headers += r.header
			return headers < maxHeaders
		})
	}
	if headers >= maxHeaders { // a part of it would have records that do not count any more
		size = 0
	}
	if err == nil && size < int64(st.Size) {
		err = b.file.Truncate(size)
	}
	if err == nil {
		err = b.read()
	}
	return b, err
}

// read reads what was appended. The caller holds mu.
func (b *Bases) read() error {
	st, err := b.file.Stat()
	if err != nil {
		return err
	}
	if int64(st.Size) < b.end { // another process has emptied it
		b.end, b.records, b.removed, b.known = 0, 0, 0, origins{}
	}
	b.end, err = scanOrigins(b.file, b.end, func(r *origin) bool {
		if len(r.Gone) > 0 {
			b.known.add(r)
			return true
		}
		b.known[string(r.Path)] = nil
		if b.records++; r.Removal {
			b.removed++
		}
		return true
	})
	return err
}

// Read implements hold.Keeper: it keeps the version of the object of Base, and the content of a text of at most 1 MiB. If the journal is
// full, or the host changes the file meanwhile, [Branch.Commit] cannot merge the file.
func (b *Bases) Read(rel, at string, st *beneath.Stat, removal bool) (note func(at string, st *beneath.Stat)) {
	var r *origin
	var content []byte
	if !st.IsDir() && b.room(removal) {
		var steady bool
		if r, content, steady = originOf(b.layers.Base, at, st); !steady {
			r = nil
		}
	}
	return func(now string, st *beneath.Stat) {
		if forked, err := b.top.Stat(StampName); err != nil || !later(forked.Ctime, st.Ctime) { // else it does not conflict anyhow
			if text, err := json.Marshal(line{plan.IdentOf(st), []byte(rel)}); err == nil {
				_, _ = b.taken.WriteAt(append(text, '\n'), 0, true) // without it the path can be in conflict
			}
		}
		if st.IsDir() {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if r == nil || now != at || plan.IdentOf(st) != r.ident {
			if _, known := b.known[rel]; known { // of a change that has failed: the host may have changed the file since
				b.append(goneOrigin(rel), nil)
			}
			return
		}
		if r.Path, r.Removal = []byte(rel), removal; at != rel {
			r.Base = []byte(at)
		}
		b.append(r, content)
	}
}

// Moved notes that a client is about to move a directory, or to exchange one: records below its paths are of other objects than
// the paths will show.
func (b *Bases) Moved(paths ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.read() // else what is known has to do
	for rel := range b.known {
		if slices.ContainsFunc(paths, func(dir string) bool { return within(rel, dir) }) {
			b.append(goneOrigin(paths...), nil)
			return
		}
	}
}

func goneOrigin(paths ...string) *origin {
	r := &origin{Length: -1}
	for _, rel := range paths {
		r.Gone = append(r.Gone, []byte(rel))
	}
	return r
}

func (b *Bases) room(removal bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	limit, used := 1, b.records
	if removal {
		limit, used = 2, b.removed
	}
	return b.records < maxBases && used < maxBases/limit && b.end < maxBasesSize/int64(limit)
}

// append appends a record. If it fails, the journal is emptied: a torn record would hide later ones, and older ones would count.
// The caller holds mu.
func (b *Bases) append(r *origin, content []byte) {
	if err := appendOrigin(b.file, r, content); err != nil {
		_ = b.file.Truncate(0)
	}
	_ = b.read()
}

// origins are the records of a journal, by path.
type origins map[string]*origin

func (all origins) add(r *origin) bool {
	if len(r.Gone) == 0 {
		all[string(r.Path)] = r
		return true
	}
	gone := map[string]bool{}
	for _, path := range r.Gone {
		gone[string(path)] = true
	}
	for rel := range all {
		for dir := rel; dir != ""; dir = beneath.Parent(dir) {
			if gone[dir] {
				delete(all, rel)
				break
			}
		}
	}
	return true
}

// origins reads the journal. whole reports whether it has no torn end.
func (b *Branch) origins() (all origins, whole bool, err error) {
	all = origins{}
	st, err := b.bases.Stat()
	if err != nil {
		return nil, false, err
	}
	size, err := scanOrigins(b.bases, 0, all.add)
	return all, size >= int64(st.Size), err
}

// noted is a path of the branch that a commit or discard has made equal to a path of Base.
type noted struct{ rel, base string }

// noteOrigins replaces the records of paths: now they show what Base has. Those of gone do not count any more. The journal must
// never have an older record than the branch has a version: if it cannot be written, it is emptied.
func (b *Branch) noteOrigins(now []noted, gone [][]byte) error {
	if len(now)+len(gone) == 0 {
		return nil
	}
	for _, n := range now {
		gone = append(gone, []byte(n.rel))
	}
	err := b.settled()
	if err == nil {
		err = b.appendOrigins(now, gone)
	}
	if err != nil {
		err = b.bases.Truncate(0)
	}
	return err
}

func (b *Branch) appendOrigins(now []noted, gone [][]byte) error {
	for len(gone) > 0 {
		n, size := 0, 0
		for n < len(gone) && size < maxHeader/4 { // in base64, with paths of PATH_MAX
			size += len(gone[n]) + 4
			n++
		}
		if err := appendOrigin(b.bases, &origin{Length: -1, Gone: gone[:n]}, nil); err != nil {
			return err
		}
		gone = gone[n:]
	}
	if st, err := b.bases.Stat(); err != nil || int64(st.Size) > maxBasesSize {
		return err
	}
	for _, n := range now[:min(len(now), maxNoted)] {
		r, content, ok := b.common(n)
		if !ok {
			continue
		}
		if err := appendOrigin(b.bases, r, content); err != nil {
			return err
		}
	}
	return nil
}

// common returns a record of what the branch and Base have at a path. A process may have changed one of them meanwhile.
func (b *Branch) common(n noted) (r *origin, content []byte, ok bool) {
	theirs, err := b.Merged.Stat(n.rel)
	if err != nil || !theirs.IsRegular() {
		return nil, nil, false
	}
	st, err := b.Base.Stat(n.base)
	if err != nil || !st.IsRegular() {
		return nil, nil, false
	}
	_, here, steady := originOf(b.Merged, n.rel, &theirs)
	r, content, ok = originOf(b.Base, n.base, &st)
	r.Path = []byte(n.rel)
	return r, content, ok && steady && r.Length >= 0 && bytes.Equal(here, content)
}

// settled waits until the journal has no torn end: another process may be writing one.
func (b *Branch) settled() error {
	for range 50 {
		_, whole, err := b.origins()
		if err != nil || whole {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("the journal of bases is torn")
}
