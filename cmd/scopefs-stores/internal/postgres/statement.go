package postgres

import (
	"bytes"
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lib/pq"

	"github.com/scopefs/scopefs/tools/sql/engine"
)

// maxTables bounds one answer to Tables.
const maxTables = 200

// end returns nil at the end of a result.
func end(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// beginning returns the statements that begin the transaction of a request.
func beginning(role string, r *engine.Request, limits engine.Config) string {
	mode := "READ ONLY"
	if r.Op == engine.Change || r.Op == engine.Define || r.Op == engine.Drop {
		mode = "READ WRITE"
	}
	return fmt.Sprintf("BEGIN %s; SET LOCAL ROLE %s; SET LOCAL statement_timeout = %d", mode, pq.QuoteIdentifier(role),
		limits.Timeout.Milliseconds())
}

// reset ends the transaction, and takes from the session what a statement can leave in it: settings, the role,
// prepared statements, cursors and channels.
func (one *session) reset(how string) error {
	if err := one.exec(how); err != nil {
		return err
	}
	return one.exec("DISCARD ALL")
}

// run executes a request in its transaction, and ends that. After an error the transaction is open, or
// the session is lost.
func (one *session) run(r *engine.Request, limits engine.Config, drop bool) (reply engine.Reply, err error) {
	switch r.Op {
	case engine.Query:
		reply, err = one.page(r, limits)
	case engine.Change, engine.Define, engine.Drop:
		reply, err = one.change(r, limits, drop)
	case engine.Tables:
		reply, err = one.tables(r, limits)
	default:
		err = &engine.Error{Code: engine.Failed, Message: fmt.Sprintf("unknown operation %q", r.Op)}
	}
	switch {
	case err != nil:
		return engine.Reply{}, err
	case one.dirty: // of a query: there is nothing to commit
		return reply, nil
	}
	return reply, one.reset("COMMIT")
}

// change runs a statement that changes the agent's part, and bounds the part.
func (one *session) change(r *engine.Request, limits engine.Config, drop bool) (reply engine.Reply, err error) {
	size, columns, err := one.state()
	if err != nil {
		return reply, err
	}
	if reply, err = one.page(r, limits); err != nil {
		return reply, err
	}
	if reply.More {
		message := fmt.Sprintf("RETURNING gives more than %d rows or %d bytes", r.Limit, limits.PageBytes)
		return reply, refuse(engine.TooLarge, message, "change fewer rows at a time, or return fewer columns")
	}
	now, left, err := one.state()
	switch {
	case err != nil:
		return reply, err
	case now > limits.FileBytes && now > size:
		message := fmt.Sprintf("the schema would have %d bytes, of at most %d; nothing was changed", now, limits.FileBytes)
		return reply, refuse(engine.TooLarge, message, "delete rows that are not needed, or ask the operator for space")
	case !drop && slices.ContainsFunc(columns, func(c string) bool { _, ok := slices.BinarySearch(left, c); return !ok }):
		return reply, refuse(engine.Denied, "a statement here must not drop a table, a view or a column", "ask your operator, who can allow it")
	}
	return reply, nil
}

// state returns the bytes of the agent's part, and its columns by number, sorted.
func (one *session) state() (size int64, columns []string, err error) {
	err = one.query("SELECT bytes, columns FROM scopefs.state()", nil, func(row []driver.Value) error {
		size, _ = row[0].(int64)
		text, _ := row[1].(string)
		columns = strings.Fields(text)
		slices.Sort(columns)
		return nil
	})
	return size, columns, err
}

// page runs a statement of the agent, and returns a page of its result. The server takes one statement
// to prepare, and not several.
func (one *session) page(r *engine.Request, limits engine.Config) (reply engine.Reply, err error) {
	// The form feed is white space to the server. Without it, pq would send a COPY as a query, which may be several statements.
	stmt, err := one.conn.Prepare("\f" + r.SQL)
	if err != nil {
		return reply, err
	}
	if want := stmt.NumInput(); want != len(r.Params) {
		return reply, refuse(engine.Invalid, fmt.Sprintf("the statement has %d parameters, and there are %d values",
			want, len(r.Params)), "write parameters as $1, $2")
	}
	params := make([]driver.NamedValue, len(r.Params))
	for i, v := range r.Params {
		params[i] = driver.NamedValue{Ordinal: i + 1, Value: v.V}
	}
	rows, err := stmt.(driver.StmtQueryContext).QueryContext(context.Background(), params)
	if err != nil {
		return reply, err
	}
	types, _ := rows.(driver.RowsColumnTypeDatabaseTypeName)
	for _, name := range rows.Columns() {
		reply.Columns = append(reply.Columns, strings.ToValidUTF8(name, "\uFFFD"))
	}
	raw := make([]driver.Value, len(reply.Columns))
	size := 0
	one.dirty = true
	for n := int64(0); ; n++ {
		if err := rows.Next(raw); err != nil {
			if err = end(err); err == nil {
				one.dirty = false
				result, ok := rows.(interface{ Result() driver.Result })
				if ok && r.Op == engine.Change {
					reply.Changes, _ = result.Result().RowsAffected()
				}
			}
			return reply, err
		}
		if n < r.Offset {
			continue
		}
		row := make([]engine.Value, len(raw))
		for i, v := range raw {
			row[i] = valueOf(v, types.ColumnTypeDatabaseTypeName(i))
			size += row[i].Size()
		}
		reply.More = len(reply.Rows) == r.Limit || size > limits.PageBytes
		switch {
		case size > limits.PageBytes && len(reply.Rows) == 0:
			return reply, wide(limits)
		case reply.More:
			return reply, nil
		}
		reply.Rows = append(reply.Rows, row)
	}
}

// wide is the error of a row that is too large.
func wide(limits engine.Config) error {
	return refuse(engine.TooLarge, fmt.Sprintf("a row has more than %d bytes", limits.PageBytes),
		"select fewer columns, or parts of values with substr()")
}

// valueOf returns a value as the tools have it; see engine.Value. A number of the type NUMERIC may lose digits
// beyond those of a REAL.
func valueOf(v driver.Value, kind string) engine.Value {
	switch x := v.(type) {
	case bool:
		v = int64(0)
		if x {
			v = int64(1)
		}
	case time.Time:
		form := map[string]string{"DATE": time.DateOnly, "TIME": "15:04:05.999999", "TIMETZ": "15:04:05.999999Z07:00",
			"TIMESTAMP": "2006-01-02T15:04:05.999999"}[kind]
		if form == "" {
			form = time.RFC3339Nano
		}
		v = x.Format(form)
	case []byte:
		if kind == "BYTEA" {
			v = bytes.Clone(x) // pq reads the next row into it
			break
		}
		v = strings.ToValidUTF8(string(x), "\uFFFD")
		if n, err := strconv.ParseInt(string(x), 10, 64); kind == "NUMERIC" && err == nil {
			v = n
		} else if f, err := strconv.ParseFloat(string(x), 64); kind == "NUMERIC" && err == nil && f == f {
			v = f
		}
	case string:
		v = strings.ToValidUTF8(x, "\uFFFD")
	case float64:
		if x != x {
			v = nil
		}
	}
	return engine.Value{V: v}
}

// tables lists tables and views by name, after the name in r.SQL.
func (one *session) tables(r *engine.Request, limits engine.Config) (reply engine.Reply, err error) {
	most := min(r.Limit, maxTables)
	size := 0
	args := []driver.NamedValue{{Ordinal: 1, Value: r.SQL}, {Ordinal: 2, Value: int64(most + 1)}}
	err = one.query("SELECT name, kind, columns FROM scopefs.tables($1, $2)", args, func(row []driver.Value) error {
		if reply.More = reply.More || len(reply.Tables) == most || size > limits.PageBytes; reply.More {
			return nil
		}
		var t engine.Table
		t.Name, _ = row[0].(string)
		t.Kind, _ = row[1].(string)
		columns, _ := row[2].(string)
		size += len(columns)
		if err := json.Unmarshal([]byte(columns), &t.Columns); err != nil {
			return fmt.Errorf("columns of %.80q: %w", t.Name, err)
		}
		reply.Tables = append(reply.Tables, t)
		return nil
	})
	return reply, err
}

func refuse(code engine.Code, message, hint string) error {
	return &engine.Error{Code: code, Message: message, Hint: hint}
}

// refusal returns the error of a statement, for its agent; nil if the session is lost. The session is of further use
// after an answer of the server alone.
func (one *session) refusal(err error, limits engine.Config) *engine.Error {
	if e, ok := errors.AsType[*engine.Error](err); ok {
		return e
	}
	if errors.Is(one.wire.err, errMessage) {
		return wide(limits).(*engine.Error)
	}
	e, ok := errors.AsType[*pq.Error](err)
	if !ok || e.Severity != "ERROR" {
		return nil
	}
	one.dirty = false
	return codeOf(e, limits)
}

// codeOf returns the form for an agent of an error of the server; PostgreSQL's documentation, appendix A.
func codeOf(e *pq.Error, limits engine.Config) *engine.Error {
	wrong := func(code engine.Code, message, hint string) *engine.Error {
		return &engine.Error{Code: code, Message: message, Hint: hint}
	}
	switch e.Code {
	case "42501": // insufficient_privilege
		return wrong(engine.Denied, e.Message, "an agent reaches its own tables alone")
	case "25006": // read_only_sql_transaction
		return wrong(engine.Denied, e.Message, "sql_execute changes data")
	case "57014": // query_canceled
		return wrong(engine.TooLarge, fmt.Sprintf("the statement ran longer than %v and was undone", limits.Timeout),
			"make it smaller, add an index, or select fewer rows")
	case "40001", "40P01", "55P03": // serialization_failure, deadlock_detected, lock_not_available
		return wrong(engine.Busy, e.Message, "call again; nothing was changed")
	case "42P07", "42701", "42710": // duplicate_table, duplicate_column, duplicate_object
		return wrong(engine.Conflict, e.Message, "sql_tables shows the tables and their columns")
	}
	switch e.Code.Class() {
	case "23": // a constraint
		return wrong(engine.Conflict, e.Message, "nothing was changed")
	case "53", "54": // insufficient resources, program limits
		return wrong(engine.TooLarge, e.Message, "make the statement smaller; nothing was changed")
	case "58", "XX": // of the system, internal
		return wrong(engine.Failed, e.Error(), "")
	}
	return wrong(engine.Invalid, e.Message, cmp.Or(e.Hint, "sql_tables shows the tables and their columns"))
}
