package journal

import (
	"encoding/binary"
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
		f.Add(Append(nil, &r)[HeadSize:])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		frame := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
		frame = binary.LittleEndian.AppendUint32(frame, checksum(text))
		frame = append(frame, text...)
		r, rest, err := Cut(append(frame, "next"...))
		if err != nil {
			assert.ErrorIs(t, err, ErrTorn)
			return
		}
		assert.Equal(t, "next", string(rest))
		again, rest, err := Cut(Append(nil, r))
		require.NoError(t, err)
		assert.Empty(t, rest)
		assert.Equal(t, r, again)
		_, _, err = Cut(frame[:len(frame)-1])
		assert.ErrorIs(t, err, ErrTorn)
	})
}
