package branch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/hold"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// node is a path of the branch that may differ.
type node struct {
	st  beneath.Stat // what the branch shows
	own bool         // Upper has it
	err error        // why its directory cannot be read
}

// differ compares the branch with Base.
type differ struct {
	*Branch
	ctx     context.Context // of one Diff
	base    map[string]beneath.Stat
	below   map[string][]string // names in directories of Base that have left their place
	claimed map[string]bool     // objects of Base that are at other paths of the branch
	entries []Entry
	same    []Entry  // of Upper, and equal to Base
	lifted  []func() // see release
	settled []line   // likewise
	was     origins  // nil: not read yet
}

// differ compares the branch with Base. The caller calls release when it has read the branch.
func (b *Branch) differ(ctx context.Context) (*differ, error) {
	d := &differ{Branch: b, ctx: ctx, base: map[string]beneath.Stat{}, below: map[string][]string{}, claimed: b.Layers.Moved()}
	if err := d.dir("", "", true, false); err != nil {
		d.release()
		return nil, err
	}
	slices.SortStableFunc(d.entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return d, nil
}

// maxDepth bounds the directories in one another that are compared: paths take memory by the square of it.
const maxDepth = 500

var errDeep = fmt.Errorf("it has more than %d directories in one another", maxDepth)

// dir lists the differences of a directory of the branch, which is compared with the directory base of Base if it has one. whole says that
// it shows nothing of that.
func (d *differ) dir(rel, base string, has, whole bool) error {
	if strings.Count(rel, "/") >= maxDepth {
		return errDeep
	}
	if has {
		d.enter(base)
	}
	names, err := d.names(rel)
	if err != nil && !errors.Is(err, beneath.ErrStale) {
		return fmt.Errorf("%s: %w", rel, err)
	}
	records := d.Layers.Records(rel)
	names = slices.AppendSeq(names, maps.Keys(records))
	if whole {
		below, err := d.Base.Names(base)
		if err != nil {
			return fmt.Errorf("%s: %w", base, err)
		}
		names = append(names, below...)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		at, was := beneath.Join(rel, name), beneath.Join(base, name)
		record, recorded := records[name]
		if err := d.name(at, was, has, record, recorded || whole); err != nil {
			return err
		}
	}
	return nil
}

// name lists the differences at a path of the branch. hidden says that it shows nothing of Base, but what a record brings.
func (d *differ) name(at, was string, has bool, record hold.Shown, hidden bool) error {
	own, err := d.Upper.Stat(at)
	if err != nil && !errors.Is(err, beneath.ErrStale) {
		return fmt.Errorf("%s: %w", at, err)
	}
	k := &node{st: own, own: err == nil}
	if k.own && own.IsDir() {
		if k.st, err = d.Merged.Stat(at); err != nil {
			return nil // a client has removed it meanwhile
		}
	}
	var st beneath.Stat
	there := false
	if has {
		st, there = d.stat(was)
	}
	switch {
	case record.There:
		if there {
			d.removed(at, was)
		}
		return d.moved(k, at, record.Base)
	case !k.own:
		if there && hidden {
			d.removed(at, was)
		}
		return nil
	case !there || d.claimed[was] || st.IsDir() != k.st.IsDir():
		why := ""
		if there {
			d.removed(at, was)
		} else if has && d.goneBelow(at, was) {
			why = whyGone
		}
		return d.added(k, at, why)
	case !k.st.IsDir():
		return d.file(k, at, was, st)
	}
	return d.both(k, at, was, &st, history.ModeChanged, d.since(&st), hidden)
}

// both compares a directory with the one of Base.
func (d *differ) both(k *node, at, was string, st *beneath.Stat, kind history.ChangeKind, why string, whole bool) error {
	first := len(d.entries)
	d.compare(k, at, was, st, kind, why)
	err := d.dir(at, was, true, whole)
	if !errors.Is(err, unix.EACCES) && !errors.Is(err, errDeep) {
		return err
	}
	d.entries, k.err = d.entries[:first], err
	d.compare(k, at, was, st, kind, why)
	return nil
}

// added lists an object that Base has not, and all below it.
func (d *differ) added(k *node, at, why string) error {
	first := len(d.entries)
	d.compare(k, at, "", nil, history.Added, why)
	if !k.st.IsDir() {
		return nil
	}
	err := d.dir(at, "", false, false)
	if errors.Is(err, unix.EACCES) || errors.Is(err, errDeep) {
		d.entries, k.err = d.entries[:first], err
		d.compare(k, at, "", nil, history.Added, why)
		return nil
	}
	return err
}

// moved lists an object of Base that is at another path of the branch.
func (d *differ) moved(k *node, at, from string) error {
	old, ok := d.stat(from)
	switch {
	case !ok && !k.own:
		return nil // the host has removed it
	case !ok || k.own && k.st.Type() != old.Type():
		return d.added(k, at, whyGone)
	case !k.own:
		k.st = old
	}
	why := d.movedWhy(from, &old)
	if !old.IsDir() {
		d.compare(k, at, from, &old, history.Renamed, why)
		return nil
	}
	return d.both(k, at, from, &old, history.Renamed, why, false)
}

// stat returns the attributes of a path of Base.
func (d *differ) stat(rel string) (beneath.Stat, bool) {
	if st, ok := d.base[rel]; ok {
		return st, st.Mask != 0
	}
	st, err := d.Base.Stat(rel)
	if err != nil {
		st = beneath.Stat{}
	}
	d.base[rel] = st
	return st, err == nil
}

// within returns the names of a directory of Base that has left its place.
func (d *differ) within(rel string) []string {
	if st, ok := d.stat(rel); !ok || !st.IsDir() {
		return nil
	}
	names, known := d.below[rel]
	if !known {
		d.enter(rel)
		names, _ = d.Base.Names(rel) // it may be gone
		slices.Sort(names)
		d.below[rel] = names
	}
	return names
}

// file lists what is no directory in the branch and in Base.
func (d *differ) file(k *node, at, was string, st beneath.Stat) error {
	found := d.since(&st)
	var origin *origin
	if found != "" {
		all, err := d.origins()
		if err != nil {
			return err
		}
		origin = all[at].of(was)
	}
	switch {
	case found == "":
	case origin != nil && d.shown(origin, was, &st):
		found = ""
	case origin == nil && st.Btime.Sec != 0 && !later(d.stamp, st.Btime):
		found = whyNew
	}
	before := len(d.entries)
	d.compare(k, at, was, &st, history.Changed, found)
	if found == whyChanged && len(d.entries) > before {
		e := &d.entries[before]
		e.origin = origin
		d.tryMerge(e)
	}
	return nil
}

// shown reports whether an object of Base is what the branch showed when it was changed there first.
func (d *differ) shown(o *origin, was string, st *beneath.Stat) bool {
	if o.Length < 0 {
		return o.ident == plan.IdentOf(st) || o.Entries != nil && bytes.Equal(o.Entries, history.IndexSum(d.Base, was, was, st))
	}
	if o.Length != int64(st.Size) || !plan.SameAttributes(&o.Attr, plan.AttributesOf(d.Base, was, st, false)) {
		return false
	}
	now, _, ok := textOf(d.Base, was)
	sum := sha256.Sum256(now)
	return ok && bytes.Equal(sum[:], o.Sum)
}

// origins returns what paths of the branch were before it changed them.
func (d *differ) origins() (origins, error) {
	if d.was == nil {
		all, _, err := d.Branch.origins()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", basesName, err)
		}
		d.was = all
	}
	return d.was, nil
}

// unseen is since for an object that the branch has removed or moved: no conflict if it is the version that the branch showed.
func (d *differ) unseen(rel string, st *beneath.Stat) string {
	why := d.since(st)
	if why == "" || st.IsDir() {
		return why
	}
	all, err := d.origins()
	if o := all[rel]; err == nil && o != nil && o.ident == plan.IdentOf(st) && d.shown(o, rel, st) {
		return ""
	}
	return why
}

// goneBelow reports whether the host has removed what a new object of the branch was in Base.
func (d *differ) goneBelow(at, was string) bool {
	all, err := d.origins()
	return err == nil && all[at].of(was) != nil
}

// removed lists an object of Base that is not in the branch, where a path shows nothing, and all below it that was not moved.
func (d *differ) removed(at, rel string) {
	st, ok := d.stat(rel)
	if !ok || d.claimed[rel] {
		return
	}
	d.entries = append(d.entries, Entry{Kind: history.Deleted, Path: rel, Type: typeOf(&st), OldMode: uint32(st.Mode) & 0o7777,
		OldSize: int64(st.Size), NewSize: -1, Conflict: d.unseen(rel, &st), at: at, base: rel, old: st})
	for _, name := range d.within(rel) {
		d.removed(beneath.Join(at, name), beneath.Join(rel, name))
	}
}

// movedWhy returns the conflict of a moved object: nothing below it may have changed in Base.
func (d *differ) movedWhy(rel string, st *beneath.Stat) string {
	why := d.unseen(rel, st)
	for _, name := range d.within(rel) {
		at := beneath.Join(rel, name)
		if st, ok := d.stat(at); ok && why == "" {
			why = d.movedWhy(at, &st)
		}
	}
	return why
}

func typeOf(st *beneath.Stat) string {
	switch {
	case st.IsRegular():
		return "file"
	case st.IsDir():
		return "directory"
	case st.IsLink():
		return "link"
	}
	return "other"
}

// compare lists an object of the branch if it differs from old, the object at was in Base.
func (d *differ) compare(k *node, at, was string, old *beneath.Stat, kind history.ChangeKind, why string) {
	e := Entry{Kind: kind, Path: at, at: at, Type: typeOf(&k.st),
		NewMode: uint32(k.st.Mode) & 0o7777, OldSize: -1, NewSize: int64(k.st.Size),
		Conflict: why, base: was, new: k.st, Content: true}
	if old != nil && k.st.IsDir() && d.Roots.Held != nil && !d.Roots.Held(at) {
		d.same = append(d.same, e)
		return
	}
	err := k.err
	if k.st.IsLink() {
		e.Link, err = readlink(d.Merged, at)
	} else if t := k.st.Type(); t != unix.S_IFREG && t != unix.S_IFDIR && t != unix.S_IFIFO {
		err = errors.New("a socket or device")
	}
	if old != nil {
		e.old, e.OldMode, e.OldSize = *old, uint32(old.Mode)&0o7777, int64(old.Size)
		if err == nil {
			e.Content, e.Mode, err = d.equalTo(k, d.Merged, at, was, old, e.Link)
			e.old, e.new = *old, k.st
		}
	}
	switch {
	case err != nil:
		e.Conflict, e.fixed = whyCannot+err.Error(), true
	case kind == history.Renamed:
		e.From = was
	case old != nil && !e.Content && !e.Mode:
		if k.own {
			d.same = append(d.same, e)
		}
		return
	case old != nil && !e.Content:
		e.Kind = history.ModeChanged
	case kind == history.ModeChanged:
		e.Kind = history.Changed
	}
	d.entries = append(d.entries, e)
}

func readlink(root *beneath.Root, rel string) (string, error) {
	f, err := root.Object(rel)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Readlink()
}

// equalTo reports whether the content and the attributes of an object at a path of root differ from those of its version in Base.
func (d *differ) equalTo(k *node, root *beneath.Root, at, was string, old *beneath.Stat, link string) (content, mode bool, err error) {
	if k.st.Type() != old.Type() {
		return true, true, nil
	}
	mode = !k.st.IsLink() && k.st.Mode != old.Mode
	if int(old.Uid) == os.Geteuid() { // only the owner can set it: a copy of another one's is this user's
		mode = mode || k.st.Uid != old.Uid || k.st.Gid != old.Gid
	}
	if k.st.IsLink() {
		text, err := readlink(d.Base, was)
		return text != link, mode, err
	}
	if !k.st.IsRegular() && !k.st.IsDir() {
		return false, mode, nil
	}
	a, err := plan.OpenRead(root, at, &k.st, true)
	if err != nil {
		return true, mode, err
	}
	defer a.Close()
	b, err := d.openBase(was, old)
	if err != nil {
		return true, mode, err
	}
	defer b.Close()
	mode = mode || !maps.EqualFunc(a.UserXattrs(plan.MaxXattrs), b.UserXattrs(plan.MaxXattrs), bytes.Equal)
	if k.st.IsDir() {
		return false, mode, nil
	}
	if sum := history.IndexSum(root, at, at, &k.st); sum != nil && bytes.Equal(sum, history.IndexSum(d.Base, was, was, old)) {
		return false, mode, nil // git status writes what it notes of files
	}
	if k.st.Size != old.Size {
		return true, mode, nil
	}
	same, err := sameContent(d.ctx, a, b, old.Size)
	return !same, mode, err
}

func sameContent(ctx context.Context, a, b beneath.File, size uint64) (bool, error) {
	left, right := make([]byte, min(size+1, 128<<10)), make([]byte, min(size+1, 128<<10))
	for at := int64(0); ; {
		n, err := a.ReadAt(left, at)
		if err != nil {
			return false, err
		}
		m, err := b.ReadAt(right, at)
		if err != nil || n != m || !bytes.Equal(left[:n], right[:m]) {
			return false, err
		}
		if n == 0 {
			return true, ctx.Err()
		}
		at += int64(n)
	}
}
