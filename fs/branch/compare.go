package branch

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// node is one name of Upper.
type node struct {
	name  string
	white bool // a whiteout: the name is not in the branch
	own   bool // its inode number is Upper's: it did not come from Base
	ino   UpperID
	st    beneath.Stat
	kids  []*node
	err   error  // why Upper's directory cannot be read
	from  string // the path in Base of the object that was moved here
}

func (n *node) kid(name string) bool {
	_, ok := slices.BinarySearchFunc(n.kids, name, func(k *node, name string) int { return cmp.Compare(k.name, name) })
	return ok
}

// differ compares the branch with Base.
type differ struct {
	*Branch
	ctx     context.Context // of one Diff
	top     *node           // Upper
	base    map[string]beneath.Stat
	below   map[string][]string // names in directories of Base that have left their place
	byIno   map[uint64]string   // their objects
	missing map[string][]string // objects of directories for which beside holds, which are not in the branch any more
	claimed map[string]bool     // those of them that were moved
	added   []spot
	entries []Entry
	lifted  []func()             // see release
	settled []line               // likewise
	linked  bool                 // an object that has left its place has several names
	whole   []Moved              // directories of Base whose content the branch has replaced
	carried []Moved              // directories of the branch in moved ones, that show a directory of Base through
	hiding  map[uint64][]UpperID // objects of Base, and of Upper that the overlay shows with their inode numbers
	was     origins              // nil: not read yet
}

// spot is a node at a path, and the path that its directory's namesake in Base has.
type spot struct {
	n         *node
	rel, base string
	has       bool
}

// differ compares the branch with Base. The caller calls release when it has read the branch.
func (b *Branch) differ(ctx context.Context) (*differ, error) {
	d := &differ{Branch: b, ctx: ctx, base: map[string]beneath.Stat{},
		below: map[string][]string{}, byIno: map[uint64]string{}, claimed: map[string]bool{},
		missing: map[string][]string{}, hiding: map[uint64][]UpperID{}, top: &node{}}
	root := d.top
	err := d.read(root, "")
	if err == nil {
		err = d.scan(root, "", "")
	}
	for _, p := range d.added {
		d.claim(p.n, p.rel, p.base, p.has)
	}
	if err == nil {
		err = d.emit(root, "", "", true, "")
	}
	if err != nil {
		d.release()
		return nil, err
	}
	slices.SortStableFunc(d.entries, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return d, nil
}

// maxDepth bounds the directories in one another that are compared: paths take memory by the square of it.
const maxDepth = 500

var errDeep = fmt.Errorf("it has more than %d directories in one another", maxDepth)

// read reads Upper.
func (d *differ) read(n *node, rel string) error {
	if strings.Count(rel, "/") >= maxDepth {
		return errDeep
	}
	if err := d.ctx.Err(); err != nil {
		return err
	}
	names, err := d.names(rel)
	if err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	slices.Sort(names)
	for _, name := range names {
		k, at := &node{name: name}, beneath.Join(rel, name)
		st, err := d.Upper.Stat(at)
		if err != nil {
			if errors.Is(err, beneath.ErrStale) {
				continue
			}
			return fmt.Errorf("%s: %w", at, err)
		}
		if k.white = st.Type() == unix.S_IFCHR && st.Rdev_major == 0 && st.Rdev_minor == 0; !k.white {
			if k.st, err = d.Merged.Stat(at); errors.Is(err, beneath.ErrStale) {
				continue // a client has removed it meanwhile
			} else if err != nil {
				return fmt.Errorf("%s: %w", at, err)
			}
			if k.own, k.ino = k.st.Ino == st.Ino, upperID(&st); !k.own && !st.IsDir() {
				d.hiding[k.st.Ino] = append(d.hiding[k.st.Ino], k.ino)
			}
			if st.IsDir() && k.st.IsDir() {
				if err := d.read(k, at); errors.Is(err, unix.EACCES) || errors.Is(err, errDeep) {
					k.err, k.kids = err, nil
				} else if err != nil {
					return err
				}
			}
		}
		n.kids = append(n.kids, k)
	}
	return nil
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

// beside reports whether a directory of the branch and its namesake of Base are two, and the branch did not replace the one
// of Base: a commit made it, or the host made it since the fork.
func (d *differ) beside(k *node, st *beneath.Stat) bool {
	if l, ok := d.taken.has(st); ok {
		return l.Made && l.Upper == k.ino
	}
	return k.own && st.Btime.Sec != 0 && !later(d.stamp, st.Btime)
}

// scan finds the objects of Base that have left their places, and the nodes that are new there.
func (d *differ) scan(n *node, rel, base string) error {
	d.enter(base)
	for _, k := range n.kids {
		at, was := beneath.Join(rel, k.name), beneath.Join(base, k.name)
		st, there := d.stat(was)
		var err error
		switch {
		case k.white:
			if there && !d.hides(was) {
				err = d.index(was, &st)
			}
		case !there:
			d.added = append(d.added, spot{n: k, rel: at})
		case st.IsDir() && k.st.IsDir() && k.st.Ino == st.Ino:
			err = d.scan(k, at, was)
		case st.IsDir() && k.st.IsDir() && d.beside(k, &st):
			if err = d.scanBeside(k, was); err == nil {
				err = d.scan(k, at, was)
			}
		case st.IsDir() && k.st.IsDir():
			err = d.index(was, &st)
			d.added = append(d.added, spot{k, at, was, true})
		case st.IsDir() || k.st.IsDir():
			err = d.index(was, &st)
			d.added = append(d.added, spot{n: k, rel: at})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanBeside finds what commits have taken into a directory and the branch has removed since: Upper's directory is its own,
// and needs no whiteouts. Other names are the host's.
func (d *differ) scanBeside(n *node, base string) error {
	d.enter(base)
	names, err := d.Base.Names(base)
	if err != nil {
		return fmt.Errorf("%s: %w", base, err)
	}
	d.missing[base] = []string{}
	for _, name := range names {
		at := beneath.Join(base, name)
		st, ok := d.stat(at)
		if !ok || n.kid(name) {
			continue
		}
		if _, ours := d.taken.has(&st); ours {
			if err := d.index(at, &st); err != nil {
				return err
			}
			d.missing[base] = append(d.missing[base], at)
		}
	}
	return nil
}

// hides reports whether the branch hides an object that the host has put where a commit has removed another one. With Held nothing
// is hidden from a list: the commit has removed the whiteout, and this one is newer.
func (d *differ) hides(rel string) bool { return d.Held == nil && d.taken.gone[rel] }

// index notes an object of Base that has left its place, and all below it.
func (d *differ) index(rel string, st *beneath.Stat) error {
	if err := d.ctx.Err(); err != nil {
		return err
	}
	if st.IsDir() || st.Nlink == 1 { // the overlay shows other inode numbers of files with several names
		d.byIno[st.Ino] = rel
	} else {
		d.linked = true
	}
	if !st.IsDir() {
		return nil
	}
	d.enter(rel)
	names, err := d.Base.Names(rel)
	if err != nil && !errors.Is(err, beneath.ErrStale) {
		return fmt.Errorf("%s: %w", rel, err)
	}
	slices.Sort(names)
	d.below[rel] = names
	for _, name := range names {
		at := beneath.Join(rel, name)
		if st, ok := d.stat(at); ok {
			if err := d.index(at, &st); err != nil {
				return err
			}
		}
	}
	return nil
}

// claim finds the objects of Base that are now at other places of the branch.
func (d *differ) claim(n *node, rel, base string, has bool) {
	if n.white {
		return
	}
	from, ok := d.byIno[n.st.Ino]
	if st := d.base[from]; ok && !n.own && st.Type() == n.st.Type() && !d.claimed[from] && (!has || from != base) {
		n.from, d.claimed[from] = from, true
		base, has = from, true
	}
	for _, k := range n.kids {
		d.claim(k, beneath.Join(rel, k.name), beneath.Join(base, k.name), has)
	}
}

// emit lists the differences of a directory of the branch, and of the directory base of Base if it has one. why is the
// conflict of the directory.
func (d *differ) emit(n *node, rel, base string, has bool, why string) error {
	for _, k := range n.kids {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		at, was := beneath.Join(rel, k.name), beneath.Join(base, k.name)
		var st beneath.Stat
		there := false
		if has {
			st, there = d.stat(was)
		}
		if err := d.pair(k, at, was, st, there, why); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) pair(k *node, at, was string, st beneath.Stat, there bool, why string) error {
	switch {
	case k.white:
		if there && !d.hides(was) {
			d.removed(was, why)
		}
		return nil
	case k.from != "":
		if there {
			d.removed(was, why)
		}
		old := d.base[k.from]
		d.compare(k, at, k.from, &old, history.Renamed, cmp.Or(why, d.movedWhy(k.from, &old)))
		return d.emit(k, at, k.from, true, "")
	case !there || d.claimed[was] || st.IsDir() != k.st.IsDir():
		if there {
			d.removed(was, why)
		} else if d.goneBelow(k, at) {
			return d.emitGone(k, at, cmp.Or(why, whyGone))
		}
		d.compare(k, at, "", nil, history.Added, why)
		return d.emit(k, at, "", false, "")
	case !k.st.IsDir():
		return d.file(k, at, was, st, why)
	}
	d.compare(k, at, was, &st, history.ModeChanged, cmp.Or(why, d.since(&st)))
	l, ok := d.taken.has(&st)
	switch {
	case k.err != nil:
		return nil
	case k.st.Ino == st.Ino:
		if at != was {
			d.carried = append(d.carried, Moved{[]byte(at), k.ino})
		}
		return d.emit(k, at, was, true, why)
	case d.beside(k, &st):
		if d.missing[was] == nil { // it is in a moved directory
			if err := d.scanBeside(k, was); err != nil {
				return err
			}
		}
		for _, name := range d.missing[was] {
			d.removed(name, why)
		}
		return d.emit(k, at, was, true, why)
	case ok && l.Moved && l.Upper == k.ino:
		return fmt.Errorf("%s: %w", at, ErrDetached)
	}
	why = cmp.Or(why, d.since(&st))
	d.whole = append(d.whole, Moved{[]byte(was), k.ino})
	for _, name := range d.below[was] {
		if !k.kid(name) {
			d.removed(beneath.Join(was, name), why)
		}
	}
	return d.emit(k, at, was, true, why)
}

// file lists what is no directory in the branch and in Base.
func (d *differ) file(k *node, at, was string, st beneath.Stat, why string) error {
	found := d.since(&st)
	var origin *origin
	if found != "" {
		all, err := d.origins()
		if err != nil {
			return err
		}
		origin = all[at]
	}
	switch {
	case found == "":
	case origin != nil && d.shown(origin, was, &st):
		found = ""
	case origin == nil && k.own && st.Btime.Sec != 0 && !later(d.stamp, st.Btime):
		found = whyNew
	}
	before := len(d.entries)
	d.compare(k, at, was, &st, history.Changed, cmp.Or(why, found))
	if why == "" && found == whyChanged && len(d.entries) > before {
		e := &d.entries[before]
		e.origin = origin
		d.tryMerge(e)
	}
	return nil
}

// shown reports whether an object of Base is what the branch showed when it was changed there first.
func (d *differ) shown(o *origin, was string, st *beneath.Stat) bool {
	if o.Length < 0 {
		return o.ident == originIdent(st)
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
	if o := all[rel]; err == nil && o != nil && o.ident == originIdent(st) && d.shown(o, rel, st) {
		return ""
	}
	return why
}

// emitGone lists an object that the host has removed. A directory without changes is none.
func (d *differ) emitGone(k *node, at, why string) error {
	n := len(d.entries)
	d.compare(k, at, "", nil, history.Added, why)
	dir := len(d.entries)
	err := d.emit(k, at, "", false, "")
	if k.st.IsDir() && k.err == nil && len(d.entries) == dir {
		d.entries = d.entries[:n]
	}
	return err
}

// goneBelow reports whether the host has removed what a new object of the branch was in Base.
func (d *differ) goneBelow(k *node, at string) bool {
	if d.taken.upper[k.ino] {
		return d.taken.paths[at] == k.ino
	}
	return !k.st.IsDir() && d.Origin != nil && k.own && !d.linked && d.Origin(at)
}

// removed lists an object of Base that is not in the branch, and all below it that was not moved.
func (d *differ) removed(rel, why string) {
	st, ok := d.stat(rel)
	if !ok || d.claimed[rel] {
		return
	}
	d.entries = append(d.entries, Entry{Kind: history.Deleted, Path: rel, Type: typeOf(&st), OldMode: uint32(st.Mode) & 0o7777,
		OldSize: int64(st.Size), NewSize: -1, Conflict: cmp.Or(why, d.unseen(rel, &st)), base: rel, old: st})
	for _, name := range d.below[rel] {
		d.removed(beneath.Join(rel, name), why)
	}
}

// movedWhy returns the conflict of a moved object: nothing below it may have changed in Base.
func (d *differ) movedWhy(rel string, st *beneath.Stat) string {
	why := d.unseen(rel, st)
	for _, name := range d.below[rel] {
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
	e := Entry{upper: k.ino, Kind: kind, Path: at, Type: typeOf(&k.st),
		NewMode: uint32(k.st.Mode) & 0o7777, OldSize: -1, NewSize: int64(k.st.Size),
		Conflict: why, base: was, new: k.st, Content: true}
	if old != nil && k.st.IsDir() && d.Held != nil && !d.Held(at) {
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
			e.Content, e.Mode, err = d.equal(k, at, was, old, e.Link)
			e.old, e.new = *old, k.st
		}
	}
	switch seen, ok := d.taken.seen[k.ino]; {
	case ok && d.Held == nil && d.taken.paths[at] == k.ino && seen == plainTime(k.st.Ctime) && !k.st.IsDir() && (why != "" || old == nil):
		return // Base has changed since a commit, and the branch has not
	case err != nil:
		e.Conflict, e.fixed = whyCannot+err.Error(), true
	case kind == history.Renamed:
		e.From = was
	case old != nil && !e.Content && !e.Mode:
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

// equal reports whether the content and the attributes of an object differ from those of its version in Base.
func (d *differ) equal(k *node, at, was string, old *beneath.Stat, link string) (content, mode bool, err error) {
	if k.st.Type() != old.Type() {
		return true, true, nil
	}
	mode = k.st.Uid != old.Uid || k.st.Gid != old.Gid || !k.st.IsLink() && k.st.Mode != old.Mode
	if k.st.IsLink() {
		text, err := readlink(d.Base, was)
		return text != link, mode, err
	}
	if !k.st.IsRegular() && !k.st.IsDir() {
		return false, mode, nil
	}
	a, err := plan.OpenRead(d.Merged, at, &k.st, true)
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
