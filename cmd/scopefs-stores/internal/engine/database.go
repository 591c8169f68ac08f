package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/sqliteconn"
	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

const (
	pageSize    = 4096 // of the file
	busyTimeout = 2 * time.Second
	cacheKiB    = 4096 // of a connection
)

// database is an agent's open database. Its methods are for one goroutine.
type database struct {
	cfg  wire.Config
	path string

	write, read *conn
	most        int64 // bytes of the file at the last change
}

// conn is a connection with its authoriser.
type conn struct {
	*sqliteconn.Conn
	rules rules
}

// open opens the database. The writing connection comes first: it creates the file, and
// rolls a hot journal back.
func open(ctx context.Context, path string, cfg wire.Config) (*database, error) {
	d := &database{cfg: cfg, path: path}
	return d, d.connect(ctx)
}

func (d *database) connect(ctx context.Context) (err error) {
	if d.write, err = d.dial(ctx, "rwc"); err != nil {
		return err
	}
	err = d.write.as(own, func() error { return d.write.vacuums(ctx) })
	if err == nil {
		d.read, err = d.dial(ctx, "ro")
	}
	if err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

// vacuums makes a new file give back what is deleted.
func (c *conn) vacuums(ctx context.Context) error {
	empty := false
	err := c.each(ctx, "PRAGMA page_count", nil, func(v []wire.Value) error {
		empty = v[0].V == int64(0)
		return nil
	})
	if err == nil && empty {
		_, err = c.ExecContext(ctx, "PRAGMA auto_vacuum=FULL")
	}
	return err
}

func (d *database) close() error {
	var all []error
	for _, c := range []*conn{d.write, d.read} {
		if c != nil {
			all = append(all, c.Close())
		}
	}
	d.write, d.read = nil, nil
	return errors.Join(all...)
}

// dial opens a connection.
func (d *database) dial(ctx context.Context, mode string) (*conn, error) {
	opened, err := sqliteconn.Open(ctx, d.path, "mode="+mode)
	if err != nil {
		return nil, err
	}
	c := &conn{opened, rules{op: own, modules: map[string]bool{}}}
	if err := c.restrict(ctx, d.cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("open the database: %w", err), c.Close())
	}
	c.rules.op = ""
	return c, nil
}

// restrict sets what bounds the connection, then its authoriser.
func (c *conn) restrict(ctx context.Context, cfg wire.Config) error {
	for _, pragma := range []string{
		fmt.Sprintf("busy_timeout=%d", busyTimeout.Milliseconds()),
		// The first read rolls a hot journal back, and then must not remove it: the process
		// may not. journal_mode itself reads; with EXCLUSIVE it keeps the file.
		"locking_mode=EXCLUSIVE",
		"journal_mode=PERSIST",
		"journal_size_limit=1048576", // of what stays after a change
		"locking_mode=NORMAL",
		"temp_store=MEMORY",  // the process can create no file
		"trusted_schema=OFF", // a view calls no function with side effects
		"cell_size_check=ON",
		"foreign_keys=ON",
		"mmap_size=0", // a truncated file is an error and no SIGBUS
		fmt.Sprintf("page_size=%d", pageSize),
		fmt.Sprintf("max_page_count=%d", max(1, cfg.FileBytes/pageSize)),
		fmt.Sprintf("cache_size=-%d", cacheKiB),
		"synchronous=FULL",
	} {
		if _, err := c.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return fmt.Errorf("%s: %w", pragma, err)
		}
	}
	for limit, value := range map[int]int{ // https://sqlite.org/c3ref/c_limit_attached.html
		sqlite3.SQLITE_LIMIT_LENGTH:              cfg.ValueBytes,
		sqlite3.SQLITE_LIMIT_SQL_LENGTH:          cfg.SQLBytes,
		sqlite3.SQLITE_LIMIT_COLUMN:              256,
		sqlite3.SQLITE_LIMIT_EXPR_DEPTH:          100,
		sqlite3.SQLITE_LIMIT_COMPOUND_SELECT:     50,
		sqlite3.SQLITE_LIMIT_VDBE_OP:             100_000,
		sqlite3.SQLITE_LIMIT_FUNCTION_ARG:        100,
		sqlite3.SQLITE_LIMIT_ATTACHED:            0,
		sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 500,
		sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER:     wire.MaxParams,
		sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH:       1,
		sqlite3.SQLITE_LIMIT_WORKER_THREADS:      0,
	} {
		if _, err := sqlite.Limit(c.Conn.Conn, limit, value); err != nil {
			return err
		}
	}
	if err := c.each(ctx, "SELECT name FROM pragma_module_list", nil, func(v []wire.Value) error {
		name, _ := v[0].V.(string)
		c.rules.modules[strings.ToLower(name)] = true
		return nil
	}); err != nil {
		return err
	}
	return c.Raw(func(driver any) error {
		a, ok := driver.(sqlite.AuthorizerRegisterer)
		if !ok {
			return errors.New("the driver has no authoriser")
		}
		return a.RegisterAuthorizer(c.rules.authorize)
	})
}

// as runs f with the rules of an operation. SQLite may compile a statement again when
// it steps it, so f must be done with its rows.
func (c *conn) as(op wire.Op, f func() error) error {
	c.rules.op, c.rules.refused = op, ""
	defer func() { c.rules.op = "" }()
	err := f()
	if err != nil && c.rules.refused != "" {
		return &wire.Error{Code: wire.Denied, Message: "a statement here must not " + c.rules.refused}
	}
	return err
}

// errEnough ends rows.
var errEnough = errors.New("enough")

// each calls f with the values of each row.
func (c *conn) each(ctx context.Context, text string, params []wire.Value, f func([]wire.Value) error) error {
	_, err := c.rows(ctx, text, params, 0, f)
	return err
}

// rows calls f with the values of each row after the first ones, and returns the names of the columns.
func (c *conn) rows(ctx context.Context, text string, params []wire.Value, skip int64, f func([]wire.Value) error) (_ []string, err error) {
	rows, err := c.QueryContext(ctx, text, arguments(params)...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values, into := make([]any, len(names)), make([]any, len(names))
	for i := range into {
		into[i] = &values[i]
	}
	for n := int64(0); rows.Next(); n++ {
		if n < skip {
			continue
		}
		clear(values)
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		row := make([]wire.Value, len(values))
		for i, v := range values {
			row[i] = columnValue(v)
		}
		if err := f(row); err == errEnough {
			return names, nil
		} else if err != nil {
			return nil, err
		}
	}
	return names, rows.Err()
}

// columnValue returns a value that the driver read.
func columnValue(x any) wire.Value {
	switch x := x.(type) {
	case string:
		return wire.Value{V: strings.ToValidUTF8(x, "\uFFFD")}
	case time.Time: // of a column declared DATE, DATETIME or TIMESTAMP, which no statement here makes
		return wire.Value{V: x.Format(time.RFC3339Nano)}
	case bool:
		if x {
			return wire.Value{V: int64(1)}
		}
		return wire.Value{V: int64(0)}
	}
	return wire.Value{V: x}
}

func arguments(params []wire.Value) []any {
	args := make([]any, len(params))
	for i, p := range params {
		args[i] = p.V
	}
	return args
}

// exec runs one of the engine's own statements.
func (c *conn) exec(ctx context.Context, text string) error {
	return c.as(own, func() error {
		_, err := c.ExecContext(ctx, text)
		return err
	})
}
