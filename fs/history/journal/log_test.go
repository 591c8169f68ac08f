package journal

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/beneath"
)

// TestLogTorn: a log that was cut off anywhere has the entries before, and takes others.
func TestLogTorn(t *testing.T) {
	for name, form := range map[string]Form{"frames": Frames, "lines": Lines, "of six bytes": 6} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			root, err := beneath.OpenDir(top)
			require.NoError(t, err)
			defer root.Close()
			dir, err := root.Dir("")
			require.NoError(t, err)
			defer dir.Close()
			open := func() (l *Log, all []string) {
				l, err := OpenLog(dir, "log", form, true, func(entry []byte) bool {
					all = append(all, string(entry))
					return len(entry) == 6 // else it is torn
				})
				require.NoError(t, err)
				return l, all
			}
			l, _ := open()
			require.NoError(t, l.Append([]byte("first1"), []byte("second")))
			one := l.Size() / 2
			l.Close()
			whole, err := os.ReadFile(top + "/log")
			require.NoError(t, err)
			for size := range whole {
				require.NoError(t, os.WriteFile(top+"/log", whole[:size], 0o600))
				l, _ := open()
				require.NoError(t, l.Append([]byte("third3")))
				l.Close()
				l, all := open()
				l.Close()
				want := []string{"first1", "third3"}
				if int64(size) < one {
					want = want[1:]
				}
				assert.Equal(t, want, all, "%d bytes", size)
			}
		})
	}
}
