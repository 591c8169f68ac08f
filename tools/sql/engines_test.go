package sql

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// count is a start that counts.
type count struct {
	Start
	n    atomic.Int32
	last atomic.Pointer[Process]
	gone atomic.Int32 // processes that were waited for
}

func (c *count) start(ctx context.Context, id scope.ID) (*Process, error) {
	c.n.Add(1)
	p, err := c.Start(ctx, id)
	if err == nil {
		wait := p.Wait
		p.Wait = func() error {
			defer c.gone.Add(1)
			return wait()
		}
	}
	c.last.Store(p)
	return p, err
}

func counted(a agent) *count {
	c := &count{Start: a.engines().start}
	a.engines().start = c.start
	return c
}

// The kernel kills the process while it writes, again and again. What was answered is
// there, no statement is there in part, and the file is sound.
func TestKilledWhileWriting(t *testing.T) {
	need.Long(t, "kills a process many times")
	a := newAgent(t, Limits{}, false)
	c := counted(a)
	a.must(t, "CREATE TABLE t (round INTEGER, x INTEGER, pad TEXT)", "CREATE INDEX i ON t (x)")
	const rowsEach = 5000 // so that a statement takes longer than a kill
	acked, killed := 0, 0
	took := 200 * time.Millisecond // by the last statement that was answered
	for round := range need.Rounds("SCOPEFS_TEST_SQL_KILLS", 12, 40) {
		p := c.last.Load()
		began := time.Now()
		kill := time.AfterFunc(rand.N(2*took), p.Kill)
		_, err := a.execSQL(fmt.Sprintf("INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < %d) SELECT ?, i, hex(randomblob(100)) FROM n", rowsEach), round)
		switch {
		case err == nil:
			acked++
			took = time.Since(began)
		case outcomeOf(err) == "unavailable":
			killed++
		default:
			t.Fatal(err)
		}
		kill.Stop()
		out, err := a.querySQL("SELECT count(*) FROM (SELECT round, count(*) AS n FROM t GROUP BY round) WHERE n <> 5000")
		require.Equal(t, "[[0]]", rows(t, out, err), "a statement is there in part")
	}
	out, err := a.querySQL("SELECT count(DISTINCT round) FROM t")
	var there int
	_, err2 := fmt.Sscanf(rows(t, out, err), "[[%d]]", &there)
	require.NoError(t, err2)
	assert.GreaterOrEqual(t, there, acked)
	assert.LessOrEqual(t, there, acked+killed)
	t.Logf("%d answered, %d killed, %d there", acked, killed, there)
	require.NotZero(t, killed, "no kill came in time")
	require.NoError(t, a.engines().Close())
	assert.Equal(t, "ok", integrity(t, a.file))
}

// The process that a call finds dead is replaced, and the caller does not notice.
func TestDeadWhileIdle(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	c := counted(a)
	a.must(t, "CREATE TABLE t (x)")
	for i := range 3 {
		p := c.last.Load()
		p.Kill()
		_ = p.Wait()
		out, err := a.querySQL("SELECT count(*) FROM t")
		assert.Equal(t, "[[0]]", rows(t, out, err))
		assert.EqualValues(t, i+2, c.n.Load())
	}
}

func TestIdleProcessEnds(t *testing.T) {
	a := newAgent(t, Limits{Idle: 20 * time.Millisecond}, false)
	c := counted(a)
	a.must(t, "CREATE TABLE t (x)")
	require.Eventually(t, func() bool { return c.gone.Load() == 1 }, 20*time.Second, time.Millisecond)
	a.must(t, "INSERT INTO t VALUES (1)")
	assert.GreaterOrEqual(t, c.n.Load(), int32(2))
}

// Calls of one agent take turns. A call that is cancelled ends, with its statement.
func TestCancel(t *testing.T) {
	a := newAgent(t, Limits{Timeout: time.Hour}, false)
	a.must(t, "CREATE TABLE t (x)")
	const forever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i FROM n WHERE i < 0"
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := a.query(ctx, a.env(), queryArgs{SQL: forever})
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return len(a.engines().agents["a"].turn) == 1 }, 20*time.Second, time.Millisecond)
	cancel()
	for range 2 {
		assert.ErrorIs(t, <-ended, context.Canceled)
	}
	a.must(t, "INSERT INTO t VALUES (1)")

	// The end of the agent's sessions, and of the daemon.
	for _, end := range []func(){func() { a.engines().End("a") }, func() { _ = a.engines().Close() }} {
		a.must(t, "INSERT INTO t VALUES (1)")
		var all sync.WaitGroup
		began := make(chan struct{})
		all.Go(func() {
			close(began)
			_, err := a.query(t.Context(), a.env(), queryArgs{SQL: forever})
			assert.Equal(t, "unavailable", outcomeOf(err))
		})
		<-began
		require.Eventually(t, func() bool { return len(a.engines().agents["a"].turn) == 1 }, 20*time.Second, time.Millisecond)
		end()
		all.Wait()
	}
	_, err := a.querySQL("SELECT 1")
	assert.Equal(t, "unavailable", outcomeOf(err), "closed")
}

// A process that does not answer in time is killed.
func TestHangs(t *testing.T) {
	need.Long(t, "waits for time limits")
	ready := frame(`{"means":["x"]}`)
	const hang = "exec sleep 1000"
	for name, test := range map[string]struct{ script, want string }{
		"says nothing":       {hang, "unavailable"},
		"ends":               {"exit 1", "unavailable"},
		"not confined":       {frame(`{}`) + hang, "unavailable"},
		"unknown field":      {frame(`{"evil":1}`) + hang, "unavailable"},
		"huge frame":         {`printf '\377\377\377\377';` + hang, "unavailable"},
		"fails":              {frame(`{"error":{"code":"failed","message":"/etc/shadow!"}}`) + hang, "unavailable"},
		"then nothing":       {ready + hang, "too_large"},
		"then the end":       {ready, "unavailable"},
		"then unknown code":  {ready + frame(`{"error":{"code":"evil","message":""}}`) + hang, "unavailable"},
		"then too many rows": {ready + frame(`{"columns":["a"],"rows":[[1],[2],[3]]}`) + hang, "unavailable"},
		"then a short row":   {ready + frame(`{"columns":["a"],"rows":[[  ]]}`) + hang, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &count{Start: func(context.Context, scope.ID) (*Process, error) {
				return run(exec.Command("/bin/sh", "-c", test.script))
			}}
			e := NewEngines(c.start, Limits{Timeout: time.Millisecond})
			defer e.Close()
			ctx, cancel := t.Context(), func() {}
			if test.script == hang { // the bound on starting is longer than a test is
				ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
			}
			defer cancel()
			_, err := e.Do(ctx, "a", engine.Request{Op: engine.Query, SQL: "SELECT 1", Limit: 2})
			if test.script == hang {
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				return
			}
			assert.Equal(t, test.want, outcomeOf(err), "%v", err)
			assert.NotContains(t, err.Error(), "/etc")
			assert.EqualValues(t, 1, c.gone.Load(), "it was waited for")
		})
	}
}

// frame returns a command that prints a frame.
func frame(text string) string {
	return fmt.Sprintf(`printf '\%03o\000\000\000%%s' '%s';`, len(text), text)
}

func TestFilesAreTheAgents(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	a.must(t, "CREATE TABLE t (x)")
	dir, err := os.Stat(filepath.Dir(a.file))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), dir.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(a.file))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), e.Name())
		names = append(names, e.Name())
	}
	assert.Equal(t, []string{"agent_a.db", "agent_a.db-journal"}, names)

	// A link or another kind of file in its place is refused.
	b := a
	b.id = "b"
	other := strings.Replace(a.file, "agent_a", "agent_b", 1)
	for name, put := range map[string]func() error{
		"symlink":   func() error { return os.Symlink(a.file, other) },
		"hard link": func() error { return os.Link(a.file, other) },
		"directory": func() error { return os.Mkdir(other, 0o700) },
	} {
		require.NoError(t, put(), name)
		_, err := b.querySQL("SELECT * FROM t")
		assert.Equal(t, "unavailable", outcomeOf(err), name)
		assert.NotContains(t, err.Error(), other)
		require.NoError(t, os.Remove(other))
	}
	require.NoError(t, os.WriteFile(other, []byte(strings.Repeat("no database\n", 1000)), 0o600))
	_, err = b.querySQL("SELECT * FROM sqlite_schema")
	assert.Equal(t, "unavailable", outcomeOf(err), "a file that is no database")
}

// TestOrphan: a process whose daemon is gone ends, also while a statement runs.
func TestOrphan(t *testing.T) {
	a := newAgent(t, Limits{Timeout: 10 * time.Minute}, false)
	c := counted(a)
	a.must(t, "CREATE TABLE t (x INTEGER)")
	ended := make(chan error, 1)
	go func() {
		_, err := a.execSQL("INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n")
		ended <- err
	}()
	p := c.last.Load()
	time.AfterFunc(200*time.Millisecond, func() { p.In.Close() })
	select {
	case err := <-ended:
		assert.Equal(t, "unavailable", outcomeOf(err))
	case <-time.After(20 * time.Second):
		t.Error("the process runs on")
		p.Kill()
	}
	got, err := a.querySQL("SELECT count(*) FROM t")
	assert.Contains(t, rows(t, got, err), "0")
}
