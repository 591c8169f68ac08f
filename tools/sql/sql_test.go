package sql

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTools(t *testing.T) {
	all, err := New(Options{Engine: NewEngines(nil, Limits{})})
	require.NoError(t, err)
	writes := map[string]bool{}
	for _, tool := range all {
		writes[tool.Name] = tool.Hints.Writes
	}
	assert.Equal(t, map[string]bool{"sql_query": false, "sql_tables": false, "sql_execute": true, "create_table": true}, writes)
	_, err = New(Options{})
	assert.Error(t, err)
}

// A value that goes in comes out: parameters are bound.
func TestValues(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	a.must(t, "CREATE TABLE t (n INTEGER PRIMARY KEY, v)")
	for i, test := range []struct{ in, out, kind string }{
		{`null`, `null`, "null"},
		{`true`, `1`, "integer"},
		{`false`, `0`, "integer"},
		{`9223372036854775807`, `9223372036854775807`, "integer"},
		{`-9223372036854775808`, `-9223372036854775808`, "integer"},
		{`9007199254740993`, `9007199254740993`, "integer"},
		{`9223372036854775808`, `9.223372036854776e+18`, "real"},
		{`1.0`, `1.0`, "real"},
		{`1e3`, `1000.0`, "real"},
		{`0.1`, `0.1`, "real"},
		{`""`, `""`, "text"},
		{`"'); DROP TABLE t; --"`, `"'); DROP TABLE t; --"`, "text"},
		{`"a\u0000b"`, `"a\u0000b"`, "text"},
		{`"2024-01-02"`, `"2024-01-02"`, "text"},
		{`"日本 \ud83d\ude00"`, `"日本 😀"`, "text"},
		{`{"blob":"AAEC/w=="}`, `{"blob":"AAEC/w=="}`, "blob"},
		{`{"blob":""}`, `{"blob":""}`, "blob"},
	} {
		_, err := a.execSQL("INSERT INTO t VALUES (?, ?)", i, json.RawMessage(test.in))
		require.NoError(t, err, test.in)
		p, err := a.querySQL("SELECT v, typeof(v) FROM t WHERE n = ?", i)
		assert.Equal(t, fmt.Sprintf("[[%s,%q]]", test.out, test.kind), rows(t, p, err))
	}
	for _, wrong := range []string{`{}`, `{"blob":1}`, `{"blob":"!"}`, `{"blob":"","x":1}`, `[1]`, `{"a":{}}`} {
		_, err := a.querySQL("SELECT ?", json.RawMessage(wrong))
		assert.Error(t, err, wrong)
	}
	p, err := a.querySQL("SELECT 9e999, -9e999, 9e999 - 9e999, CAST(x'ff41' AS TEXT)")
	assert.Equal(t, "[[\"Infinity\",\"-Infinity\",null,\"\uFFFDA\"]]", rows(t, p, err))
	p, err = a.querySQL("SELECT ?2, ?1, ?2", "one", "two")
	assert.Equal(t, `[["two","one","two"]]`, rows(t, p, err))
	for _, params := range [][]any{{}, {1}, {1, 2, 3}} {
		_, err = a.querySQL("SELECT ?, ?", params...)
		assert.Equal(t, "invalid", outcomeOf(err))
	}
}

func TestPages(t *testing.T) {
	a := newAgent(t, Limits{PageBytes: 20_000}, false)
	in := queryArgs{SQL: "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 250) SELECT i FROM n"}
	var sizes []int
	seen := 0
	for {
		p, err := a.query(t.Context(), a.env(), in)
		require.NoError(t, err)
		sizes = append(sizes, len(p.Shown))
		for _, row := range p.Shown {
			seen++
			text, err := json.Marshal(row[0])
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(seen), string(text))
		}
		if in.Cursor = p.NextCursor; in.Cursor == "" {
			break
		}
	}
	assert.Equal(t, []int{100, 100, 50}, sizes)

	p, err := a.query(t.Context(), a.env(), queryArgs{SQL: "VALUES (1), (2)", Limit: 1})
	require.NoError(t, err)
	for _, cursor := range []string{p.NextCursor + "0", "x", "-1", "1-", "9223372036854775808-0"} {
		_, err := a.query(t.Context(), a.env(), queryArgs{SQL: "VALUES (1), (2)", Cursor: cursor})
		assert.Equal(t, "invalid", outcomeOf(err), cursor)
	}
	_, err = a.query(t.Context(), a.env(), queryArgs{SQL: "VALUES (1), (3)", Cursor: p.NextCursor})
	assert.Equal(t, "invalid", outcomeOf(err), "of another query")

	// A page ends before it has too many bytes.
	p, err = a.querySQL("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 9) SELECT hex(zeroblob(3000)) FROM n")
	require.NoError(t, err)
	assert.Len(t, p.Shown, 3)
	assert.NotEmpty(t, p.NextCursor)

	// The largest page fits its frame, whatever is escaped.
	a = newAgent(t, Limits{PageBytes: math.MaxInt, ValueBytes: math.MaxInt}, false)
	_, err = a.querySQL("SELECT CAST(zeroblob(1000000) AS TEXT)")
	assert.NoError(t, err)
}

func TestTables(t *testing.T) {
	a := newAgent(t, Limits{}, true)
	list := func(cursor string) listing {
		out, err := a.tables(t.Context(), a.env(), tablesArgs{cursor})
		require.NoError(t, err)
		return out
	}
	assert.Equal(t, listing{Tables: list("").Tables}, list(""))
	assert.Empty(t, list("").Tables)
	_, err := a.create(t.Context(), a.env(), createArgs{Name: "order", Columns: []column{
		{Name: "id", Type: "INTEGER", PrimaryKey: true}, {Name: "group", Type: "TEXT", NotNull: true, Unique: true}, {Name: "done", Type: "BOOLEAN"}}})
	require.NoError(t, err)
	a.must(t, `CREATE VIEW v AS SELECT "group" FROM "order"`, "CREATE TABLE gone (x)", "CREATE VIEW w AS SELECT * FROM gone", "DROP TABLE gone")
	text, err := json.Marshal(list(""))
	require.NoError(t, err)
	assert.JSONEq(t, `{"tables": [
		{"name": "order", "kind": "table", "columns": [{"name": "id", "type": "INTEGER", "primary_key": true}, {"name": "group", "type": "TEXT", "not_null": true}, {"name": "done", "type": "BOOLEAN"}]},
		{"name": "v", "kind": "view", "columns": [{"name": "group", "type": "TEXT"}]},
		{"name": "w", "kind": "view", "columns": []}]}`, string(text))

	for i := range 205 {
		a.must(t, fmt.Sprintf("CREATE TABLE a%03d (x)", i))
	}
	first := list("")
	require.Len(t, first.Tables, 200)
	second := list(first.NextCursor)
	assert.Equal(t, "a200", second.Tables[0].Name)
	assert.Len(t, second.Tables, 8)
	assert.Empty(t, second.NextCursor)
}

func TestCreateTable(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	x := column{Name: "x", Type: "TEXT"}
	for name, test := range map[string]struct {
		in   createArgs
		want string
	}{
		"one key":         {createArgs{"a", []column{{Name: "k", Type: "INTEGER", PrimaryKey: true}, x}}, "ok"},
		"two keys":        {createArgs{"b", []column{{Name: "k", Type: "INTEGER", PrimaryKey: true}, {Name: "l", Type: "REAL", PrimaryKey: true, NotNull: true}}}, "ok"},
		"a keyword":       {createArgs{"select", []column{{Name: "from", Type: "BLOB"}}}, "ok"},
		"a function":      {createArgs{"json_each", []column{x}}, "ok"},
		"quote":           {createArgs{`c" (x); DROP TABLE a; --`, []column{x}}, "invalid"},
		"column quote":    {createArgs{"d", []column{{Name: `x" TEXT); DROP TABLE a; --`, Type: "TEXT"}}}, "invalid"},
		"type":            {createArgs{"e", []column{{Name: "x", Type: "TEXT DEFAULT (load_extension('x'))"}}}, "invalid"},
		"words":           {createArgs{"h", []column{{Name: "id", Type: "INTEGER PRIMARY KEY AUTOINCREMENT"}, {Name: "n", Type: "INTEGER DEFAULT 0 NOT NULL"}, {Name: "t", Type: "TEXT UNIQUE DEFAULT ''"}}}, "ok"},
		"a key in words":  {createArgs{"i", []column{{Name: "id", Type: "TEXT PRIMARY KEY NOT NULL"}}}, "ok"},
		"words twice":     {createArgs{"j", []column{{Name: "x", Type: "TEXT DEFAULT 0 DEFAULT ''"}}}, "invalid"},
		"another default": {createArgs{"j", []column{{Name: "x", Type: "TEXT DEFAULT 1"}}}, "invalid"},
		"words after":     {createArgs{"j", []column{{Name: "x", Type: "TEXT NOT NULL, y TEXT"}}}, "invalid"},
		"two blanks":      {createArgs{"j", []column{{Name: "x", Type: "TEXT  NOT NULL"}}}, "invalid"},
		"a check":         {createArgs{"j", []column{{Name: "x", Type: "TEXT CHECK (1)"}}}, "invalid"},
		"counts a text":   {createArgs{"j", []column{{Name: "x", Type: "TEXT PRIMARY KEY AUTOINCREMENT"}}}, "invalid"},
		"counts of two":   {createArgs{"j", []column{{Name: "x", Type: "INTEGER PRIMARY KEY AUTOINCREMENT"}, {Name: "y", Type: "INTEGER PRIMARY KEY"}}}, "invalid"},
		"no type":         {createArgs{"f", []column{{Name: "x"}}}, "invalid"},
		"lower case":      {createArgs{"g", []column{{Name: "x", Type: "text"}}}, "invalid"},
		"no columns":      {createArgs{"h", nil}, "invalid"},
		"twice":           {createArgs{"i", []column{x, {Name: "X", Type: "TEXT"}}}, "invalid"},
		"empty":           {createArgs{"", []column{x}}, "invalid"},
		"digit":           {createArgs{"1a", []column{x}}, "invalid"},
		"space":           {createArgs{"a b", []column{x}}, "invalid"},
		"schema":          {createArgs{"main.j", []column{x}}, "invalid"},
		"other letters":   {createArgs{"täble", []column{x}}, "invalid"},
		"a column's":      {createArgs{"k", []column{{Name: "größe", Type: "TEXT"}}}, "invalid"}, // "größe".isidentifier() in Python
		"a long column":   {createArgs{"k", []column{{Name: strings.Repeat("a", 65), Type: "TEXT"}}}, "invalid"},
		"line end":        {createArgs{"k\n", []column{x}}, "invalid"},
		"reserved":        {createArgs{"SQLite_x", []column{x}}, "invalid"},
		"module":          {createArgs{"dbstat", []column{x}}, "denied"},
		"long":            {createArgs{strings.Repeat("a", 65), []column{x}}, "invalid"},
	} {
		_, err := a.create(t.Context(), a.env(), test.in)
		assert.Equal(t, test.want, outcomeOf(err), "%s: %v", name, err)
	}
	for _, name := range []string{"a", "A", "SELECT"} {
		_, err := a.create(t.Context(), a.env(), createArgs{name, []column{x}})
		assert.Equal(t, "conflict", outcomeOf(err), name)
	}
}

func TestExecute(t *testing.T) {
	a := newAgent(t, Limits{}, true)
	a.must(t, "CREATE TABLE t (x INTEGER PRIMARY KEY, y TEXT UNIQUE)", "CREATE TABLE IF NOT EXISTS t (x)",
		"CREATE UNIQUE INDEX i ON t (y, x)", "CREATE TABLE u AS SELECT * FROM t", "ALTER TABLE u RENAME TO w", "ALTER TABLE w RENAME COLUMN y TO z",
		"ALTER TABLE w ADD COLUMN n NUMERIC NOT NULL DEFAULT 0", "ALTER TABLE w DROP COLUMN z", "DROP INDEX i", "DROP TABLE w")
	out, err := a.execSQL("INSERT INTO t (y) VALUES (?), (?) RETURNING x, y", "one", "two")
	require.NoError(t, err)
	assert.Equal(t, int64(2), out.Changes)
	assert.Equal(t, int64(2), out.LastID)
	text, _ := json.Marshal(out.Shown)
	assert.Equal(t, `[[1,"one"],[2,"two"]]`, string(text))
	out, err = a.execSQL("WITH a AS (SELECT 1 AS x) UPDATE t SET y = 'first' FROM a WHERE t.x = a.x")
	require.NoError(t, err)
	assert.Equal(t, executed{Changes: 1}, out)
	out, err = a.execSQL("INSERT INTO t (x, y) VALUES (1, 'again') ON CONFLICT (x) DO UPDATE SET y = excluded.y")
	require.NoError(t, err)
	assert.Equal(t, int64(1), out.Changes)
	out, err = a.execSQL("DELETE FROM t")
	require.NoError(t, err)
	assert.Equal(t, executed{Changes: 2}, out)
	out, err = a.execSQL("CREATE TABLE later (x)")
	require.NoError(t, err)
	assert.Equal(t, executed{}, out)
}

// Agents have different files: nothing names another's.
func TestAgentsNeverMeet(t *testing.T) {
	a := newAgent(t, Limits{}, false)
	b := a
	b.id = "b"
	for _, x := range []agent{a, b} {
		x.must(t, "CREATE TABLE t (who TEXT)", "INSERT INTO t VALUES ('"+string(x.id)+"')")
	}
	for _, x := range []agent{a, b} {
		p, err := x.querySQL("SELECT * FROM t")
		assert.Equal(t, `[["`+string(x.id)+`"]]`, rows(t, p, err))
	}
	assert.Len(t, a.engines().agents, 2)
}

func TestFull(t *testing.T) {
	a := newAgent(t, Limits{FileBytes: 1 << 20}, false)
	a.must(t, "CREATE TABLE t (x BLOB)")
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, err = a.execSQL("INSERT INTO t VALUES (zeroblob(50000))")
	}
	assert.Equal(t, "too_large", outcomeOf(err))
	p, err := a.querySQL("SELECT count(*) FROM t")
	assert.Equal(t, fmt.Sprintf("[[%d]]", n-1), rows(t, p, err))
	a.must(t, "DELETE FROM t WHERE rowid < 5", "INSERT INTO t VALUES (zeroblob(50000))")
}

// What needs more memory than the process may have fails, and harms nobody else.
func TestMemory(t *testing.T) {
	a := newAgent(t, Limits{Memory: 96 << 20}, false)
	a.must(t, "CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")
	_, err := a.querySQL("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 2000) SELECT randomblob(400000) AS r FROM n ORDER BY r")
	assert.Contains(t, []string{"too_large", "unavailable"}, outcomeOf(err), "%v", err)
	p, err := a.querySQL("SELECT * FROM t")
	assert.Equal(t, "[[1]]", rows(t, p, err))
}
