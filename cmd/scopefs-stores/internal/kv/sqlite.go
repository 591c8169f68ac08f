package kv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/scopefs/scopefs/cmd/scopefs-stores/internal/sqliteconn"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/kv"
)

// schema is that of user_version 1. The triggers keep the sums of parts, so that
// a change costs the same however large the part is. A part is never removed:
// its version must not start again.
const schema = `
CREATE TABLE parts (
	part    BLOB PRIMARY KEY,
	version INTEGER NOT NULL, -- of the entry that was set last
	keys    INTEGER NOT NULL,
	bytes   INTEGER NOT NULL  -- of names and values
) STRICT;
CREATE TABLE entries (
	name    BLOB PRIMARY KEY,
	part    BLOB NOT NULL,
	version INTEGER NOT NULL,
	expires INTEGER NOT NULL, -- milliseconds since 1970; 0: never
	value   BLOB NOT NULL
) STRICT;
CREATE INDEX expiring ON entries (part, expires) WHERE expires > 0;
CREATE TRIGGER added AFTER INSERT ON entries BEGIN
	UPDATE parts SET keys = keys + 1, bytes = bytes + length(new.name) + length(new.value), version = new.version
	WHERE part = new.part;
END;
CREATE TRIGGER removed AFTER DELETE ON entries BEGIN
	UPDATE parts SET keys = keys - 1, bytes = bytes - length(old.name) - length(old.value)
	WHERE part = old.part;
END;
PRAGMA user_version = 1;
`

// SQLite is a [Store] in one file. A change is on the disk when Set or Delete
// returns (a rollback journal with synchronous=FULL). The journal is no write-ahead log:
// that has an index in shared memory, and a goroutine that writes there while the disk is
// frozen blocks in a page fault, and with it all goroutines at the next garbage
// collection. Expired entries are removed by the next
// Set in their part, and when the file is opened.
type SQLite struct {
	free   chan *connection // of one: operations take turns, because connections would poll for each other's locks
	closed chan struct{}
	limits Limits
}

// connection is the store's only connection. It compiles each statement once. One goroutine uses it at a time.
type connection struct {
	*sqliteconn.Conn
	compiled map[string]*sql.Stmt
}

func connect(ctx context.Context, file string, parameters ...string) (*connection, error) {
	conn, err := sqliteconn.Open(ctx, file, parameters...)
	if err != nil {
		return nil, err
	}
	return &connection{conn, map[string]*sql.Stmt{}}, nil
}

// OpenSQLite opens the store in a file with an absolute path, and creates the file with mode 0600 if
// it does not exist.
func OpenSQLite(file string, limits Limits) (*SQLite, error) {
	// The journal gets the mode of the file.
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("key-value store: %w", err)
	}
	f.Close()
	ctx := context.Background()
	conn, err := connect(ctx, file, "mode=rw")
	if err != nil {
		return nil, broken(file, err)
	}
	if err := conn.prepare(ctx); err != nil {
		return nil, errors.Join(broken(file, err), conn.Close())
	}
	s := &SQLite{make(chan *connection, 1), make(chan struct{}), limits.OrDefault()}
	s.free <- conn
	return s, nil
}

func broken(file string, err error) error {
	return fmt.Errorf("key-value store %s: %w: repair it with sqlite3's .recover, or move it away to start empty", file, err)
}

// prepare sets what the connection does with the journal, creates the tables of a new file, and removes expired entries.
func (c *connection) prepare(ctx context.Context) error {
	for _, pragma := range []string{
		fmt.Sprintf("busy_timeout = %d", door.Patience.Milliseconds()),
		// The first read rolls a hot journal back, and then must not remove it: the process may not.
		// journal_mode itself reads; with EXCLUSIVE it keeps the file.
		"locking_mode = EXCLUSIVE",
		"journal_mode = PERSIST", // to make and to remove a file takes longer
		"locking_mode = NORMAL",
		"journal_size_limit = 16777216",
		"synchronous = FULL",
	} {
		if _, err := c.ExecContext(ctx, "PRAGMA "+pragma); err != nil {
			return fmt.Errorf("%s: %w", pragma, err)
		}
	}
	return c.transaction(ctx, func(ctx context.Context) error {
		version, err := c.version(ctx)
		switch {
		case err != nil:
			return err
		case version == 0:
			_, err := c.ExecContext(ctx, schema)
			return err
		case version != 1:
			return errVersion(version)
		}
		return c.exec(ctx, "DELETE FROM entries WHERE expires > 0 AND expires <= ?", now())
	})
}

func (c *connection) version(ctx context.Context) (version int64, err error) {
	err = c.query(ctx, func(row *sql.Rows) error { return row.Scan(&version) }, "PRAGMA user_version")
	return version, err
}

func errVersion(version int64) error { return fmt.Errorf("the file has version %d, not 1", version) }

// CheckFile returns an error if a file is no store. It makes no file and changes none. A
// file that does not exist is no error.
func CheckFile(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- checkFile(ctx, file) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return broken(file, errors.New("the disk does not answer"))
	}
}

func checkFile(ctx context.Context, file string) error {
	switch info, err := os.Lstat(file); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return broken(file, err)
	case !info.Mode().IsRegular():
		return broken(file, errors.New("it is no regular file"))
	}
	// Without locks, and a hot journal stays: https://sqlite.org/uri.html#uriimmutable
	conn, err := connect(ctx, file, "mode=ro", "immutable=1")
	if err != nil {
		return broken(file, err)
	}
	defer conn.Close()
	version, err := conn.version(ctx)
	if err == nil && version != 0 && version != 1 { // 0: the tables were never committed
		err = errVersion(version)
	}
	if err != nil {
		return broken(file, err)
	}
	return nil
}

// Get returns an entry.
func (s *SQLite) Get(ctx context.Context, name string) (Entry, error) {
	return run(ctx, s, func(ctx context.Context, conn *connection) (Entry, error) {
		e, found, err := conn.find(ctx, name, true)
		if err == nil && !found {
			err = door.NotFound()
		}
		return e, err
	})
}

// Plain returns nothing: no other program has the file.
func (s *SQLite) Plain(context.Context, ...string) (e Entry, found bool, err error) {
	return e, false, nil
}

// Set replaces an entry.
func (s *SQLite) Set(ctx context.Context, c Change, value string, ttl time.Duration) (Entry, error) {
	return change(ctx, s, func(ctx context.Context, conn *connection) (Entry, error) {
		at := now()
		out := Entry{Name: c.Name, Bytes: int64(len(value))}
		var expires int64
		if ttl > 0 {
			expires = at + max(1, ttl.Milliseconds())
			out.Expires = time.UnixMilli(expires)
		}
		part := []byte(c.Part)
		if err := conn.exec(ctx, "INSERT INTO parts VALUES (?, 0, 0, 0) ON CONFLICT DO NOTHING", part); err != nil {
			return Entry{}, err
		}
		if err := conn.exec(ctx, "DELETE FROM entries WHERE part = ? AND expires > 0 AND expires <= ?", part, at); err != nil {
			return Entry{}, err
		}
		old, _, err := conn.find(ctx, c.Name, false)
		if err == nil {
			err = c.Check(old.Version)
		}
		if err == nil {
			err = conn.exec(ctx, "DELETE FROM entries WHERE name = ?", []byte(c.Name))
		}
		var keys, bytes int64
		if err == nil {
			err = conn.query(ctx, func(row *sql.Rows) error { return row.Scan(&out.Version, &keys, &bytes) },
				"SELECT version + 1, keys + 1, bytes + ? FROM parts WHERE part = ?", len(c.Name)+len(value), part)
		}
		if err == nil {
			err = s.limits.Allow(keys, bytes)
		}
		if err == nil {
			err = conn.exec(ctx, "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", []byte(c.Name), part, out.Version, expires, []byte(value))
		}
		return out, err
	})
}

// Delete removes an entry.
func (s *SQLite) Delete(ctx context.Context, c Change) (bool, error) {
	return change(ctx, s, func(ctx context.Context, conn *connection) (bool, error) {
		old, found, err := conn.find(ctx, c.Name, false)
		if err == nil {
			err = c.Check(old.Version)
		}
		if err == nil {
			err = conn.exec(ctx, "DELETE FROM entries WHERE name = ?", []byte(c.Name))
		}
		return found, err
	})
}

// List returns a page of entries.
func (s *SQLite) List(ctx context.Context, prefix, after string, limit int) ([]Entry, string, error) {
	all, err := run(ctx, s, func(ctx context.Context, conn *connection) (all []Entry, err error) {
		// No name holds the byte 0xFF.
		err = conn.query(ctx, func(row *sql.Rows) error {
			e, err := entry(row)
			all = append(all, e)
			return err
		},
			`SELECT name, version, expires, length(value), '' FROM entries
			WHERE name >= ? AND name > ? AND name < ? AND (expires = 0 OR expires > ?) ORDER BY name LIMIT ?`,
			[]byte(prefix), []byte(after), []byte(prefix+"\xff"), now(), limit+1)
		return all, err
	})
	if len(all) > limit {
		return all[:limit], all[limit-1].Name, err
	}
	return all, "", err
}

// Size returns the bytes of a part without what has expired.
func (s *SQLite) Size(ctx context.Context, part string) (int64, error) {
	return run(ctx, s, func(ctx context.Context, conn *connection) (bytes int64, err error) {
		err = conn.query(ctx, func(row *sql.Rows) error { return row.Scan(&bytes) },
			`SELECT bytes - (SELECT coalesce(sum(length(name) + length(value)), 0) FROM entries WHERE part = ?1 AND expires > 0 AND expires <= ?2)
			FROM parts WHERE part = ?1`, []byte(part), now())
		return bytes, err
	})
}

// forgottenAtOnce bounds the entries that one transaction of Forget removes: each runs a trigger.
const forgottenAtOnce = 256

// Forget removes some entries of a part, which it finds by their names: parts have no index. The part's row stays: see schema.
func (s *SQLite) Forget(ctx context.Context, part string) (more bool, err error) {
	return change(ctx, s, func(ctx context.Context, conn *connection) (bool, error) {
		stmt, err := conn.compile(ctx, `DELETE FROM entries WHERE name IN (
			SELECT name FROM entries WHERE name >= ? AND name < ? AND part = ? LIMIT ?)`)
		if err != nil {
			return false, err
		}
		removed, err := stmt.ExecContext(ctx, []byte(part), []byte(part+"\xff"), []byte(part), forgottenAtOnce)
		if err != nil {
			return false, err
		}
		n, err := removed.RowsAffected()
		return n == forgottenAtOnce, err
	})
}

// Ping reads from the file.
func (s *SQLite) Ping(ctx context.Context) error {
	_, err := run(ctx, s, func(ctx context.Context, conn *connection) (struct{}, error) {
		return struct{}{}, conn.exec(ctx, "SELECT 1 FROM parts LIMIT 1")
	})
	return err
}

// Close interrupts what is running and closes the file. It returns after 5
// seconds, even if the disk does not answer.
func (s *SQLite) Close() error {
	close(s.closed)
	done := make(chan error, 1)
	go func() { done <- (<-s.free).Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(door.Patience):
		return errors.New("key-value store: the disk does not answer")
	}
}

// change runs f in a transaction.
func change[T any](ctx context.Context, s *SQLite, f func(context.Context, *connection) (T, error)) (T, error) {
	return run(ctx, s, func(ctx context.Context, conn *connection) (out T, err error) {
		err = conn.transaction(ctx, func(ctx context.Context) error {
			out, err = f(ctx, conn)
			return err
		})
		return out, err
	})
}

// run runs f when it is its turn. A disk that does not answer blocks f, and nothing can
// interrupt f then, so f has a goroutine of its own. The next operation waits until f has
// ended, also when the caller no longer waits for it.
func run[T any](ctx context.Context, s *SQLite, f func(context.Context, *connection) (T, error)) (none T, _ error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	conn, err := s.take(ctx)
	if err != nil {
		return none, s.failed(err)
	}
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil { // the connection is in an unknown state: nobody uses it again
				done <- result{none, fmt.Errorf("panic: %v", p)}
			}
		}()
		out, err := f(ctx, conn)
		s.free <- conn
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return none, s.failed(r.err)
		}
		return r.out, nil
	case <-ctx.Done():
		return none, s.failed(ctx.Err())
	case <-s.closed: // f is interrupted
		return none, s.failed(errClosed)
	}
}

var errClosed = errors.New("the store is closed")

// take waits for the connection. The caller sends it back to s.free.
func (s *SQLite) take(ctx context.Context) (*connection, error) {
	select {
	case conn := <-s.free:
		return conn, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, errClosed
	}
}

// failed returns err as an agent may see it.
func (s *SQLite) failed(err error) error {
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e
	}
	hint := "try again; the operator's log has the cause"
	if e, ok := errors.AsType[*sqlite.Error](err); ok && e.Code()&0xff == sqlite3.SQLITE_FULL {
		hint = "the operator's disk is full"
	}
	return door.Unavailable(err, hint)
}

// transaction runs f in a transaction, and rolls it back if f returns an error. BEGIN and COMMIT may wait for the lock of
// another process, until ctx ends. Statements of f wait for none, and their context does not end: the driver starts a
// goroutine for each statement whose context can.
func (c *connection) transaction(ctx context.Context, f func(context.Context) error) (err error) {
	within := context.WithoutCancel(ctx)
	defer func() {
		if err != nil {
			// A BEGIN that ends together with ctx returns an error, too, and the transaction is open. If SQLite has
			// rolled back by itself, ROLLBACK returns an error.
			_ = c.exec(within, "ROLLBACK")
		}
	}()
	if err := c.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := f(within); err != nil {
		return err
	}
	return c.exec(ctx, "COMMIT")
}

// find returns the entry of a name, if there is one that has not expired.
func (c *connection) find(ctx context.Context, name string, value bool) (e Entry, found bool, err error) {
	query := "SELECT name, version, expires, length(value), '' FROM entries WHERE name = ? AND (expires = 0 OR expires > ?)"
	if value {
		query = "SELECT name, version, expires, length(value), value FROM entries WHERE name = ? AND (expires = 0 OR expires > ?)"
	}
	err = c.query(ctx, func(row *sql.Rows) (err error) {
		e, err = entry(row)
		found = true
		return err
	}, query, []byte(name), now())
	return e, found, err
}

// entry reads the columns name, version, expires, length(value) and value.
func entry(row *sql.Rows) (e Entry, err error) {
	var expires int64
	err = row.Scan(&e.Name, &e.Version, &expires, &e.Bytes, &e.Value)
	if expires > 0 {
		e.Expires = time.UnixMilli(expires)
	}
	return e, err
}

// exec runs a statement.
func (c *connection) exec(ctx context.Context, query string, args ...any) error {
	stmt, err := c.compile(ctx, query)
	if err == nil {
		_, err = stmt.ExecContext(ctx, args...)
	}
	return err
}

// query calls each for the rows of a statement.
func (c *connection) query(ctx context.Context, each func(row *sql.Rows) error, query string, args ...any) error {
	stmt, err := c.compile(ctx, query)
	if err != nil {
		return err
	}
	rows, err := stmt.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (c *connection) compile(ctx context.Context, query string) (stmt *sql.Stmt, err error) {
	if stmt = c.compiled[query]; stmt == nil {
		if stmt, err = c.PrepareContext(ctx, query); err == nil {
			c.compiled[query] = stmt
		}
	}
	return stmt, err
}

func now() int64 { return time.Now().UnixMilli() }
