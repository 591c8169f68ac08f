package sql

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// Limits bound the databases and their processes. Zero values stand for the defaults.
type Limits struct {
	FileBytes  int64         // of one agent's database; 64 MiB
	ValueBytes int           // of one value, or one row in the file; 1 MiB
	PageBytes  int           // of the values in one result; 512 KiB
	Memory     int64         // of data of a process, beside the pages of its program; 256 MiB
	Timeout    time.Duration // of one statement; 10 s
	Idle       time.Duration // after which a process ends; 1 min
}

// Config returns the limits as an engine has them.
func (l Limits) Config() engine.Config {
	l = l.complete()
	return engine.Config{
		FileBytes: l.FileBytes, ValueBytes: l.ValueBytes, SQLBytes: maxSQL, PageBytes: l.PageBytes, Memory: l.Memory, Timeout: l.Timeout,
	}
}

// Bound returns how long a statement takes at most.
func (l Limits) Bound() time.Duration { return l.complete().Timeout + grace }

func (l Limits) complete() Limits {
	return Limits{
		FileBytes:  cmp.Or(l.FileBytes, 64<<20),
		ValueBytes: min(cmp.Or(l.ValueBytes, 1<<20), 4<<20),
		PageBytes:  min(cmp.Or(l.PageBytes, 512<<10), 1<<20), // escaped, it must fit a frame
		Memory:     cmp.Or(l.Memory, 256<<20),
		Timeout:    cmp.Or(l.Timeout, 10*time.Second),
		Idle:       cmp.Or(l.Idle, time.Minute),
	}
}

// Options configure the tools of an agent.
type Options struct {
	Engine   Engine // shared by all agents
	Postgres bool   // it is PostgreSQL: its roles bound agents, and nothing here reads more of a statement than the first keyword
	Drop     bool   // allows DROP, of tables, indexes, views and columns

	// Within makes a change to an agent's database, which may grow by so many bytes; nil: by any. A nil Within bounds nothing.
	Within func(ctx context.Context, agent scope.ID, change func(room *int64) error) error
}

const (
	defaultRows = 100
	maxRows     = 1000
)

// New returns the tools sql_query, sql_execute, sql_tables and create_table.
func New(opt Options) ([]tools.Tool, error) {
	if opt.Engine == nil {
		return nil, errors.New("sql: no engine")
	}
	s := store{opt}
	name, mark, replace := "SQLite", "?", "INSERT, REPLACE"
	server := tools.Hints{}
	if opt.Postgres {
		name, mark, replace = "PostgreSQL", "$1, $2", "INSERT"
		server = tools.Hints{Waits: true, Turns: tools.NewTurns(16, 4)}
	}
	query, err1 := tools.New("sql_query",
		fmt.Sprintf("Read from your %s database with one SELECT, WITH or VALUES. Write parameters as %s. Many rows come in pages: call again with next_cursor.", name, mark),
		tools.Hints{Title: "SQL query", Idempotent: true, Waits: server.Waits, Turns: server.Turns}, s.query)
	execute, err2 := tools.New("sql_execute",
		fmt.Sprintf("Change your %s database with one %s, UPDATE, DELETE, CREATE or ALTER. Write parameters as %s. The call is a transaction: it does everything or nothing.", name, replace, mark),
		tools.Hints{Title: "SQL execute", Writes: true, Acts: true, Destructive: true, Waits: server.Waits, Turns: server.Turns}, s.execute)
	query, err1 = tools.Judged(query, err1, func(_ tools.Env, in queryArgs) error {
		_, _, err := in.statement(opt.Postgres)
		return err
	})
	execute, err2 = tools.Judged(execute, err2, func(_ tools.Env, in executeArgs) error {
		_, _, err := in.statement(s.Options)
		return err
	})
	list, err3 := tools.New("sql_tables", "List the tables and views of your "+name+" database with their columns.",
		tools.Hints{Title: "SQL tables", Idempotent: true, Waits: server.Waits, Turns: server.Turns}, s.tables)
	create, err4 := tools.New("create_table", "Make a table in your "+name+" database.",
		tools.Hints{Title: "Create table", Writes: true, Acts: true, Waits: server.Waits, Turns: server.Turns}, s.create)
	return []tools.Tool{query, execute, list, create}, errors.Join(err1, err2, err3, err4)
}

type store struct{ Options }

// queryArgs are the arguments of sql_query.
type queryArgs struct {
	SQL    string `json:"sql" jsonschema:"one SELECT, WITH or VALUES" limit:"len=65536"`
	Params []any  `json:"params,omitempty" jsonschema:"the values of the parameters in order: null, boolean, number, string or {\"blob\": base64}" limit:"items=500"`
	Limit  int    `json:"limit,omitempty" jsonschema:"the most rows of this page" limit:"min=1,max=1000,default=100"`
	Cursor string `json:"cursor,omitempty" jsonschema:"next_cursor of the page before" limit:"len=64"`

	values []engine.Value
}

// Subject is the statement's first keyword. The rest may hold contents.
func (in queryArgs) Subject() (path, target string) { return "", subject(in.SQL) }

// UnmarshalJSON keeps the digits of integers.
func (in *queryArgs) UnmarshalJSON(text []byte) error {
	type plain queryArgs
	return withValues(text, (*plain)(in), func() { in.Params = nil }, &in.values)
}

// page is a result with rows.
type page struct {
	Columns    []string `json:"columns" limit:"items=256"`
	Shown      [][]any  `json:"rows" jsonschema:"a list for each row: null, number, string or {\"blob\": base64}" limit:"items=1000"`
	NextCursor string   `json:"next_cursor,omitempty" jsonschema:"for the next page; absent: this is the last"`
}

// statement returns the statement of a query, and its operation.
func (in queryArgs) statement(postgres bool) (stmt statement, op engine.Op, err error) {
	if stmt, err = parse(in.SQL, postgres); err == nil {
		op, err = stmt.readOp()
	}
	if err == nil && !postgres {
		err = stmt.match(in.values)
	}
	return stmt, op, err
}

func (s store) query(ctx context.Context, env tools.Env, in queryArgs) (out page, err error) {
	_, op, err := in.statement(s.Postgres)
	if err != nil {
		return out, err
	}
	offset, err := in.offset()
	if err != nil {
		return out, err
	}
	r := engine.Request{Op: op, SQL: in.SQL, Params: in.values, Offset: offset, Limit: rowLimit(in.Limit)}
	reply, err := s.Engine.Do(ctx, env.Agent, r)
	if err != nil {
		return out, err
	}
	out = pageOf(reply)
	if reply.More {
		out.NextCursor = in.cursor(offset + int64(len(reply.Rows)))
	}
	return out, nil
}

func rowLimit(n int) int { return min(cmp.Or(max(n, 0), defaultRows), maxRows) }

func pageOf(reply engine.Reply) page {
	out := page{Columns: reply.Columns, Shown: make([][]any, len(reply.Rows))}
	if out.Columns == nil {
		out.Columns = []string{}
	}
	for i, row := range reply.Rows {
		out.Shown[i] = make([]any, len(row))
		for j, v := range row {
			out.Shown[i][j] = v
		}
	}
	return out
}

// cursor returns the cursor of a row of this query. The statement runs again for each
// page, so rows that are inserted between two pages can move others.
func (in queryArgs) cursor(offset int64) string {
	h := fnv.New64a()
	h.Write([]byte(in.SQL))
	_ = json.NewEncoder(h).Encode(in.values)
	return fmt.Sprintf("%d-%x", offset, h.Sum64())
}

func (in queryArgs) offset() (int64, error) {
	if in.Cursor == "" {
		return 0, nil
	}
	text, _, _ := strings.Cut(in.Cursor, "-")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || in.cursor(n) != in.Cursor {
		return 0, tools.Errorf(tools.Invalid, "the cursor is not of this query").
			Suggest("give the sql and params of the page before, and its next_cursor")
	}
	return n, nil
}

// executeArgs are the arguments of sql_execute.
type executeArgs struct {
	SQL    string `json:"sql" jsonschema:"one INSERT, REPLACE, UPDATE, DELETE, CREATE or ALTER" limit:"len=65536"`
	Params []any  `json:"params,omitempty" jsonschema:"the values of the parameters in order: null, boolean, number, string or {\"blob\": base64}" limit:"items=500"`

	values []engine.Value
}

// Subject is the statement's first keyword.
func (in executeArgs) Subject() (path, target string) { return "", subject(in.SQL) }

// UnmarshalJSON keeps the digits of integers.
func (in *executeArgs) UnmarshalJSON(text []byte) error {
	type plain executeArgs
	return withValues(text, (*plain)(in), func() { in.Params = nil }, &in.values)
}

// executed is the result of sql_execute.
type executed struct {
	Changes int64    `json:"changes" jsonschema:"rows inserted, updated or deleted"`
	LastID  int64    `json:"last_insert_id,omitempty" jsonschema:"of INSERT and REPLACE: the rowid of the last row"`
	Columns []string `json:"columns,omitempty" jsonschema:"of RETURNING" limit:"items=256"`
	Shown   [][]any  `json:"rows,omitempty" jsonschema:"of RETURNING" limit:"items=1000"`
}

// statement returns the statement of a change, and its operation.
func (in executeArgs) statement(o Options) (stmt statement, op engine.Op, err error) {
	if stmt, err = parse(in.SQL, o.Postgres); err == nil {
		op, err = stmt.writeOp(o.Drop)
	}
	if err == nil && !o.Postgres {
		err = stmt.match(in.values)
	}
	return stmt, op, err
}

// change has an engine make a change.
func (s store) change(ctx context.Context, agent scope.ID, r engine.Request) (reply engine.Reply, err error) {
	do := func(room *int64) (err error) {
		r.Room = room
		reply, err = s.Engine.Do(ctx, agent, r)
		return err
	}
	if s.Within == nil {
		err = do(nil)
		return reply, err
	}
	err = s.Within(ctx, agent, do)
	return reply, err
}

func (s store) execute(ctx context.Context, env tools.Env, in executeArgs) (out executed, err error) {
	stmt, op, err := in.statement(s.Options)
	if err != nil {
		return out, err
	}
	reply, err := s.change(ctx, env.Agent, engine.Request{Op: op, SQL: in.SQL, Params: in.values, Limit: maxRows})
	if err != nil {
		return out, err
	}
	out.Changes = reply.Changes
	if stmt.keyword == "INSERT" || stmt.keyword == "REPLACE" {
		out.LastID = reply.LastID
	}
	if len(reply.Columns) > 0 {
		p := pageOf(reply)
		out.Columns, out.Shown = p.Columns, p.Shown
	}
	return out, nil
}

// tablesArgs are the arguments of sql_tables.
type tablesArgs struct {
	Cursor string `json:"cursor,omitempty" jsonschema:"next_cursor of the page before" limit:"len=1024"`
}

// listing is the result of sql_tables.
type listing struct {
	Tables     []engine.Table `json:"tables" limit:"items=1000"`
	NextCursor string         `json:"next_cursor,omitempty"`
}

func (s store) tables(ctx context.Context, env tools.Env, in tablesArgs) (out listing, err error) {
	reply, err := s.Engine.Do(ctx, env.Agent, engine.Request{Op: engine.Tables, SQL: in.Cursor, Limit: maxRows})
	if err != nil {
		return out, err
	}
	out.Tables = reply.Tables
	if out.Tables == nil {
		out.Tables = []engine.Table{}
	}
	if reply.More && len(out.Tables) > 0 {
		out.NextCursor = out.Tables[len(out.Tables)-1].Name
	}
	return out, nil
}

// createArgs are the arguments of create_table.
type createArgs struct {
	Name    string   `json:"name" jsonschema:"letters, digits and '_'" limit:"len=64"`
	Columns []column `json:"columns" limit:"items=200"`
}

// column is a column of a new table.
type column struct {
	Name       string `json:"name" jsonschema:"letters, digits and '_'" limit:"len=64"`
	Type       string `json:"type" jsonschema:"INTEGER, TEXT, REAL, BLOB, NUMERIC or BOOLEAN; after it perhaps PRIMARY KEY, AUTOINCREMENT, NOT NULL, UNIQUE, DEFAULT 0 or DEFAULT ''" limit:"len=80"`
	PrimaryKey bool   `json:"primary_key,omitempty" jsonschema:"of several columns: they are the key together"`
	NotNull    bool   `json:"not_null,omitempty"`
	Unique     bool   `json:"unique,omitempty"`

	counts   bool   // AUTOINCREMENT
	defaults string // the text after DEFAULT; "": none
}

// parse returns the column with the words after its type as fields. The words are those of a
// closed list, each once.
func (c column) parse() (column, error) {
	kind, rest, _ := strings.Cut(c.Type, " ")
	if !slices.Contains(engine.Types, kind) {
		return c, tools.Errorf(tools.Invalid, "column %q: the types are %s", c.Name, strings.Join(engine.Types, ", "))
	}
	fail := tools.Errorf(tools.Invalid,
		"column %q: after the type there may be PRIMARY KEY, AUTOINCREMENT, NOT NULL, UNIQUE, DEFAULT 0 and DEFAULT '', each once", c.Name)
	c.Type = kind
	flags := map[string]*bool{"PRIMARY KEY": &c.PrimaryKey, "AUTOINCREMENT": &c.counts, "NOT NULL": &c.NotNull, "UNIQUE": &c.Unique}
	seen := map[string]bool{}
	for rest != "" {
		var word string
		for _, known := range []string{"PRIMARY KEY", "AUTOINCREMENT", "NOT NULL", "UNIQUE", "DEFAULT 0", "DEFAULT ''"} {
			if rest == known || strings.HasPrefix(rest, known+" ") {
				word = known
			}
		}
		name, value, _ := strings.Cut(word, "DEFAULT ")
		if word == "" || seen[name] {
			return c, fail
		}
		seen[name] = true
		if flag := flags[word]; flag != nil {
			*flag = true
		} else {
			c.defaults = value
		}
		rest = strings.TrimPrefix(strings.TrimPrefix(rest, word), " ")
	}
	if c.counts && (!c.PrimaryKey || kind != "INTEGER") {
		return c, tools.Errorf(tools.Invalid, "column %q: AUTOINCREMENT is for INTEGER PRIMARY KEY", c.Name)
	}
	return c, nil
}

// Subject is the table's name.
func (in createArgs) Subject() (path, target string) { return "", "CREATE TABLE " + in.Name }

// created is the result of create_table.
type created struct {
	SQL string `json:"sql" jsonschema:"the statement that made the table"`
}

func (s store) create(ctx context.Context, env tools.Env, in createArgs) (out created, err error) {
	text, err := in.statement(s.Postgres)
	if err != nil {
		return out, err
	}
	_, err = s.change(ctx, env.Agent, engine.Request{Op: engine.Define, SQL: text, New: in.Name, Limit: 1})
	return created{text}, err
}

// typesOfPostgres are PostgreSQL's names of the types.
var typesOfPostgres = map[string]string{
	"INTEGER": "bigint", "TEXT": "text", "REAL": "double precision", "BLOB": "bytea", "NUMERIC": "numeric", "BOOLEAN": "boolean",
}

// identifier is a name that needs no quotes but for keywords.
var identifier = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`) })

// statement returns the CREATE TABLE. Every name in it is an identifier in quotes, every
// type one of the closed list.
func (in createArgs) statement(postgres bool) (string, error) {
	if err := checkName("table", in.Name); err != nil {
		return "", err
	}
	if postgres { // which reads a name without quotes in lower case
		in.Name, in.Columns = strings.ToLower(in.Name), slices.Clone(in.Columns)
		for i := range in.Columns {
			in.Columns[i].Name = strings.ToLower(in.Columns[i].Name)
		}
	}
	if len(in.Columns) == 0 {
		return "", tools.Errorf(tools.Invalid, "a table has at least one column")
	}
	var keys []string
	columns := make([]column, len(in.Columns))
	for i, c := range in.Columns {
		var err error
		if columns[i], err = c.parse(); err != nil {
			return "", err
		}
		if columns[i].PrimaryKey {
			keys = append(keys, `"`+c.Name+`"`)
		}
	}
	var parts []string
	seen := map[string]bool{}
	for _, c := range columns {
		if err := checkName("column", c.Name); err != nil {
			return "", err
		}
		lower := strings.ToLower(c.Name)
		if seen[lower] {
			return "", tools.Errorf(tools.Invalid, "there are two columns %q", c.Name)
		}
		seen[lower] = true
		part := `"` + c.Name + `" ` + c.Type
		if postgres {
			part = `"` + c.Name + `" ` + typesOfPostgres[c.Type]
		}
		if c.PrimaryKey && len(keys) == 1 {
			part += " PRIMARY KEY"
		}
		if c.counts {
			if len(keys) > 1 {
				return "", tools.Errorf(tools.Invalid, "column %q: AUTOINCREMENT is for the only column of the key", c.Name)
			}
			part += map[bool]string{false: " AUTOINCREMENT", true: " GENERATED BY DEFAULT AS IDENTITY"}[postgres]
		}
		if c.NotNull {
			part += " NOT NULL"
		}
		if c.Unique {
			part += " UNIQUE"
		}
		switch {
		case c.defaults == "0" && postgres: // a text takes the type of the column, a number may not
			part += " DEFAULT '0'"
		case c.defaults != "":
			part += " DEFAULT " + c.defaults
		}
		parts = append(parts, part)
	}
	if len(keys) > 1 {
		parts = append(parts, "PRIMARY KEY ("+strings.Join(keys, ", ")+")")
	}
	return `CREATE TABLE "` + in.Name + `" (` + strings.Join(parts, ", ") + ")", nil
}

func checkName(what, name string) error {
	if identifier().MatchString(name) && !strings.HasPrefix(strings.ToLower(name), "sqlite_") {
		return nil
	}
	return tools.Errorf(tools.Invalid, "the %s name %.80q: want letters, digits and '_'", what, name).
		Suggest("it starts with a letter or '_', has at most 64 bytes, and does not start with sqlite_")
}

// subject returns what the log has of a statement.
func subject(text string) string {
	s, _ := parse(text, true) // the keyword alone
	return tools.Clip(s.keyword, 20)
}

// withValues decodes arguments into in, and their params into values.
func withValues(text []byte, in any, clear func(), values *[]engine.Value) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(in); err != nil {
		return err
	}
	clear()
	var params struct {
		Params []engine.Value `json:"params"`
	}
	if err := json.Unmarshal(text, &params); err != nil {
		return err
	}
	*values = params.Params
	return nil
}
