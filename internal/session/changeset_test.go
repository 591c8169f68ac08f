package session

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/account"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// directory is a branch that nobody works on.
type directory struct {
	Branch
	removed atomic.Bool
}

func (*directory) Unmount() {}

func (d *directory) Remove() error {
	if d.removed.Swap(true) {
		return os.ErrNotExist
	}
	return nil
}

// waiting returns a client, and a function that makes a change set that waits for it.
func waiting(t *testing.T) (*client, func(id scope.ID) (oldest *changeSet, ok bool)) {
	dir := t.TempDir()
	log, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, log.Close()) })
	a := &Agent{Shared: &Shared{Host: &account.Host{}}, Daemon: nothing{}, id: "a"}
	channel := log.Channel("a")
	a.channel, a.Logger = func() *audit.Channel { return channel }, slog.New(slog.DiscardHandler)
	c := &client{agent: a, name: "c1"}
	return c, func(id scope.ID) (*changeSet, bool) {
		return c.keep(&changeSet{id: id, by: c, chain: "a>b", branch: &directory{}, turn: make(chan struct{}, 1)})
	}
}

// TestSetsBound: a session has so many change sets, for so long; a session that has ended has none.
func TestSetsBound(t *testing.T) {
	c, keep := waiting(t) // its log has a clock of its own
	synctest.Test(t, func(t *testing.T) {
		for i := range maxSets {
			oldest, ok := keep(scope.ID(rune('a' + i)))
			require.True(t, ok)
			require.Nil(t, oldest)
			time.Sleep(time.Hour)
		}
		oldest, ok := keep("last")
		require.True(t, ok)
		require.Equal(t, scope.ID("a"), oldest.id)
		oldest.drop("there are too many")
		oldest.drop("again")
		assert.True(t, oldest.branch.(*directory).removed.Load())
		_, err := c.changeSet("a")
		e, _ := err.(*tools.Error)
		require.NotNil(t, e)
		assert.Equal(t, "these have: b, c, d, e, f, g, h, last", e.Hint)

		time.Sleep(setAge - maxSets*time.Hour + 30*time.Minute)
		synctest.Wait()
		_, err = c.changeSet("b")
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		_, err = c.changeSet("b")
		require.Error(t, err)
		_, err = c.changeSet("c")
		require.NoError(t, err)

		c.closed = true
		c.dropSets()
		assert.Empty(t, c.sets)
		_, ok = keep("late")
		assert.False(t, ok)
	})
}

// TestSetsBoundSideBySide: tasks that end at the same time have one bound, too.
func TestSetsBoundSideBySide(t *testing.T) {
	c, keep := waiting(t)
	var dropped []scope.ID
	for i := range maxSets + 3 { // none is dropped meanwhile
		oldest, ok := keep(scope.ID(rune('a' + i)))
		require.True(t, ok)
		if oldest != nil {
			dropped = append(dropped, oldest.id)
			defer oldest.drop("there are too many")
		}
	}
	assert.Equal(t, []scope.ID{"a", "b", "c"}, dropped)
	assert.Len(t, c.sets, maxSets)
	c.dropSets()
}
