package attack

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestAttackSearchTaken: a user is in a directory that other users use all the time. The host
// takes the search permission on the directory above. The view checks it for each caller.
func TestAttackSearchTaken(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"taken": "identity: caller\nview: {allow_other: true}"})
	harness.Plant(t, h.Scope("taken"), "up/d/f")
	require.NoError(t, os.Chmod(h.Scope("taken", "up/d"), 0o777))
	require.NoError(t, os.Chmod(h.Scope("taken", "up/d/f"), 0o666))
	h.Start()
	cmd := h.RoleAs(5001, h.Base, "hold", h.View("taken", "up/d"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	next := harness.Stream(t, cmd)
	require.Equal(t, "held", next())
	tell := func(op string) string {
		_, err := fmt.Fprintln(in, op)
		require.NoError(t, err)
		return strings.TrimSpace(next())
	}
	require.Equal(t, "ENOENT", tell("stat c"))
	require.NoError(t, os.Chmod(h.Scope("taken", "up"), 0o700))
	for i, op := range []string{"stat absent", "stat none", "create n", "unlink f", "mkdir m", "rename f g"} {
		// A lookup changes nothing: the kernel asks for no attributes or ACL of the directory,
		// which would be refused first.
		require.Equal(t, []string{"ENOENT"}, harness.HostOps(t, h.View("taken", "up/d"), fmt.Sprintf("stat r%d", i)), "root")
		assert.Equal(t, "EACCES", tell(op), op)
	}
	require.NoError(t, os.Chmod(h.Scope("taken", "up"), 0o755))
	assert.Equal(t, "ok", tell("create n"))
}

// TestRenamedAbove: clients rename the directory above one that another client has open. The
// attributes of that one can be read at any time.
func TestRenamedAbove(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"renamed": "view: {cache: none}"})
	harness.Plant(t, h.Scope("renamed"), "a/d/e/f")
	h.Start()
	fd, err := unix.Open(h.View("renamed", "a/d/e"), unix.O_PATH|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	end := time.Now().Add(3 * time.Second)
	renamed := make(chan error, 1)
	go func() {
		from, to := h.View("renamed", "a"), h.View("renamed", "b")
		var err error
		for err == nil && time.Now().Before(end) {
			err = unix.Rename(from, to)
			from, to = to, from
		}
		renamed <- err
	}()
	got := map[string]int{}
	for time.Now().Before(end) {
		var st unix.Statx_t
		got[harness.ErrnoOf(unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st))]++
	}
	assert.NoError(t, <-renamed)
	assert.Positive(t, got["ok"])
	delete(got, "ok")
	assert.Empty(t, got)
}
