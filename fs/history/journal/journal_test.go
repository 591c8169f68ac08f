package journal

import (
	"encoding/binary"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzCut reads records whose check sum is right, as who writes a journal can make them. What is read is written and read again
// as the same, and a record that is cut short is none.
func FuzzCut(f *testing.F) {
	for _, r := range []Record{
		{Seq: 1, Kind: Begins, Data: []byte("{}")}, {Seq: 2, Kind: Moved, Path: "a", To: "b/c", Program: "mv", PID: 7},
		{Seq: 3, Kind: Attributes, Path: "x", Attr: &Attr{Mode: 0o644, XAttrs: map[string][]byte{"user.x": []byte("y")}}},
	} {
		f.Add(new(Coder).Append(nil, &r)[HeadSize:])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		frame := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
		frame = binary.LittleEndian.AppendUint32(frame, checksum(text))
		frame = append(frame, text...)
		r, rest, err := new(Coder).Cut(append(frame, "next"...))
		if err != nil {
			assert.ErrorIs(t, err, ErrTorn)
			return
		}
		assert.Equal(t, "next", string(rest))
		again, rest, err := new(Coder).Cut(new(Coder).Append(nil, r))
		require.NoError(t, err)
		assert.Empty(t, rest)
		assert.Equal(t, r, again)
		_, _, err = new(Coder).Cut(frame[:len(frame)-1])
		assert.ErrorIs(t, err, ErrTorn)
	})
}

// TestPaths: records of a deep directory are read as they were written, also after others that have no path, and have each name
// once. A record that is read alone has no paths.
func TestPaths(t *testing.T) {
	deep := strings.Repeat("directory/", 200)
	var all []Record
	for n := range 100 {
		all = append(all, Record{Seq: uint64(3*n + 1), Kind: Made, Path: deep + strconv.Itoa(n)}, Record{Seq: uint64(3*n + 2), Kind: Settled},
			Record{Seq: uint64(3*n + 3), Kind: Moved, Path: deep + strconv.Itoa(n), To: "x"})
	}
	var w, r Coder
	var text []byte
	for i := range all {
		text = w.Append(text, &all[i])
	}
	assert.Less(t, len(text), 20_000)
	for rest, i := text, 0; len(rest) > 0; i++ {
		got, after, err := r.Cut(rest)
		require.NoError(t, err)
		assert.Equal(t, []string{all[i].Path, all[i].To}, []string{got.Path, got.To})
		alone, _, err := (*Coder)(nil).Cut(rest)
		require.NoError(t, err)
		assert.Equal(t, []any{got.Seq, ""}, []any{alone.Seq, alone.Path})
		rest = after
	}
}
