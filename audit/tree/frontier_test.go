package tree

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"
)

// TestFrontier compares with tlog's own tree.
func TestFrontier(t *testing.T) {
	var f Frontier
	var stored []tlog.Hash
	reader := tlog.HashReaderFunc(func(indexes []int64) (hashes []tlog.Hash, err error) {
		for _, i := range indexes {
			hashes = append(hashes, stored[i])
		}
		return hashes, nil
	})
	blocks := 0
	for n := range int64(3*BlockLines + 7) {
		root, err := tlog.TreeHash(n, reader)
		require.NoError(t, err)
		require.Equal(t, root, f.Root(), n)
		data := []byte(fmt.Sprint("line ", n))
		more, err := tlog.StoredHashes(n, data, reader)
		require.NoError(t, err)
		stored = append(stored, more...)
		block, complete := f.Add(tlog.RecordHash(data))
		require.Equal(t, (n+1)%BlockLines == 0, complete)
		if complete {
			require.Equal(t, stored[tlog.StoredHashIndex(BlockLevel, n/BlockLines)], block)
			blocks++
		}
		p := Position{Offset: n * 3, Boot: 7, Counts: Counts{Denied: n, Begun: 1, Unknown: 2, Lost: 3}, Tree: f}
		again, err := DecodePosition(p.Encode())
		require.NoError(t, err)
		require.Equal(t, p, again)
		for level := range 12 {
			for at := n>>level - 2; at <= n>>level+1; at++ {
				if h, ok := f.Peak(level, at); ok {
					require.Equal(t, stored[tlog.StoredHashIndex(level, at)], h)
				}
			}
		}
	}
	assert.Equal(t, 3, blocks)
}

func TestDecodePositionDamaged(t *testing.T) {
	b := Position{Tree: Frontier{Size: 3, Peaks: make([]tlog.Hash, 2)}}.Encode()
	for i := range b {
		b[i] ^= 1
		_, err := DecodePosition(b)
		require.Error(t, err)
		b[i] ^= 1
	}
	_, err := DecodePosition(b[1:])
	require.Error(t, err)
}

// FuzzDecodePosition: a position of any numbers and hashes is encoded and decoded as the same, and a damaged one is refused.
func FuzzDecodePosition(f *testing.F) {
	f.Add(Position{Offset: 3, Counts: Counts{Denied: 1}}.Encode()[:100], 5)
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\x7f"), 4000)
	f.Fuzz(func(t *testing.T, b []byte, damage int) {
		whole := append(b[:min(len(b), PositionSize-4):min(len(b), PositionSize-4)], make([]byte, PositionSize)...)[:PositionSize-4]
		whole = binary.LittleEndian.AppendUint32(whole, crc32.ChecksumIEEE(whole))
		p, err := DecodePosition(whole)
		if err == nil {
			again, err := DecodePosition(p.Encode())
			require.NoError(t, err)
			require.Equal(t, p, again)
			_ = p.Tree.Root()
		}
		whole[uint(damage)%PositionSize] ^= 1
		_, err = DecodePosition(whole)
		require.Error(t, err)
	})
}
