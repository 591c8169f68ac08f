package tree

import (
	"fmt"
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
