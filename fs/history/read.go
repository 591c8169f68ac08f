package history

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history/journal"
	"github.com/scopefs/scopefs/scope/beneath"
)

// A past generation is one of the history's directories, as it is on the disk.
type past struct {
	name  string
	began uint64
	bytes int64
	ended bool
}

// generations returns the generations of the history, the oldest first.
func (s *Store) generations() (all []past, err error) {
	names, err := s.dir.Names("")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if began, bytes, ended, ok := journal.ParseName(name); ok {
			all = append(all, past{name, began, bytes, ended})
		}
	}
	slices.SortFunc(all, func(a, b past) int { return cmp.Compare(a.began, b.began) })
	return all, nil
}

// openJournal opens the journal of a generation.
func (s *Store) openJournal(name string) (f beneath.File, st beneath.Stat, err error) {
	return s.dir.OpenAny(name+"/"+journal.Name, unix.O_RDONLY)
}

// reading is what was read of a journal, up to the first damaged record. The records have no contents: see inline.
type reading struct {
	Header
	records []*journal.Record
	began   bool // there is a header
	code    journal.Coder
	at      int64
	err     error
}

// take reads a record.
func (r *reading) take(entry []byte) bool {
	one, err := r.code.Decode(entry)
	if err != nil || !r.began && one.Kind != journal.Begins {
		return false
	}
	one.At, r.at = r.at, r.at+journal.HeadSize+int64(len(entry))
	if r.began {
		one.Data = nil
		r.records = append(r.records, one)
	} else {
		r.began, r.err = true, json.Unmarshal(one.Data, &r.Header)
	}
	return true
}

// inline returns the content that a record of a generation has.
func (s *Store) inline(name string, r *journal.Record) ([]byte, error) {
	f, _, err := s.openJournal(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, journal.HeadSize)
	if _, err := f.ReadAt(head, r.At); err != nil {
		return nil, err
	}
	frame := make([]byte, journal.HeadSize+min(binary.LittleEndian.Uint32(head), journal.MaxRecord))
	n, err := f.ReadAt(frame, r.At)
	if err != nil {
		return nil, err
	}
	whole, _, err := (*journal.Coder)(nil).Cut(frame[:n])
	if err == nil && whole.Seq != r.Seq {
		err = journal.ErrTorn
	}
	if err != nil {
		return nil, err
	}
	return whole.Data, nil
}

// outline returns a generation without its records.
func (s *Store) outline(p past) (generationRecords, error) {
	g := generationRecords{past: p}
	f, st, err := s.openJournal(p.name)
	if errors.Is(err, beneath.ErrStale) || errors.Is(err, unix.ENOENT) { // it has ended meanwhile, or has no journal yet
		return s.load(p)
	}
	if err != nil {
		return g, fmt.Errorf("generation %x: %w", p.began, err)
	}
	defer f.Close()
	frame := make([]byte, headerRoom)
	n, err := f.ReadAt(frame, 0)
	if err != nil {
		return g, err
	}
	r, rest, err := (*journal.Coder)(nil).Cut(frame[:n])
	if err != nil || r.Kind != journal.Begins {
		return g, nil // killed at once: Open removes it
	}
	g.some = len(rest) > 0
	g.until = uint64(st.Mtime.Sec*1e9+int64(st.Mtime.Nsec)) + clockLag
	return g, json.Unmarshal(r.Data, &g.Header)
}

// headerRoom is the room for the first frame: the header of an undo names generations.
const headerRoom = 256 << 10

// generationRecords are the records of a generation that have happened, with their identities.
type generationRecords struct {
	past
	Header
	some    bool              // it has records
	until   uint64            // no record is later
	records []*journal.Record // in order; those of changes, and Written
	stands  []*journal.Record // those of directories that stand for others
	settled map[uint64]uint64 // the records Settled of Made
}

// load reads a generation. Without one, or with a damaged journal, it has no records.
func (s *Store) load(p past) (generationRecords, error) {
	g := generationRecords{past: p}
	f, _, err := s.openJournal(p.name)
	if errors.Is(err, beneath.ErrStale) && !p.ended { // it has ended meanwhile
		if now, failed := s.named(idOf(p.began)); failed == nil && now.ended {
			return s.load(now)
		}
	}
	if err == nil {
		defer f.Close()
		err = g.read(f)
	}
	if err != nil {
		return g, fmt.Errorf("generation %x: %w", p.began, err)
	}
	return g, nil
}

// read reads the records of a journal.
func (g *generationRecords) read(f beneath.File) error {
	var r reading
	if _, err := journal.Scan(f, journal.Frames, r.take); err != nil || r.err != nil {
		return errors.Join(err, r.err)
	}
	all := r.records
	g.Header = r.Header
	g.settled = map[uint64]uint64{}
	settled, void := map[uint64]*journal.Record{}, map[uint64]bool{}
	for _, r := range all {
		switch r.Kind {
		case journal.Settled:
			settled[r.Of], g.settled[r.Of] = r, r.Seq
		case journal.Void:
			void[r.Of] = true
		}
	}
	for _, r := range all {
		switch r.Kind {
		case journal.Settled, journal.Void, journal.Ended:
			continue
		}
		if void[r.Seq] {
			continue
		}
		if r.Kind == journal.Made {
			made, ok := settled[r.Seq]
			if !ok {
				continue // in flight now: Open settles it
			}
			if r.Object, r.Attr = made.Object, made.Attr; r.Other != (beneath.FileID{}) {
				g.stands = append(g.stands, r)
			}
		}
		g.records = append(g.records, r)
	}
	slices.SortFunc(g.records, bySeq)
	if g.until, g.some = g.began, len(g.records) > 0; g.some {
		g.until = g.records[len(g.records)-1].Seq
	}
	return nil
}

func bySeq(a, b *journal.Record) int { return cmp.Compare(a.Seq, b.Seq) }

// Generation describes a generation.
type Generation struct {
	ID      string    `json:"id"`
	Began   time.Time `json:"began"`
	Last    time.Time `json:"last"`
	Changes int       `json:"changes"` // of contents, names and attributes; several of one object can be several
	Bytes   int64     `json:"bytes"`   // that it keeps; 0 while it is open
	Header
}

// Generations returns the generations from a time on, the oldest first.
func (s *Store) Generations(since time.Time) (list []Generation, err error) {
	s.settle(nil)
	all, err := s.generations()
	if err != nil {
		return nil, err
	}
	loaded, _ := s.points.list()
	for _, p := range all {
		g, err := s.outline(p)
		if err == nil && !timeOf(g.until).Before(since) {
			g, err = s.load(p)
		}
		if err != nil {
			return nil, err
		}
		loaded = append(loaded, g)
	}
	slices.SortFunc(loaded, func(a, b generationRecords) int { return cmp.Compare(a.began, b.began) })
	for _, g := range loaded {
		info := Generation{ID: idOf(g.began), Began: timeOf(g.began), Last: timeOf(g.began), Bytes: g.bytes, Header: g.Header}
		for _, r := range g.records {
			if r.Kind != journal.Written && r.Flags&journal.Names == 0 {
				info.Changes++
			}
		}
		info.Last = timeOf(max(g.until, g.began))
		if !info.Last.Before(since) {
			list = append(list, info)
		}
	}
	return list, nil
}

func idOf(began uint64) string { return strconv.FormatUint(began, 16) }

func timeOf(seq uint64) time.Time { return time.Unix(0, int64(seq)) }
