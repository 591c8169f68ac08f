package postgres

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/lib/pq"
)

// A session is a login at the server. One goroutine uses it at a time.
type session struct {
	conn driver.Conn
	wire *conn
	role string

	used  bool        // by a call before
	dirty bool        // it has not read the result of a statement to its end
	idle  *time.Timer // closes it; set while nobody uses it
}

// login begins a session. The end of ctx ends the login, not the session.
func (s *Store) login(ctx context.Context, user, password string) (*session, error) {
	one := &session{}
	c, err := pq.NewConnectorConfig(pq.Config{
		Host: "server", Port: 5432, SSLMode: pq.SSLModeDisable, // the dialer has the address, and makes TLS
		User: user, Password: password, Database: s.Postgres.Database,
		ApplicationName: "scopefs", ClientEncoding: "UTF8", Datestyle: "ISO, MDY",
		MinProtocolVersion: "3.0", MaxProtocolVersion: "3.0",
	})
	if err != nil {
		return nil, err
	}
	stop := func() bool { return true }
	c.Dialer(dialer{Reach: s.Reach, network: s.Postgres.Network, address: s.Postgres.Address, tls: s.TLS, made: func(w *conn) {
		one.wire = w
		stop = context.AfterFunc(ctx, func() { w.Close() })
	}})
	one.conn, err = c.Connect(ctx)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if one.wire != nil {
			one.wire.Close()
			if one.wire.err != nil {
				err = one.wire.err
			}
		}
		return nil, err
	}
	return one, nil
}

// exec runs statements without parameters, which are ours.
func (one *session) exec(text string) error {
	_, err := one.conn.(driver.ExecerContext).ExecContext(context.Background(), text, nil)
	return err
}

// query runs a statement of ours, and calls each for its rows.
func (one *session) query(text string, args []driver.NamedValue, each func(row []driver.Value) error) error {
	rows, err := one.conn.(driver.QueryerContext).QueryContext(context.Background(), text, args)
	if err != nil {
		return err
	}
	defer rows.Close()
	row := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(row); err != nil {
			return end(err)
		}
		if err := each(row); err != nil {
			return err
		}
	}
}

// texts returns the first column of a statement of ours.
func (one *session) texts(text string) (all []string, err error) {
	err = one.query(text, nil, func(row []driver.Value) error {
		if name, ok := row[0].([]byte); ok {
			row[0] = string(name)
		}
		all = append(all, fmt.Sprint(row[0]))
		return nil
	})
	return all, err
}

// close ends the session at once, with what it runs: the server rolls that back.
func (one *session) close() { one.wire.Close() }
