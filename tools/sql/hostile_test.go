package sql

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// hostile is a line of testdata/hostile.txt.
type hostile struct {
	line                int
	outcome, tool, text string
}

func readHostile(t testing.TB) (all []hostile) {
	t.Helper()
	f, err := os.Open("testdata/hostile.txt")
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.SplitN(line, " ", 3)
		require.Len(t, fields, 3, "line %d", n)
		h := hostile{n, fields[0], fields[1], fields[2]}
		if h.text[0] == '"' {
			h.text, err = strconv.Unquote(h.text)
			require.NoError(t, err, "line %d", n)
		}
		all = append(all, h)
	}
	require.NoError(t, lines.Err())
	return all
}

const canary = "SELECT (SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema ORDER BY name)), (SELECT group_concat(x || y) FROM t), (SELECT count(*) FROM child)"

func setUp(t testing.TB, a agent) (want string) {
	a.must(t, "CREATE TABLE t (x INTEGER PRIMARY KEY AUTOINCREMENT, y TEXT NOT NULL)", "INSERT INTO t (y) VALUES ('one'), ('two')",
		"CREATE VIEW v AS SELECT y FROM t", "CREATE INDEX i ON t (y)", "CREATE TABLE child (x INTEGER REFERENCES t (x))")
	p, err := a.querySQL(canary)
	return rows(t, p, err)
}

func TestHostileStatements(t *testing.T) {
	all := readHostile(t)
	require.GreaterOrEqual(t, len(all), 200)
	a := newAgent(t, Limits{FileBytes: 4 << 20}, false)
	want := setUp(t, a)
	for _, h := range all {
		if h.tool == "s" {
			continue
		}
		dropper := a
		dropper.Drop = h.tool == "d"
		// Not by JSON, which would repair text that is not UTF-8.
		var err error
		if h.tool == "q" {
			_, err = a.query(t.Context(), a.env(), queryArgs{SQL: h.text})
		} else {
			_, err = dropper.execute(t.Context(), a.env(), executeArgs{SQL: h.text})
		}
		if got := outcomeOf(err); got != h.outcome {
			t.Errorf("line %d: %s: want %s: %v: %v", h.line, h.text, h.outcome, err, errors.Unwrap(err))
		}
		p, err := a.querySQL(canary)
		require.Equal(t, want, rows(t, p, err), "line %d: %s", h.line, h.text)
	}
}

func outcomeOf(err error) string {
	if err == nil {
		return "ok"
	}
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return string(e.Code)
	}
	return err.Error()
}

// Statements that take too long are ended, and the same process answers the next.
func TestSlowStatements(t *testing.T) {
	a := newAgent(t, Limits{Timeout: 300 * time.Millisecond}, false)
	for _, h := range readHostile(t) {
		if h.tool != "s" {
			continue
		}
		_, err := a.querySQL(h.text)
		assert.Equal(t, h.outcome, outcomeOf(err), "line %d: %s: %v", h.line, h.text, err)
	}
	a.must(t, "CREATE TABLE t (x INTEGER)")
	_, err := a.execSQL("INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i FROM n")
	assert.Equal(t, "too_large", outcomeOf(err))
	p, err := a.querySQL("SELECT count(*) FROM t")
	assert.Equal(t, "[[0]]", rows(t, p, err), "nothing half done")
}

// The engine refuses hostile statements without the tokenizer, whatever operation they
// are sent as.
func TestEngineAlone(t *testing.T) {
	a := newAgent(t, Limits{FileBytes: 4 << 20}, false)
	want := setUp(t, a)
	send := func(op engine.Op, text string) error {
		_, err := a.Engine.Do(t.Context(), a.id, engine.Request{Op: op, SQL: text, Limit: 1})
		return err
	}
	for _, h := range readHostile(t) {
		if _, err := parse(h.text, false); err != nil && strings.Contains(err.Error(), "one statement in a call") {
			continue // the engine runs the first one, which alone may be allowed
		}
		if h.outcome != "denied" && (h.outcome != "conflict" || h.tool != "x") || h.tool == "d" {
			continue
		}
		if strings.HasPrefix(h.text, "EXPLAIN") || h.tool == "q" && strings.HasPrefix(h.text, "WITH a AS (SELECT 1)") {
			continue // they change nothing; sql_execute may run them
		}
		assert.Error(t, send(engine.Query, h.text), "line %d: %s", h.line, h.text)
		if h.outcome == "denied" {
			assert.Error(t, send(engine.Change, h.text), "line %d: %s", h.line, h.text)
		}
		// With Define the engine itself writes the schema, so that it allows more of
		// SQLite's own tables: all are the agent's.
		if h.outcome == "denied" && !strings.HasPrefix(h.text, "REINDEX") && !strings.Contains(h.text, " sqlite_") && !strings.Contains(h.text, "temp.sqlite_master") {
			assert.Error(t, send(engine.Define, h.text), "line %d: %s", h.line, h.text)
		}
	}
	p, err := a.querySQL(canary)
	assert.Equal(t, want, rows(t, p, err))
	assert.Error(t, send(own, canary), "the engine's own operation")
	assert.Error(t, send("", canary))
}

const own engine.Op = "own"
