package daemon

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// TestManyViews: a user has more views than groups of fanotify. All are mounted and serve; ps says which of them show changes
// by other processes late, and these do show them.
func TestManyViews(t *testing.T) {
	need.Once(t)
	text, err := os.ReadFile("/proc/sys/fs/fanotify/max_user_groups")
	require.NoError(t, err)
	groups, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	if groups > 200 {
		need.Skip(t, "fs.fanotify.max_user_groups is ", groups)
	}
	const uid = 23456 // no other test's
	count := groups + 22
	agents := map[string]string{}
	for i := range count {
		agents[fmt.Sprintf("a%03d", i)] = "view: {allow_other: true}" // root looks
	}
	h := harness.LayOut(t, agents)
	for id := range agents {
		require.NoError(t, os.Chown(h.Scope(id), uid, uid))
	}
	h.Start()
	late := 0
	all := h.PS()
	require.Len(t, all, count)
	for _, a := range all {
		require.Equal(t, "mounted", a.State, a.Error)
		_, err := os.Stat(h.View(a.ID, "made"))
		require.ErrorIs(t, err, os.ErrNotExist, a.ID)
		if a.Late != "" {
			late++
			assert.Contains(t, a.Late, "fs.fanotify.max_user_groups")
		}
		require.NoError(t, os.WriteFile(h.Scope(a.ID, "made"), []byte("x"), 0o644))
	}
	assert.Equal(t, count-groups, late)
	out, _, _ := h.Try("ps")
	assert.Equal(t, late, strings.Count(out, "are seen up to a second late"))
	for id := range agents {
		h.Eventually("what the host has made is seen", func() bool {
			_, err := os.Stat(h.View(id, "made"))
			return err == nil
		})
	}
}
