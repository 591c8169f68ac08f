package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// world is the tree as it would be after some inverses of records.
type world struct {
	store  *Store
	hooks  Hooks
	alias  map[beneath.FileID]beneath.FileID
	names  map[string]thing  // those that differ from the tree's
	kept   map[string]thing  // files that the undo returns to the history, by their paths there
	moves  []move            // of directories, the latest last
	stays  map[string]string // why the files at these names stay
	failed map[string]string // names of records that are not inverted, and why: see causes

	blocked  map[beneath.FileID]string        // why an object stays as it is
	causes   map[beneath.FileID]string        // objects of records that are not inverted: why others do not come back
	listed   map[beneath.FileID]bool          // blocked objects that plan.Conflicts lists
	skipped  map[beneath.FileID]bool          // made and removed by one generation, which kept nothing
	twins    map[string]bool                  // names that one generation has given and removed, without keeping them
	states   map[beneath.FileID][]*entry      // Made, Content and Written that are to be taken back, in order, up to the present step
	current  map[beneath.FileID]*journal.Attr // after inverses; nil: as it is
	busy     map[beneath.FileID]bool          // clients of the view had it open for writing then: what differs is theirs
	before   map[beneath.FileID]*entry        // the first record about the times of a directory
	where    map[beneath.FileID]string        // paths of directories
	stray    map[beneath.FileID]string        // of those that were moved back before
	content  map[beneath.FileID]*entry        // the record with the content before
	later    map[beneath.FileID][]*entry      // records of an object that was not at their path then, the newest first
	torn     map[beneath.FileID]bool          // an undo of its content or attributes was interrupted
	force    bool                             // Selection.Force
	any      bool                             // what others have changed since does not matter
	beside   map[beneath.FileID]bool          // objects whose newer state is in a copy
	shown    Shows                            // of a layer; nil: see shows
	revealed map[string]bool                  // paths at which a layer shows another object of its base than now
	plan     Plan
}

// thing is the object at a name. The zero thing is nothing.
type thing struct {
	there bool
	id    beneath.FileID // without the device: see plain
	file  beneath.FileID // with it
	dir   bool
	fresh bool // a directory that the undo makes: the tree knows nothing below it
	kept  string
	real  string // the path that it has in the tree
	attr  *journal.Attr
	ctime unix.StatxTimestamp
}

func (t thing) regular() bool { return t.attr != nil && t.attr.Mode&unix.S_IFMT == unix.S_IFREG }

// move says that a directory at path was at real before.
type move struct{ path, real string }

// same returns the identity that stands for an object now.
func (w *world) same(id beneath.FileID) beneath.FileID { return follow(w.alias, plain(id)) }

func follow(alias map[beneath.FileID]beneath.FileID, id beneath.FileID) beneath.FileID {
	for range len(alias) {
		next, ok := alias[id]
		if !ok {
			break
		}
		id = next
	}
	return id
}

// at returns what a path has.
func (w *world) at(rel string) thing {
	if t, ok := w.names[rel]; ok {
		return t
	}
	for dir := beneath.Parent(rel); dir != ""; dir = beneath.Parent(dir) {
		t, ok := w.names[dir]
		if ok && (!t.there || t.fresh || !t.dir) {
			return thing{}
		}
		if ok {
			break
		}
	}
	real := w.real(rel)
	var st beneath.Stat
	err := w.store.tree.Lifting(real, 0, func() (err error) { // the agent may have closed a directory
		st, err = w.store.tree.Stat(real)
		return err
	})
	if err != nil {
		return thing{}
	}
	return thing{there: true, id: plain(st.ID()), file: st.ID(), dir: st.IsDir(), real: real, attr: journal.AttrOf(&st), ctime: st.Ctime}
}

// real returns the path that an object has in the tree.
func (w *world) real(rel string) string {
	for _, m := range slices.Backward(w.moves) {
		if rest, ok := strings.CutPrefix(rel+"/", m.path+"/"); ok {
			rel = strings.TrimSuffix(m.real+"/"+rest, "/")
		}
	}
	return rel
}

// taken returns why an object cannot have the name of a thing.
func (w *world) taken(t thing) string {
	return cmp.Or(w.causes[w.same(t.id)], "another object is there")
}

// free returns why nothing can be placed at a path.
func (w *world) free(rel string) string {
	if t := w.at(rel); t.there {
		return w.taken(t)
	}
	if dir := beneath.Parent(rel); dir != "" && !w.at(dir).there {
		if below := w.below(dir); below == nil || !below.Stat.IsDir() {
			return cmp.Or(w.failed[dir], "its directory is not there any more")
		}
	}
	return ""
}

// newer returns a free name for what others have made of a path.
func (w *world) newer(rel string) string {
	for n := 1; ; n++ {
		name := fmt.Sprintf("%s.newer%d", rel, n)
		if !w.at(name).there {
			return name
		}
	}
}

// empty reports whether a directory would be empty.
func (w *world) empty(rel string) bool {
	left, err := w.within(rel)
	return err == nil && len(left) == 0
}

// full returns why a directory would not be empty.
func (w *world) full(rel string) string {
	left, err := w.within(rel)
	switch {
	case err == nil && len(left) == 0:
		return ""
	case len(w.causes) > 0: // else no name needs a look
		for _, name := range left {
			if why := w.causes[w.same(w.at(name).id)]; why != "" {
				return why
			}
		}
	}
	return "the directory has files of others"
}

// within returns the paths of what would be in a directory.
func (w *world) within(rel string) (left []string, err error) {
	for name, t := range w.names {
		if beneath.Parent(name) == rel && t.there {
			left = append(left, name)
		}
	}
	if w.names[rel].fresh {
		return left, nil
	}
	var names []string
	err = w.store.tree.Lifting(w.real(rel), unix.S_IRWXU, func() (err error) {
		names, err = w.store.tree.Names(w.real(rel))
		return err
	})
	for _, name := range names {
		if _, ok := w.names[beneath.Join(rel, name)]; !ok {
			left = append(left, beneath.Join(rel, name))
		}
	}
	slices.Sort(left)
	return left, err
}

// clear drops the names below a path: another directory comes there.
func (w *world) clear(rel string) {
	for name := range w.names {
		if strings.HasPrefix(name, rel+"/") {
			delete(w.names, name)
		}
	}
}

// rename moves a thing, and what is below it.
func (w *world) rename(from, to string, t thing) {
	if t.dir {
		w.clear(to)
		moved := map[string]thing{}
		for name, below := range w.names {
			if rest, ok := strings.CutPrefix(name, from+"/"); ok {
				delete(w.names, name)
				moved[to+"/"+rest] = below
			}
		}
		for name, below := range moved {
			w.names[name] = below
		}
		w.where[w.same(t.id)] = from
		for id, name := range w.where {
			if rest, ok := strings.CutPrefix(name+"/", from+"/"); ok {
				w.where[id] = strings.TrimSuffix(to+"/"+rest, "/")
			}
		}
		w.moves = append(w.moves, move{to, from})
	}
	w.names[from], w.names[to] = thing{}, t
	for id, later := range w.later { // another client had moved their directory between the lookup and the record
		if rel := later[0].Path; t.dir && strings.HasPrefix(rel, to+"/") && w.same(w.at(rel).id) == id {
			w.found(id, rel)
		}
	}
}
