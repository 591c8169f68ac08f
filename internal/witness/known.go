package witness

import (
	"bytes"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Known is a witness whose key is known, and the newest head that it has signed among those that Signed was called with.
type Known struct {
	Name  string    `json:"name,omitempty"` // of its node or anchor; "": whoever asks gave the key
	Key   string    `json:"key"`
	Lines int64     `json:"lines"` // below the head; 0: it has signed none
	Event uint64    `json:"event"` // the last one below the head; 0: not known
	Time  time.Time `json:"time,omitzero"`

	verifier *verifier
}

// Keys are those of witnesses, each public key once: a witness with two names signs once.
type Keys []*Known

// Add adds a key, unless it is there.
func (all *Keys) Add(name, key string) error {
	v, err := NewVerifier(key)
	if err != nil {
		return err
	}
	own := v.(*verifier)
	for _, k := range *all {
		if bytes.Equal(k.verifier.key, own.key) {
			return nil
		}
	}
	*all = append(*all, &Known{Name: name, Key: key, verifier: own})
	return nil
}

// Signed notes which of the witnesses have signed a head of so many lines. A wrong signature is as none.
func (all Keys) Signed(head []byte, lines int64, event uint64) {
	for _, k := range all {
		if n, err := note.Open(head, note.VerifierList(k.verifier)); err == nil && lines > k.Lines {
			k.Lines, k.Event, k.Time = lines, event, Time(n.Sigs[0])
		}
	}
}

// Quorum returns the last event below heads that at least k of the witnesses that were given have signed. It returns 0 if there is none.
func (all Keys) Quorum(k int) uint64 {
	var events []uint64
	for _, key := range all {
		if key.Name == "" {
			events = append(events, key.Event)
		}
	}
	if k < 1 || k > len(events) {
		return 0
	}
	slices.Sort(events)
	return events[len(events)-k]
}

// Count returns how many of the witnesses that were given, or of all, have signed a head.
func (all Keys) Count(given bool) (n, of int) {
	for _, k := range all {
		if given && k.Name != "" {
			continue
		}
		if of++; k.Lines > 0 {
			n++
		}
	}
	return n, of
}
