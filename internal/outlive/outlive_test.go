package outlive

import (
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/holder/wire"
)

// TestShortened: a long command line ends after a word, so that no half of a secret is left that the log would not know.
func TestShortened(t *testing.T) {
	for name, test := range map[string]struct{ command, want string }{
		"short":      {"a b", "a b"},
		"as long":    {strings.Repeat("x", maxCommand), strings.Repeat("x", maxCommand)},
		"two words":  {"first " + strings.Repeat("x", maxCommand), "first …"},
		"one word":   {strings.Repeat("x", maxCommand+1), " …"},
		"the border": {strings.Repeat("x", maxCommand-3) + " secret", strings.Repeat("x", maxCommand-3) + " …"},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, test.want, shortened(test.command)) })
	}
}

// logFunc is a Log.
type logFunc func(audit.Event)

func (f logFunc) Event(e audit.Event) { f(e) }

// TestRecordExitOnce: the end of a command is recorded once, also when its sandbox ends at the same time, and of all copies of its item.
func TestRecordExitOnce(t *testing.T) {
	meta, err := json.Marshal(Sandbox{Protocol: protocol, Agent: "b", Name: "1-1", Parent: "c1-1", Task: &Task{Caller: "a"}})
	require.NoError(t, err)
	all := Items([]*holder.Place{{Kind: wire.Sandbox, Meta: meta}}, slog.New(slog.DiscardHandler))
	require.Len(t, all, 1)
	one, other := all[0], all[0]
	var mu sync.Mutex
	ends := 0
	log := logFunc(func(e audit.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Op == "exec" {
			ends++
		}
	})
	var both sync.WaitGroup
	both.Go(func() { one.RecordExit(log, t.TempDir(), "exit 0") })
	both.Go(func() { one.RecordEnd(log, t.TempDir(), "") })
	both.Go(func() { other.RecordExit(log, t.TempDir(), EndedWith) })
	both.Wait()
	assert.Equal(t, 1, ends)
}
