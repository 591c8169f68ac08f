// Package sqliteconn opens one connection to a file of SQLite.
package sqliteconn

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Conn is the only connection of its pool. One goroutine uses it at a time.
type Conn struct {
	*sql.Conn
	db *sql.DB
}

// Open opens a file by its absolute path, with parameters of https://sqlite.org/uri.html. _dqs=0: "x" is a name and never
// a string. _defensive: nothing but SQL changes the file.
func Open(ctx context.Context, path string, parameters ...string) (*Conn, error) {
	query := strings.Join(append(parameters, "_dqs=0", "_defensive=1", "_error_rc=1"), "&")
	name := url.URL{Scheme: "file", Path: path, RawQuery: query}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Conn{conn, db}, nil
}

// Close rolls an open transaction back and closes the file.
func (c *Conn) Close() error {
	_ = c.Conn.Close() // a connection that was interrupted says so
	return c.db.Close()
}

// Seed lets SQLite read /dev/urandom, which a confined process cannot open.
func Seed(ctx context.Context) error {
	conn, err := Open(ctx, "/seed", "mode=memory")
	if err != nil {
		return err
	}
	defer conn.Close()
	var b []byte
	return conn.QueryRowContext(ctx, "SELECT randomblob(1)").Scan(&b)
}
