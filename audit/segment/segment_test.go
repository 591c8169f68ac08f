package segment

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestListWhilePacked: the list of a directory has each segment that is compressed while it is read.
func TestListWhilePacked(t *testing.T) {
	const count = 2000
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	for n := range count {
		require.NoError(t, root.WriteFile(Name(n+1), nil, 0o600))
	}
	packed := make(chan error, 1)
	go func() {
		for n := range count {
			seg := Segment{n + 1, true}
			err := root.WriteFile(seg.Name(), nil, 0o600)
			if err == nil {
				err = root.Remove(Name(seg.Number))
			}
			if err != nil {
				packed <- err
				return
			}
		}
		packed <- nil
	}()
	for ended := false; !ended; {
		select {
		case err := <-packed:
			require.NoError(t, err)
			ended = true
		default:
		}
		all, err := List(root)
		require.NoError(t, err)
		require.Equal(t, count, len(all)) // Len would print them
		require.True(t, slices.IsSortedFunc(all, func(a, b Segment) int { return a.Number - b.Number }))
	}
}
