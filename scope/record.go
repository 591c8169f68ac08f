package scope

import (
	"fmt"
	"slices"
)

// Record selects the allowed file operations to record. Each level includes the
// ones before it. Denials are always recorded.
type Record uint8

// The levels of recording.
const (
	RecordDenials Record = iota // the default
	RecordWrites
	RecordOpens
	RecordAll
	recordCount
)

var recordNames = [recordCount]string{"denials", "writes", "opens", "all"}

// String returns the name used in a definition.
func (r Record) String() string {
	if r < recordCount {
		return recordNames[r]
	}
	return fmt.Sprintf("record(%d)", uint8(r))
}

// MarshalText returns the name used in a definition.
func (r Record) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses "denials", "writes", "opens" or "all".
func (r *Record) UnmarshalText(text []byte) error {
	i := slices.Index(recordNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown record %q: want denials, writes, opens or all", text)
	}
	*r = Record(i)
	return nil
}
