// Package changes says what an agent has changed: which files, by the log and by the tree.
//
// The tree is the agent's: package changes opens no link, FIFO or device of it, leaves no
// scope, starts nothing, and reads no repository. Where the old text of a file comes from
// is for the caller to say.
package changes

import (
	"maps"
	"slices"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// Kind is what happened to a file since a time.
type Kind string

// The kinds of change. A file that was replaced by another under its name is Added.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
)

// Change is what an agent did to one path.
type Change struct {
	Path string `json:"path"` // relative to the view; bytes, as the agent chose them
	Kind Kind   `json:"kind"`

	// Logged counts operations and calls of the log that changed it. Of 0 only the tree
	// says that it changed: the host or another agent could have done it.
	Logged int       `json:"logged"`
	Last   time.Time `json:"last,omitzero"`  // the last operation, or the last change of the inode; zero: unknown
	Type   string    `json:"type,omitempty"` // what is there now: file, directory, link, other

	born  bool // the log has its creation, or a rename to it, before anything else
	fresh bool // born, and nothing was there: a rename may have replaced a file
}

// Log collects changes from events of the log. The zero value is ready to use.
type Log struct {
	paths map[string]*Change

	// Left counts changes of paths beyond the first 100,000.
	Left int
}

// maxPaths bounds the paths of a Log and of a Tree.
const maxPaths = 100_000

// creates and removes are what an operation of a view or a file tool does to its path.
var (
	creates = map[string]bool{scope.OpCreate.String(): true, scope.OpMkdir.String(): true, scope.OpMknod.String(): true,
		scope.OpSymlink.String(): true, scope.OpLink.String(): true, scope.OpRename.String(): true, "make_dir": true}
	removes = map[string]bool{scope.OpUnlink.String(): true, scope.OpRmdir.String(): true, scope.OpRenameFrom.String(): true,
		"delete_file": true, "delete": true}
	writes = map[string]bool{"write_file": true, "edit_file": true}
)

// Add takes an event of the agent.
func (l *Log) Add(e audit.Event) {
	if e.Verdict != audit.Allow {
		return
	}
	switch e.Event {
	case audit.KindFile:
		if op, err := scope.ParseOp(e.Op); err == nil && op.Mutates() && op != scope.OpLinkFrom {
			l.note(e.Path, e.Op, e.Time)
		}
	case audit.KindCall:
		switch {
		case e.Outcome != "ok":
		case creates[e.Op], removes[e.Op], writes[e.Op]:
			l.note(e.Path, e.Op, e.Time)
		case e.Op == "move":
			l.note(e.Path, scope.OpRenameFrom.String(), e.Time)
			l.note(e.Target, scope.OpRename.String(), e.Time)
		case e.Op == "copy":
			l.note(e.Target, scope.OpRename.String(), e.Time) // it may replace a file, too
		}
	}
}

// note notes an operation on a path of the log.
func (l *Log) note(escaped, op string, at time.Time) {
	rel, err := audit.Unescape(escaped)
	if err != nil { // the log cut the middle of a long path
		rel = escaped
	}
	if rel == "" || rel == "." {
		return
	}
	c := l.paths[rel]
	if c == nil {
		if len(l.paths) >= maxPaths {
			l.Left++
			return
		}
		if l.paths == nil {
			l.paths = map[string]*Change{}
		}
		c = &Change{Path: rel, born: creates[op], fresh: creates[op] && op != scope.OpRename.String()}
		l.paths[rel] = c
	}
	c.Logged++
	c.Last = at
}

// Join returns the changes of a log and of a tree, by path. A file that was made and
// removed since then is no change. before is all of an earlier tree, whose files are removed
// if the tree has none of the name; nil: there is none.
func Join(l *Log, t, before *Tree) []Change {
	all := map[string]*Change{}
	for rel, c := range l.paths {
		now, there := t.stat(rel)
		switch {
		case !there && c.fresh:
			continue
		case !there:
			c.Kind = Removed
		case c.born || now.born:
			c.Kind, c.Type = Added, now.kind
		default:
			c.Kind, c.Type = Changed, now.kind
		}
		all[rel] = c
	}
	for rel, now := range t.found {
		if all[rel] != nil {
			continue
		}
		c := &Change{Path: rel, Kind: Changed, Type: now.kind, Last: now.changed}
		if now.born {
			c.Kind = Added
		}
		all[rel] = c
	}
	if before != nil {
		for rel := range before.found {
			if _, there := t.stat(rel); !there && all[rel] == nil {
				all[rel] = &Change{Path: rel, Kind: Removed}
			}
		}
	}
	list := make([]Change, 0, len(all))
	for _, rel := range slices.Sorted(maps.Keys(all)) {
		list = append(list, *all[rel])
	}
	return list
}
