package branch

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
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
	Path    []byte       `json:"p"` // in the branch. JSON has no strings that are not UTF-8
	Attr    journal.Attr `json:"a"`
	Length  int64        `json:"l"` // of the content; -1: it is not kept
	Sum     []byte       `json:"h,omitempty"`
	Removal bool         `json:"r,omitempty"`
	Gone    [][]byte     `json:"g,omitempty"` // only this: the records of these paths, and below them, do not count any more

	at     int64 // where the content is
	header int64 // bytes before it
}

// originIdent is identOf with the birth time that statx(2) reports, which beneath leaves out on an overlay.
func originIdent(st *beneath.Stat) ident {
	i := identOf(st)
	if st.Mask&unix.STATX_BTIME != 0 {
		i.Birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return i
}

// CreateBases opens the journal in State for Bases, or makes it for the user, and drops the end that a crash has torn. Call it
// while no process uses the branch. State may be another user's.
func CreateBases(state *beneath.Root, uid, gid int) (beneath.File, error) {
	top, err := state.Dir("")
	if err != nil {
		return beneath.File{}, err
	}
	defer top.Close()
	f, err := top.Create(basesName, unix.O_RDWR, 0o600)
	switch err {
	case nil:
		err = f.Chown(uid, gid)
	case unix.EEXIST:
		f, err = openBases(state, top)
	}
	if err != nil {
		return beneath.File{}, err
	}
	st, err := f.Stat()
	if err == nil && (!st.IsRegular() || st.Nlink != 1 || int(st.Uid) != uid) {
		err = beneath.ErrStale
	}
	size, headers := int64(0), int64(0)
	if err == nil && st.Size < 2*maxBasesSize { // no larger one is ours
		size, err = scanOrigins(f, 0, func(r *origin) bool {
			headers += r.header
			return headers < maxHeaders
		})
	}
	if headers >= maxHeaders { // a part of it would have records that do not count any more
		size = 0
	}
	if err == nil && size < int64(st.Size) {
		err = f.Truncate(size)
	}
	if err != nil {
		f.Close()
	}
	return f, err
}

func openBases(state *beneath.Root, top beneath.Dir) (beneath.File, error) {
	st, err := top.Stat(basesName)
	if err != nil {
		return beneath.File{}, err
	}
	return state.Open(basesName, unix.O_RDWR, st.ID())
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
	r = &origin{ident: originIdent(st), Path: []byte(rel), Length: -1, Attr: journal.Attr{Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid}}
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
	r.ident = originIdent(&before)
	r.Attr = journal.Attr{Mode: uint32(before.Mode), UID: before.Uid, GID: before.Gid, XAttrs: f.UserXattrs(plan.MaxXattrs)}
	if before.Size > maxBase {
		return r, nil, true
	}
	content = make([]byte, before.Size)
	n, err := f.ReadAt(content, 0)
	after, failed := f.Stat()
	if err != nil || failed != nil || n < len(content) || originIdent(&after) != r.ident {
		return r, nil, false
	}
	if !mergeable(content) {
		return r, nil, true
	}
	sum := sha256.Sum256(content)
	r.Length, r.Sum = int64(n), sum[:]
	return r, content, true
}

// Bases keeps what a branch shows before the branch changes it. Its methods may be used from any goroutine.
type Bases struct {
	merged, upper *beneath.Root
	file          beneath.File

	mu      sync.Mutex
	end     int64   // what is read of the file: other processes append, too
	records int     // with a path
	removed int     // of removals
	known   origins // nil for each path that has a record
}

// NewBases returns the Bases of an overlay and its upper layer. The file is of CreateBases, and stays the caller's.
func NewBases(merged, upper *beneath.Root, file beneath.File) (*Bases, error) {
	b := &Bases{merged: merged, upper: upper, file: file, known: origins{}}
	return b, b.read()
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

// Keep notes the object at a path, which had the attributes st, before a client changes or replaces it, or with removal
// removes it: its version, and the content of a text of at most 1 MiB. It does nothing if the branch has changed the object
// already. If the journal is full, [Branch.Commit] cannot merge the file.
func (b *Bases) Keep(rel string, st *beneath.Stat, removal bool) {
	if st.IsDir() || b.changed(rel) {
		return
	}
	if b.room(removal) {
		r, content, steady := originOf(b.merged, rel, st)
		if b.changed(rel) {
			return // by another client, whose Keep has a record
		}
		if r.Removal = removal; steady {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.append(r, content)
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.known[rel]; known { // of a change that has failed: the host may have changed the file since
		b.append(goneOrigin(rel), nil)
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

// changed reports whether the upper layer has a path.
func (b *Bases) changed(rel string) bool {
	_, err := b.upper.Stat(rel)
	return !errors.Is(err, beneath.ErrStale)
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
		for dir := rel; dir != ""; dir = parentOf(dir) {
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
	if b.bases == nil {
		return all, true, nil
	}
	st, err := b.bases.Stat()
	if err != nil {
		return nil, false, err
	}
	size, err := scanOrigins(*b.bases, 0, all.add)
	return all, size >= int64(st.Size), err
}

// noted is a path of the branch that a commit or discard has made equal to a path of Base.
type noted struct{ rel, base string }

// noteOrigins replaces the records of paths: now they show what Base has. Those of gone do not count any more. The journal must
// never have an older record than the branch has a version: if it cannot be written, it is emptied.
func (b *Branch) noteOrigins(now []noted, gone [][]byte) error {
	if b.bases == nil || len(now)+len(gone) == 0 {
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
	return errors.Join(err, b.bases.Sync(false))
}

func (b *Branch) appendOrigins(now []noted, gone [][]byte) error {
	for len(gone) > 0 {
		n, size := 0, 0
		for n < len(gone) && size < maxHeader/4 { // in base64, with paths of PATH_MAX
			size += len(gone[n]) + 4
			n++
		}
		if err := appendOrigin(*b.bases, &origin{Length: -1, Gone: gone[:n]}, nil); err != nil {
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
		if err := appendOrigin(*b.bases, r, content); err != nil {
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
