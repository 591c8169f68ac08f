package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

// maxTables bounds one answer to Tables.
const maxTables = 200

// do executes a request.
func (d *database) do(ctx context.Context, r *wire.Request) wire.Reply {
	if d.write == nil {
		if err := d.connect(ctx); err != nil {
			return wire.Reply{Error: d.errorOf(ctx, err)}
		}
	}
	stmt, cancel := context.WithTimeout(ctx, d.cfg.Timeout)
	defer cancel()
	var reply wire.Reply
	var err error
	switch r.Op {
	case wire.Query:
		err = d.read.as(wire.Query, func() (err error) {
			reply, err = d.page(stmt, d.read, r)
			return err
		})
	case wire.Change, wire.Define, wire.Drop:
		reply, err = d.change(stmt, r)
	case wire.Tables:
		err = d.read.as(own, func() (err error) {
			reply, err = d.tables(stmt, r)
			return err
		})
	default:
		err = &wire.Error{Code: wire.Failed, Message: fmt.Sprintf("unknown operation %q", r.Op)}
	}
	if err == nil {
		return reply
	}
	e := d.errorOf(stmt, err)
	if stmt.Err() != nil || e.Code == wire.Failed {
		// The driver gives a connection up when a statement on it is interrupted.
		_ = d.close()
	}
	return wire.Reply{Error: e}
}

// page runs a statement and returns a page of its result.
func (d *database) page(ctx context.Context, c *conn, r *wire.Request) (reply wire.Reply, err error) {
	size := 0
	reply.Columns, err = c.rows(ctx, r.SQL, r.Params, r.Offset, func(row []wire.Value) error {
		for _, v := range row {
			size += v.Size()
		}
		reply.More = len(reply.Rows) == r.Limit || size > d.cfg.PageBytes
		switch {
		case size > d.cfg.PageBytes && len(reply.Rows) == 0:
			message := fmt.Sprintf("a row has more than %d bytes", d.cfg.PageBytes)
			return wrong(wire.TooLarge, message, "select fewer columns, or parts of values with substr()")
		case reply.More:
			return errEnough
		}
		reply.Rows = append(reply.Rows, row)
		return nil
	})
	for i, name := range reply.Columns {
		reply.Columns[i] = strings.ToValidUTF8(name, "\uFFFD")
	}
	return reply, err
}

// change runs a statement in a transaction of its own. After any error nothing of it is
// left.
func (d *database) change(ctx context.Context, r *wire.Request) (reply wire.Reply, err error) {
	c := d.write
	if err := c.as(own, func() error { return d.limit(ctx, r.Room) }); err != nil {
		return reply, err
	}
	if err := c.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return reply, err
	}
	defer func() {
		if err != nil {
			// When a statement was interrupted the driver may refuse; closing the
			// connection rolls back, too.
			if e := c.exec(context.WithoutCancel(ctx), "ROLLBACK"); e != nil {
				_ = d.close()
			}
		}
	}()
	if r.New != "" {
		if err := d.mustBeNew(ctx, r.New); err != nil {
			return reply, err
		}
	}
	err = c.as(r.Op, func() (err error) {
		reply, err = d.page(ctx, c, r)
		return err
	})
	if err == nil && reply.More {
		message := fmt.Sprintf("RETURNING gives more than %d rows or %d bytes", r.Limit, d.cfg.PageBytes)
		err = wrong(wire.TooLarge, message, "change fewer rows at a time, or return fewer columns")
	}
	if err == nil {
		err = c.as(own, func() error { return d.after(ctx, r.Op, &reply) })
	}
	if err != nil {
		return wire.Reply{}, err
	}
	return reply, c.exec(ctx, "COMMIT")
}

// limit sets how large the file may become: it may grow by room, in bytes; nil: to its limit.
func (d *database) limit(ctx context.Context, room *int64) error {
	most := max(1, d.cfg.FileBytes/pageSize)
	d.most = d.cfg.FileBytes
	if room != nil {
		err := d.write.each(ctx, "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size", nil, func(v []wire.Value) error {
			count, _ := v[0].V.(int64)
			size, _ := v[1].V.(int64)
			most = max(1, min(most, count+*room/max(size, 512)))
			d.most = most * size
			return nil
		})
		if err != nil {
			return err
		}
	}
	return d.write.each(ctx, fmt.Sprintf("PRAGMA max_page_count=%d", most), nil, func([]wire.Value) error { return nil })
}

func (d *database) mustBeNew(ctx context.Context, name string) error {
	const named = "SELECT 1 FROM sqlite_schema WHERE name = ? COLLATE NOCASE"
	exists := wrong(wire.Conflict, fmt.Sprintf("%q exists already", name), "sql_tables shows the tables and their columns")
	return d.write.as(own, func() error {
		return d.write.each(ctx, named, []wire.Value{{V: name}}, func([]wire.Value) error { return exists })
	})
}

// after completes the reply to a change, within its transaction.
func (d *database) after(ctx context.Context, op wire.Op, reply *wire.Reply) error {
	if op != wire.Change {
		return d.checkTypes(ctx)
	}
	return d.write.each(ctx, "SELECT changes(), last_insert_rowid()", nil, func(v []wire.Value) error {
		reply.Changes, _ = v[0].V.(int64)
		reply.LastID, _ = v[1].V.(int64)
		return nil
	})
}

// checkTypes refuses a schema with a type that is not in wire.Types. SQLite takes any words
// for a type, and the driver converts values of some.
func (d *database) checkTypes(ctx context.Context) error {
	const columns = `SELECT m.name, c.name, c.type FROM sqlite_schema m, pragma_table_xinfo(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite\_%' ESCAPE '\'`
	return d.write.each(ctx, columns, nil, func(v []wire.Value) error {
		table, _ := v[0].V.(string)
		column, _ := v[1].V.(string)
		kind, _ := v[2].V.(string)
		switch upper := strings.ToUpper(kind); {
		case upper == "", upper == "INT", upper == "NUM", slices.Contains(wire.Types, upper):
			return nil
		}
		return wrong(wire.Invalid, fmt.Sprintf("column %.80q of table %.80q has the type %.80q", column, table, kind),
			"the types are "+strings.Join(wire.Types, ", "))
	})
}

// tables lists tables and views by name, after the name in r.SQL.
func (d *database) tables(ctx context.Context, r *wire.Request) (reply wire.Reply, err error) {
	const names = `SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\_%' ESCAPE '\' AND name > ? ORDER BY name`
	size := 0
	err = d.read.each(ctx, names, []wire.Value{{V: r.SQL}}, func(v []wire.Value) error {
		if len(reply.Tables) == min(r.Limit, maxTables) || size > d.cfg.PageBytes {
			reply.More = true
			return errEnough
		}
		var t wire.Table
		t.Name, _ = v[0].V.(string)
		t.Kind, _ = v[1].V.(string)
		t.Columns = []wire.Column{}
		size += len(t.Name) + 40
		reply.Tables = append(reply.Tables, t)
		return nil
	})
	for i := range reply.Tables {
		if err == nil {
			err = d.columns(ctx, &reply.Tables[i])
		}
	}
	return reply, err
}

// columns adds a table's columns. A view whose table is gone has none.
func (d *database) columns(ctx context.Context, t *wire.Table) error {
	const columns = `SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?)`
	err := d.read.each(ctx, columns, []wire.Value{{V: t.Name}}, func(v []wire.Value) error {
		var c wire.Column
		c.Name, _ = v[0].V.(string)
		c.Type, _ = v[1].V.(string)
		notNull, _ := v[2].V.(int64)
		key, _ := v[3].V.(int64)
		c.NotNull, c.PrimaryKey = notNull != 0, key != 0
		t.Columns = append(t.Columns, c)
		return nil
	})
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_ERROR {
		return nil
	}
	return err
}

// errorOf returns the error of a request whose context was ctx.
func (d *database) errorOf(ctx context.Context, err error) *wire.Error {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e
	}
	slow := wrong(wire.TooLarge, fmt.Sprintf("the statement ran longer than %v and was undone", d.cfg.Timeout),
		"make it smaller, add an index, or select fewer rows")
	if ctx.Err() != nil {
		return slow
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok { // of the driver: a parameter is missing
		return &wire.Error{Code: wire.Invalid, Message: err.Error()}
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE:
		return wrong(wire.Invalid, e.Error(), "sql_tables shows the tables and their columns")
	case sqlite3.SQLITE_CONSTRAINT:
		return wrong(wire.Conflict, e.Error(), "nothing was changed")
	case sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY:
		return &wire.Error{Code: wire.Denied, Message: "a statement here must not do this"}
	case sqlite3.SQLITE_INTERRUPT:
		return slow
	case sqlite3.SQLITE_FULL:
		message := fmt.Sprintf("the database would have more than %d bytes, or the disk is full; nothing was changed", d.most)
		return wrong(wire.TooLarge, message, "delete rows that are not needed, or ask the operator for space")
	case sqlite3.SQLITE_TOOBIG:
		message := fmt.Sprintf("a value has more than %d bytes, or the statement more than %d", d.cfg.ValueBytes, d.cfg.SQLBytes)
		return wrong(wire.TooLarge, message, "use smaller values")
	case sqlite3.SQLITE_NOMEM:
		return wrong(wire.TooLarge, "the statement needs too much memory; nothing was changed", "sort or join fewer rows")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return wrong(wire.Busy, "another process changes the database", "call again")
	}
	return &wire.Error{Code: wire.Failed, Message: err.Error()}
}

func wrong(code wire.Code, message, hint string) *wire.Error {
	return &wire.Error{Code: code, Message: message, Hint: hint}
}
