package sandbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// Whenever a start is given up, nothing of it stays: bwrap's child, which waits
// for a word of bwrap, would do so for ever.
func TestCancelledStart(t *testing.T) {
	need.Long(t, "starts sandboxes many times")
	needRoot(t, "it counts the processes of a user of its own")
	uid := 104729 + os.Getpid() // nobody else's
	h := newHost(t)
	_, view := newView(t, uid)
	for i := range 300 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*20*time.Microsecond)
		s, err := h.Start(ctx, Spec{Agent: "a", UID: uint32(uid), GID: uint32(uid), View: view})
		cancel()
		if err == nil {
			require.NoError(t, s.Close())
		}
	}
	processes := func() (all []string) {
		list, err := filepath.Glob("/proc/[0-9]*/status")
		require.NoError(t, err)
		for _, name := range list {
			if text, _ := os.ReadFile(name); strings.Contains(string(text), fmt.Sprintf("\nUid:\t%d\t", uid)) {
				all = append(all, string(text))
			}
		}
		return all
	}
	assert.Eventually(t, func() bool { return len(processes()) == 0 }, 20*time.Second, 10*time.Millisecond)
}
