package branch

import (
	"encoding/json"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/fs/plan"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Copy copies an object that is not a directory, with its attributes, to the new name at of another directory, which may be
// below its root. A file is on the disk then: a name that gets the copy must not be empty after a power failure. It sets st to the attributes of the version that it copied. It fails for a socket or device, and for a file
// that is being written all the time.
func Copy(from *beneath.Root, rel string, st *beneath.Stat, to *beneath.Root, at string) error {
	dir, err := to.Dir(parentOf(at))
	if err != nil {
		return err
	}
	defer dir.Close()
	t := plan.Target{Root: to, Dir: dir, Rel: at, Sync: true}
	return t.Copy(from, rel, st)
}

// CopyAttributes gives a directory the owner, mode and extended attributes of another one, and its modification time.
func CopyAttributes(from *beneath.Root, rel string, to *beneath.Root, at string) error {
	st, err := from.Stat(rel)
	if err != nil {
		return err
	}
	now, err := to.Stat(at)
	if err != nil {
		return err
	}
	a := plan.AttributesOf(from, rel, &st, false)
	a.Mtime = st.Mtime
	return plan.SetAttributes(to, at, now.ID(), a)
}

// Note notes that Upper's version of a path of Base came of the one with the attributes st: a change of Base before that is no
// conflict. State must not be open as a Branch. Without the note, after a crash, the path can be in conflict.
func Note(state *beneath.Root, rel string, st *beneath.Stat) error {
	top, err := state.Dir("")
	if err != nil {
		return err
	}
	defer top.Close()
	f, err := journal.OpenOrCreate(top, takenName)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := json.Marshal(line{ident: identOf(st), Path: []byte(rel)})
	if err == nil {
		_, err = f.WriteAt(append(text, '\n'), 0, true)
	}
	return err
}
