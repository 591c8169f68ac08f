// Package history tests what a view with `changes: kept` keeps and takes back: on real mounts, by several processes, after
// crashes and against attackers.
package history

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/history"
	"github.com/scopefs/scopefs/fs/history/query"
	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
)

func TestMain(m *testing.M) { harness.Main(m) }

// rounds returns how many rounds a test runs: the number of an environment variable, in make test-all all, else a third.
func rounds(name string, all int) int { return need.Rounds(name, (all+2)/3, all) }

// keeper is a host, and a client of its control API.
type keeper struct {
	*harness.Host
	client *api.Client
}

func keep(t *testing.T, agents map[string]string) *keeper {
	t.Helper()
	return started(harness.LayOut(t, agents))
}

// started starts the daemon of a host.
func started(h *harness.Host) *keeper {
	h.T.Helper()
	for _, name := range []string{"SCOPEFS_TEST_HISTORY_SEEDS", "SCOPEFS_TEST_HISTORY_CRASHES", "SCOPEFS_TEST_HISTORY_RACES"} {
		h.Timeout += time.Duration(rounds(name, 0)) * 10 * time.Second
	}
	h.Start()
	return keeperOf(h)
}

func keeperOf(h *harness.Host) *keeper {
	return &keeper{h, api.NewClient(config.Paths{Base: h.Base, State: h.Base + "/state", Run: h.Base + "/run"})}
}

// ask sends a request about the history of an agent.
func (k *keeper) ask(id scope.ID, r query.Request) (reply query.Reply, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return reply, err
	}
	answer, err := k.client.History(k.T.Context(), id, text)
	if err != nil {
		return reply, err
	}
	return reply, json.Unmarshal(answer, &reply)
}

func (k *keeper) must(id scope.ID, r query.Request) query.Reply {
	k.T.Helper()
	reply, err := k.ask(id, r)
	require.NoError(k.T, err)
	return reply
}

func (k *keeper) checkpoint(id scope.ID, name string) {
	k.T.Helper()
	k.must(id, query.Request{Checkpoint: &name})
}

// undo takes everything after a checkpoint back. It returns the conflicts, and what was not kept.
func (k *keeper) undo(id scope.ID, name string) (problems []string) {
	k.T.Helper()
	return k.undoing(id, history.Selection{Checkpoint: name})
}

func (k *keeper) undoing(id scope.ID, sel history.Selection) (problems []string) {
	k.T.Helper()
	reply, err := k.ask(id, query.Request{Undo: &sel})
	if err != nil && strings.Contains(err.Error(), "nothing was changed") {
		return nil
	}
	require.NoError(k.T, err)
	return problemsOf(reply)
}

func problemsOf(reply query.Reply) (problems []string) {
	for _, e := range reply.Entries {
		if e.Conflict != nil {
			problems = append(problems, "conflict: "+e.Conflict.Path+": "+e.Conflict.Why)
		}
		if e.Unkept != nil {
			problems = append(problems, "not kept: "+e.Unkept.Path+": "+e.Unkept.Why)
		}
	}
	return problems
}

// errnoOf is harness.ErrnoOf for errors of package os as well.
func errnoOf(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return harness.ErrnoOf(err)
}

func scopeID(id string) scope.ID { return scope.ID(id) }
