package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// Journal is a plan that is on the disk until it is done.
type Journal struct {
	Plan
	Failed map[int]*Failure // steps

	top   beneath.Dir
	name  string
	log   *journal.Log
	ended map[int]bool // steps that are done, or have failed
	begun map[int]bool // steps whose object may be half changed
	lifts []lift       // of the step in flight

	loaded bool // another process has begun
}

// lift is a mode that is lifted for a step.
type lift struct {
	Path  []byte         `json:"p"`
	Stage bool           `json:"s,omitempty"`
	ID    beneath.FileID `json:"i"`
	Was   uint32         `json:"w"`
	Now   uint32         `json:"n"`
}

// entry is a frame of the file. First are those of Note, then one with Count, then those of the steps.
type entry struct {
	Note  []byte   `json:"note,omitempty"` // a piece
	Count int      `json:"count,omitempty"`
	Step  *Step    `json:"step,omitempty"`
	Lift  *lift    `json:"lift,omitempty"`
	Begun *int     `json:"begun,omitempty"`
	End   *int     `json:"end,omitempty"` // the step is done, or has failed
	Why   *Failure `json:"why,omitempty"`
}

// ErrOlder reports a journal of a build before plans.
var ErrOlder = errors.New("an older scopefs has not finished it: finish it with that one")

// Begin writes a plan to the new file name of a directory. When it returns, the plan is going to be done, now or after
// a crash. If ctx has ended, nothing has happened.
func Begin(ctx context.Context, top beneath.Dir, name string, p Plan) (*Journal, error) {
	j := newJournal(top, name)
	j.Plan = p
	entries := []entry{}
	for piece := range slices.Chunk(p.Note, journal.MaxEntry/2) {
		entries = append(entries, entry{Note: piece})
	}
	entries = append(entries, entry{Count: len(p.Steps)})
	for i := range p.Steps {
		entries = append(entries, entry{Step: &p.Steps[i]})
	}
	var err error
	if j.log, err = journal.OpenLog(top, name, journal.Frames, true, func([]byte) bool { return false }); err != nil {
		return nil, err
	}
	if err = j.append(entries...); err == nil {
		err = j.log.Sync(false)
	}
	if err == nil {
		err = top.Sync()
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, errors.Join(err, j.End())
	}
	return j, nil
}

func newJournal(top beneath.Dir, name string) *Journal {
	return &Journal{top: top, name: name, ended: map[int]bool{}, begun: map[int]bool{}, Failed: map[int]*Failure{}}
}

// Load returns the plan that a crash has left in a directory; nil if there is none, or if it was not complete: then
// nothing was done.
func Load(top beneath.Dir, name string) (*Journal, error) {
	if _, err := top.Stat(name); err == unix.ENOENT {
		return nil, nil
	}
	j, count := newJournal(top, name), 0
	j.loaded = true
	if old, err := j.older(); err != nil || old {
		return nil, errors.Join(err, ErrOlder)
	}
	log, err := journal.OpenLog(top, name, journal.Frames, true, func(frame []byte) bool {
		var e entry
		if json.Unmarshal(frame, &e) != nil {
			return false
		}
		switch {
		case e.Step != nil:
			j.Steps = append(j.Steps, *e.Step)
		case e.Lift != nil:
			j.lifts = append(j.lifts, *e.Lift)
		case e.Begun != nil:
			j.begun[*e.Begun] = true
		case e.End != nil:
			j.ended[*e.End], j.lifts = true, nil
			if e.Why != nil {
				j.Failed[*e.End] = e.Why
			}
		case e.Note != nil:
			j.Note = append(j.Note, e.Note...)
		default:
			count = e.Count
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if j.log = log; count == 0 || len(j.Steps) < count {
		return nil, j.End()
	}
	return j, nil
}

// older reports whether the file has the steps of an older build, as JSON.
func (j *Journal) older() (bool, error) {
	f, err := journal.OpenOrCreate(j.top, j.name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	begin := make([]byte, len(`{"steps":[{`))
	_, err = f.ReadAt(begin, 0)
	return bytes.Equal(begin, []byte(`{"steps":[{`)), err
}

func (j *Journal) append(entries ...entry) error {
	return journal.AppendJSON(j.log, entries...)
}

// end notes that a step is over.
func (j *Journal) end(i int, why *Failure) error {
	j.ended[i], j.lifts = true, nil
	if why != nil {
		j.Failed[i] = why
	}
	return j.append(entry{End: &i, Why: why})
}

// End removes the journal: the planner needs it no more.
func (j *Journal) End() error {
	err := j.top.Unlink(j.name)
	j.log.Close()
	return err
}

// Ended reports whether a step is done, or has failed.
func (j *Journal) Ended(i int) bool { return j.ended[i] }

// Close leaves the journal for Load.
func (j *Journal) Close() { j.log.Close() }
