// Package plan changes a directory by steps that a crash does not leave half done.
//
// A planner writes what it wants as a [Plan]: names that move, objects that are removed, contents and attributes that
// are set. Each step names an object and its version. Another version is a conflict: what others have changed since
// stays. New objects are made in the stage before, a directory on the mount of the tree. A [Keeper]
// keeps what steps destroy.
//
// # Crash
//
// [Begin] writes the plan to a journal. Each step that is done, or has failed, is noted there, and each mode before it
// is lifted for a step. After a crash [Load] returns the journal, and [Journal.Run] gives back the modes that the step
// in flight had lifted, and goes on with that step: a step that was done already does nothing. After a power failure
// notes can be missing: steps are then recognized by where their objects are, and a mode may stay lifted.
//
// # Rules
//
// A step that needs one that has failed is not done. A version that turns out to be another one after it was taken out
// goes back to its name, or beside that: no other process's version is lost.
package plan

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Plan is a list of steps, in the order in which they are done.
type Plan struct {
	Steps []Step
	Note  []byte // the planner's
}

// Action is the kind of a Step.
type Action string

// The actions.
const (
	Remove     Action = "remove"     // the object At: a directory if it is empty; a file moves to To, if there is no Keeper
	Move       Action = "move"       // the object At to To, which is free
	Exchange   Action = "exchange"   // the objects At and To
	Rewrite    Action = "rewrite"    // the content of the file At, by Keeper.Fill, then Attr
	Attributes Action = "attributes" // Attr of the object At
	Times      Action = "times"      // those of Attr
	Show       Action = "show"       // Keeper.Show: what a layer shows at At
)

// Step is one change of the tree.
type Step struct {
	Do     Action          `json:"do"`
	At     Spot            `json:"at"`
	To     Spot            `json:"to,omitzero"`
	Object Ident           `json:"o"`           // what has to be At
	Other  Ident           `json:"x,omitzero"`  // Exchange: what has to be at To
	Home   []byte          `json:"h,omitempty"` // of an object of the tree that a step has moved to the stage: its name, if this Move fails
	Attr   *journal.Attr   `json:"a,omitempty"`
	Needs  []int           `json:"n,omitempty"` // earlier steps
	Note   json.RawMessage `json:"i,omitempty"` // the planner's
}

// Path returns the name in the tree that a step changes: of a move in the tree, the old one.
func (s *Step) Path() string {
	if s.At.Stage {
		return s.To.Rel()
	}
	return s.At.Rel()
}

// Spot is a name in the tree, or in the stage.
type Spot struct {
	Path  []byte `json:"p"` // JSON has no strings that are not UTF-8
	Stage bool   `json:"s,omitempty"`
}

// Rel returns the path.
func (s Spot) Rel() string { return string(s.Path) }

// InTree returns the Spot of a path in the tree.
func InTree(rel string) Spot { return Spot{Path: []byte(rel)} }

// InStage returns the Spot of a path in the stage.
func InStage(rel string) Spot { return Spot{Path: []byte(rel), Stage: true} }

// Ident identifies a version of an object.
type Ident struct {
	Ino   uint64              `json:"i"`
	Birth int64               `json:"b,omitempty"`
	Ctime unix.StatxTimestamp `json:"c"` // zero: any
	Mtime unix.StatxTimestamp `json:"m"`
	Size  uint64              `json:"s"`
	Dir   bool                `json:"d,omitempty"`
	Any   bool                `json:"y,omitempty"` // any version
}

// IdentOf identifies what has attributes.
func IdentOf(st *beneath.Stat) Ident {
	return Ident{Ino: st.Ino, Birth: st.ID().Birth, Ctime: PlainTime(st.Ctime), Mtime: PlainTime(st.Mtime), Size: st.Size, Dir: st.IsDir()}
}

// PlainTime returns a time that is equal to others by ==.
func PlainTime(t unix.StatxTimestamp) unix.StatxTimestamp {
	return unix.StatxTimestamp{Sec: t.Sec, Nsec: t.Nsec}
}

// SameObject reports whether two idents are of one object.
func (i Ident) SameObject(o Ident) bool { return i.Ino == o.Ino && i.Birth == o.Birth }

// SameContent is equality but for the change time, which a rename sets. The times of a directory are those of its
// names.
func (i Ident) SameContent(o Ident) bool {
	return i.SameObject(o) && (i.Any || i.Dir || i.Mtime == o.Mtime && i.Size == o.Size)
}

// Matches reports whether an object is the version. The change time of a file with several names changes with its other
// names.
func (i Ident) Matches(st *beneath.Stat) bool {
	now := IdentOf(st)
	return i.SameContent(now) && (i.Any || i.Ctime == unix.StatxTimestamp{} || i.Ctime == now.Ctime || now.Dir || st.Nlink > 1)
}

// Kind is why a step was not done.
type Kind string

// The kinds of Failure.
const (
	Gone    Kind = "gone"    // the object is not there
	Changed Kind = "changed" // another object, or another version of it, is there
	Taken   Kind = "taken"   // To has an object
	Parent  Kind = "parent"  // the directory of At or To is not there
	Full    Kind = "full"    // the directory has files of others
	Skipped Kind = "skipped" // it needs a step that has failed
	System  Kind = "system"  // an error of the system, or of the Keeper
)

// Failure is why a step was not done.
type Failure struct {
	Kind Kind   `json:"k"`
	Text string `json:"t,omitempty"` // System
	Step int    `json:"n,omitempty"` // Skipped
}

func (f *Failure) Error() string {
	if f.Kind == System {
		return f.Text
	}
	return fmt.Sprint(f.Kind)
}

// Place is a name in an open directory.
type Place struct {
	Dir  beneath.Dir
	ID   beneath.FileID // of the directory
	Rel  string         // of the directory
	Name string         // "": the root itself
}

// Path returns the path of the name.
func (p Place) Path() string { return beneath.Join(p.Rel, p.Name) }

// Stat returns the attributes of what has the name.
func (p Place) Stat() (beneath.Stat, error) {
	if p.Name == "" {
		return p.Dir.Self().Stat()
	}
	return p.Dir.Stat(p.Name)
}
