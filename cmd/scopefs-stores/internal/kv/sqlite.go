package kv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"syscall"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

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
	pool   *sqlitex.Pool // of one connection
	limits Limits
}

// OpenSQLite opens the store in a file, and creates the file with mode 0600 if
// it does not exist.
func OpenSQLite(file string, limits Limits) (*SQLite, error) {
	// The journal gets the mode of the file.
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("key-value store: %w", err)
	}
	f.Close()
	pool, err := sqlitex.NewPool(file, sqlitex.PoolOptions{
		Flags:    sqlite.OpenReadWrite,
		PoolSize: 1, // operations take turns: connections would poll for each other's locks
		PrepareConn: func(conn *sqlite.Conn) error {
			conn.SetBusyTimeout(door.Patience)
			return errors.Join(
				// The first read rolls a hot journal back, and then must not remove it: the process may not.
				// journal_mode itself reads; with EXCLUSIVE it keeps the file.
				execute(conn, nil, "PRAGMA locking_mode = EXCLUSIVE"),
				execute(conn, nil, "PRAGMA journal_mode = PERSIST"), // to make and to remove a file takes longer
				execute(conn, nil, "PRAGMA locking_mode = NORMAL"),
				execute(conn, nil, "PRAGMA journal_size_limit = 16777216"),
				execute(conn, nil, "PRAGMA synchronous = FULL"),
			)
		},
	})
	if err != nil {
		return nil, broken(file, err)
	}
	s := &SQLite{pool, limits.OrDefault()}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(broken(file, err), s.Close())
	}
	return s, nil
}

func broken(file string, err error) error {
	return fmt.Errorf("key-value store %s: %w: repair it with sqlite3's .recover, or move it away to start empty", file, err)
}

// prepare creates the tables of a new file, and removes expired entries.
func (s *SQLite) prepare() (err error) {
	conn, err := s.pool.Take(context.Background())
	if err != nil {
		return err
	}
	defer s.pool.Put(conn)
	end, err := sqlitex.ImmediateTransaction(conn)
	if err != nil {
		return err
	}
	defer end(&err)
	version, err := versionOf(conn)
	switch {
	case err != nil:
		return err
	case version == 0:
		return sqlitex.ExecuteScript(conn, schema, nil)
	case version != 1:
		return errVersion(version)
	}
	return execute(conn, nil, "DELETE FROM entries WHERE expires > 0 AND expires <= ?", now())
}

func versionOf(conn *sqlite.Conn) (version int64, err error) {
	err = execute(conn, func(row *sqlite.Stmt) { version = row.ColumnInt64(0) }, "PRAGMA user_version")
	return version, err
}

func errVersion(version int64) error { return fmt.Errorf("the file has version %d, not 1", version) }

// CheckFile returns an error if a file is no store. It makes no file and changes none. A
// file that does not exist is no error.
func CheckFile(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- checkFile(file) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return broken(file, errors.New("the disk does not answer"))
	}
}

func checkFile(file string) error {
	switch info, err := os.Lstat(file); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return broken(file, err)
	case !info.Mode().IsRegular():
		return broken(file, errors.New("it is no regular file"))
	}
	// Without locks, and a hot journal stays: https://sqlite.org/uri.html#uriimmutable
	uri := url.URL{Scheme: "file", Path: file, RawQuery: "immutable=1"}
	conn, err := sqlite.OpenConn(uri.String(), sqlite.OpenReadOnly, sqlite.OpenURI)
	if err != nil {
		return broken(file, err)
	}
	defer conn.Close()
	version, err := versionOf(conn)
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
	return run(ctx, s, func(conn *sqlite.Conn) (Entry, error) {
		e, found, err := find(conn, name, true)
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
	return change(ctx, s, func(conn *sqlite.Conn) (Entry, error) {
		at := now()
		out := Entry{Name: c.Name, Bytes: int64(len(value))}
		var expires int64
		if ttl > 0 {
			expires = at + max(1, ttl.Milliseconds())
			out.Expires = time.UnixMilli(expires)
		}
		part := []byte(c.Part)
		if err := execute(conn, nil, "INSERT INTO parts VALUES (?, 0, 0, 0) ON CONFLICT DO NOTHING", part); err != nil {
			return Entry{}, err
		}
		if err := execute(conn, nil, "DELETE FROM entries WHERE part = ? AND expires > 0 AND expires <= ?", part, at); err != nil {
			return Entry{}, err
		}
		old, _, err := find(conn, c.Name, false)
		if err == nil {
			err = c.Check(old.Version)
		}
		if err == nil {
			err = execute(conn, nil, "DELETE FROM entries WHERE name = ?", []byte(c.Name))
		}
		var keys, bytes int64
		if err == nil {
			err = execute(conn, func(row *sqlite.Stmt) {
				out.Version, keys, bytes = row.ColumnInt64(0)+1, row.ColumnInt64(1)+1, row.ColumnInt64(2)+int64(len(c.Name)+len(value))
			}, "SELECT version, keys, bytes FROM parts WHERE part = ?", part)
		}
		if err == nil {
			err = s.limits.Allow(keys, bytes)
		}
		if err == nil {
			err = execute(conn, nil, "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", []byte(c.Name), part, out.Version, expires, []byte(value))
		}
		return out, err
	})
}

// Delete removes an entry.
func (s *SQLite) Delete(ctx context.Context, c Change) (bool, error) {
	return change(ctx, s, func(conn *sqlite.Conn) (bool, error) {
		old, found, err := find(conn, c.Name, false)
		if err == nil {
			err = c.Check(old.Version)
		}
		if err == nil {
			err = execute(conn, nil, "DELETE FROM entries WHERE name = ?", []byte(c.Name))
		}
		return found, err
	})
}

// List returns a page of entries.
func (s *SQLite) List(ctx context.Context, prefix, after string, limit int) ([]Entry, string, error) {
	all, err := run(ctx, s, func(conn *sqlite.Conn) (all []Entry, err error) {
		// No name holds the byte 0xFF.
		err = execute(conn, func(row *sqlite.Stmt) { all = append(all, entry(row)) },
			`SELECT name, version, expires, length(value) FROM entries
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
	return run(ctx, s, func(conn *sqlite.Conn) (bytes int64, err error) {
		err = execute(conn, func(row *sqlite.Stmt) { bytes = row.ColumnInt64(0) },
			`SELECT bytes - (SELECT coalesce(sum(length(name) + length(value)), 0) FROM entries WHERE part = ?1 AND expires > 0 AND expires <= ?2)
			FROM parts WHERE part = ?1`, []byte(part), now())
		return bytes, err
	})
}

// Ping reads from the file.
func (s *SQLite) Ping(ctx context.Context) error {
	_, err := run(ctx, s, func(conn *sqlite.Conn) (struct{}, error) {
		return struct{}{}, execute(conn, nil, "SELECT 1 FROM parts LIMIT 1")
	})
	return err
}

// Close interrupts what is running and closes the file. It returns after 5
// seconds, even if the disk does not answer.
func (s *SQLite) Close() error {
	closed := make(chan error, 1)
	go func() { closed <- s.pool.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(door.Patience):
		return errors.New("key-value store: the disk does not answer")
	}
}

// change runs f in a transaction.
func change[T any](ctx context.Context, s *SQLite, f func(*sqlite.Conn) (T, error)) (T, error) {
	return run(ctx, s, func(conn *sqlite.Conn) (out T, err error) {
		end, err := sqlitex.ImmediateTransaction(conn)
		if err != nil {
			return out, err
		}
		defer end(&err)
		return f(conn)
	})
}

// run runs f when it is its turn. A disk that does not answer blocks f, and nothing can
// interrupt f then, so f has a goroutine of its own. The next operation waits until f has
// ended, also when the caller no longer waits for it.
func run[T any](ctx context.Context, s *SQLite, f func(*sqlite.Conn) (T, error)) (none T, _ error) {
	ctx, cancel := context.WithTimeout(ctx, door.Patience)
	defer cancel()
	conn, err := s.pool.Take(ctx)
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
		out, err := f(conn)
		s.pool.Put(conn)
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
	}
}

// failed returns err as an agent may see it.
func (s *SQLite) failed(err error) error {
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return e
	}
	hint := "try again; the operator's log has the cause"
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultFull {
		hint = "the operator's disk is full"
	}
	return door.Unavailable(err, hint)
}

// find returns the entry of a name, if there is one that has not expired.
func find(conn *sqlite.Conn, name string, value bool) (e Entry, found bool, err error) {
	query := "SELECT name, version, expires, length(value) FROM entries WHERE name = ? AND (expires = 0 OR expires > ?)"
	if value {
		query = "SELECT name, version, expires, length(value), value FROM entries WHERE name = ? AND (expires = 0 OR expires > ?)"
	}
	err = execute(conn, func(row *sqlite.Stmt) {
		e, found = entry(row), true
		if value {
			e.Value = blob(row, 4)
		}
	}, query, []byte(name), now())
	return e, found, err
}

// entry reads the columns name, version, expires and length(value).
func entry(row *sqlite.Stmt) Entry {
	e := Entry{Name: blob(row, 0), Version: row.ColumnInt64(1), Bytes: row.ColumnInt64(3)}
	if ms := row.ColumnInt64(2); ms > 0 {
		e.Expires = time.UnixMilli(ms)
	}
	return e
}

func blob(row *sqlite.Stmt, column int) string {
	b := make([]byte, row.ColumnLen(column))
	row.ColumnBytes(column, b)
	return string(b)
}

func execute(conn *sqlite.Conn, each func(row *sqlite.Stmt), query string, args ...any) error {
	return sqlitex.Execute(conn, query, &sqlitex.ExecOptions{Args: args, ResultFunc: func(row *sqlite.Stmt) error {
		if each != nil {
			each(row)
		}
		return nil
	}})
}

func now() int64 { return time.Now().UnixMilli() }

// Seed lets SQLite read /dev/urandom, which a confined process cannot open.
func Seed() error {
	conn, err := sqlite.OpenConn(":memory:", sqlite.OpenReadWrite)
	if err != nil {
		return err
	}
	defer conn.Close()
	return execute(conn, nil, "SELECT randomblob(1)")
}
