package fs

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestKept: several threads use, replace and drop directories. None is closed while it is used,
// and in the end none is open.
func TestKept(t *testing.T) {
	base := t.TempDir()
	const dirs = 16
	k := kept{dirs: make([]*keptDir, dirs/2)}
	nodes := make([]*node, dirs)
	for i := range nodes {
		name := filepath.Join(base, strconv.Itoa(i))
		require.NoError(t, os.Mkdir(name, 0o755))
		var st unix.Stat_t
		require.NoError(t, unix.Stat(name, &st))
		nodes[i] = &node{ident: beneath.FileID{Ino: st.Ino}}
	}
	root, err := beneath.OpenRoot(base, ".")
	require.NoError(t, err)
	defer root.Close()
	var users sync.WaitGroup
	for i := range 6 {
		users.Go(func() {
			for round := range 5_000 {
				at := (i + round*7) % dirs
				n := nodes[at]
				switch round % 97 {
				case 3:
					k.dropAll()
				case 5, 17:
					k.drop(n)
				}
				d := k.take(n)
				if d == nil {
					dir, err := root.Dir(strconv.Itoa(at))
					if !assert.NoError(t, err) {
						return
					}
					d = k.add(n, dir)
				}
				st, err := d.Self().Stat()
				if !assert.NoError(t, err) || !assert.Equal(t, n.ident.Ino, st.Ino, "another directory has its descriptor") {
					return
				}
				k.give(d)
			}
		})
	}
	users.Wait()
	k.dropAll()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range open {
		to, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		assert.NotContains(t, to, base+"/")
	}
}
