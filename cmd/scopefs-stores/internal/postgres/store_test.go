package postgres

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/internal/servertest"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

const adminPassword = "s3cret-of-the-administrator"

// startServer starts the server of a test, which runs beside the others.
func startServer(t *testing.T) *servertest.Postgres {
	need.Once(t)
	t.Parallel()
	return servertest.StartPostgres(t, adminPassword)
}

// node is a store as one daemon has it.
type node struct{ *Store }

func newNode(t testing.TB, p *servertest.Postgres, settings config.SQLStore) node {
	settings.Postgres = &config.Postgres{Network: "unix", Address: p.Dir + "/.s.PGSQL." + p.Port, User: servertest.Admin, Database: "agents"}
	s := Open(Options{SQLStore: &settings, Reach: driver.Reach{
		Dial:   (&net.Dialer{}).DialContext,
		Secret: func(context.Context) (credential.Secret, error) { return credential.Known(adminPassword), nil },
	}})
	t.Cleanup(func() { s.Close() })
	return node{s}
}

func (n node) do(t testing.TB, role string, op engine.Op, text string, params ...any) (engine.Reply, error) {
	t.Helper()
	r := engine.Request{Op: op, SQL: text, Limit: 100}
	for _, p := range params {
		r.Params = append(r.Params, engine.Value{V: p})
	}
	return n.Do(t.Context(), role, &r)
}

// rows returns the rows of a statement as JSON.
func (n node) rows(t testing.TB, role string, op engine.Op, text string, params ...any) string {
	t.Helper()
	reply, err := n.do(t, role, op, text, params...)
	require.NoError(t, err, "%s: %v", text, unwrapped(err))
	require.Nil(t, reply.Error, text)
	b, err := json.Marshal(reply.Rows)
	require.NoError(t, err)
	return string(b)
}

func unwrapped(err error) error {
	if e, ok := err.(interface{ Unwrap() error }); ok {
		return e.Unwrap()
	}
	return err
}

// TestStatements has one server for the tests of statements.
func TestStatements(t *testing.T) {
	p := startServer(t)
	for name, test := range map[string]func(*testing.T, *servertest.Postgres){"attacks": attacks, "session": sessions, "bounds": bounds, "values": values} {
		t.Run(name, func(t *testing.T) { test(t, p) })
	}
}

// No statement of an agent reaches beyond its part, whatever the door lets pass.
func attacks(t *testing.T, p *servertest.Postgres) {
	n := newNode(t, p, config.SQLStore{Drop: true})
	for _, role := range []string{"agent_a", "agent_a-b"} {
		n.rows(t, role, engine.Define, "CREATE TABLE notes (text text)")
		n.rows(t, role, engine.Change, "INSERT INTO notes VALUES ($1)", "of "+role)
	}
	for _, text := range servertest.PostgresAttacks {
		for _, op := range []engine.Op{engine.Drop, engine.Query} {
			reply, err := n.do(t, "agent_a", op, text)
			require.NoError(t, err, "%s: %v", text, unwrapped(err))
			if assert.NotNil(t, reply.Error, text) {
				assert.Contains(t, []engine.Code{engine.Denied, engine.Invalid}, reply.Error.Code, text)
			}
		}
	}
	assert.Equal(t, "f|0|0", p.Query(t, `SELECT bool_or(rolsuper OR rolcreaterole OR rolcreatedb OR rolinherit), (SELECT count(*) FROM pg_auth_members WHERE admin_option),
		(SELECT count(*) FROM pg_namespace n JOIN pg_roles o ON o.oid = n.nspowner WHERE o.rolname <> 'scopefs' AND n.nspname <> 'public') FROM pg_roles WHERE rolname ~ '^(agent|login)_'`))
	n.rows(t, "agent_a", engine.Drop, "DROP OWNED BY agent_a")
	n.rows(t, "agent_a", engine.Define, "CREATE TABLE notes (text text)")
	assert.Equal(t, `[["of agent_a-b"]]`, n.rows(t, "agent_a-b", engine.Query, "SELECT * FROM notes"))
}

// What a statement leaves in its session is gone at the agent's next call, and a call is one statement in
// one transaction that only reads, if it is of sql_query.
func sessions(t *testing.T, p *servertest.Postgres) {
	n := newNode(t, p, config.SQLStore{Drop: true})
	n.rows(t, "agent_s", engine.Define, "CREATE TABLE notes (text text)")
	for _, text := range []string{
		"SELECT set_config('statement_timeout', '0', false), set_config('search_path', 'pg_catalog', false), set_config('default_transaction_read_only', 'on', false)",
		"SELECT set_config('role', 'none', false)", "RESET ROLE", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "LISTEN c", "PREPARE x AS SELECT 1",
		"DECLARE c CURSOR WITH HOLD FOR SELECT 1", "SET client_encoding = 'LATIN1'", "SET datestyle = 'German'", "COMMIT", "ROLLBACK", "ROLLBACK AND CHAIN", "SAVEPOINT x", "ABORT", "PREPARE TRANSACTION 'x'",
		"SET LOCAL ROLE NONE", "DISCARD ALL", "DEALLOCATE ALL", "COPY notes FROM STDIN", "COPY notes TO STDOUT", "COPY notes FROM STDIN; DROP TABLE notes", " /* */ copy notes to stdout; COMMIT; DROP TABLE notes",
		"SELECT 1; DROP TABLE notes", "COMMIT; DROP TABLE notes", "", ";", "SHOW ALL", "SELECT", "NOTIFY c", "BEGIN", "SELECT set_config('client_encoding', 'SQL_ASCII', false), chr(200)", "SET bytea_output = 'escape'",
	} {
		for _, op := range []engine.Op{engine.Query, engine.Drop} {
			_, _ = n.do(t, "agent_s", op, text)
			assert.Equal(t, `[["agent_s","10s","agent_s","UTF8","off",0]]`, n.rows(t, "agent_s", engine.Drop,
				"SELECT current_user::text, current_setting('statement_timeout'), current_setting('search_path'), current_setting('client_encoding'), current_setting('transaction_read_only'), (SELECT count(*) FROM notes)"), text)
		}
	}
	assert.Equal(t, `[["1GB","1min","10min","5s"]]`, n.rows(t, "agent_s", engine.Query,
		"SELECT current_setting('temp_file_limit'), current_setting('idle_in_transaction_session_timeout'), current_setting('idle_session_timeout'), current_setting('client_connection_check_interval')"))
	for _, text := range []string{
		"INSERT INTO notes VALUES ('x')", "WITH x AS (DELETE FROM notes RETURNING 1) SELECT * FROM x", "SELECT set_config('transaction_read_only', 'off', true)", "SET TRANSACTION READ WRITE",
		"SELECT query_to_xml('INSERT INTO notes VALUES (1)', true, true, '')", "SELECT set_config('transaction_read_only', 'off', false), query_to_xml('DELETE FROM notes', true, true, '')", "CREATE TABLE x (a int)",
	} {
		_, _ = n.do(t, "agent_s", engine.Query, text)
	}
	assert.Equal(t, `[[0,1]]`, n.rows(t, "agent_s", engine.Query, "SELECT (SELECT count(*) FROM notes), (SELECT count(*) FROM information_schema.tables WHERE table_schema = 'agent_s')"))
}

// No statement takes more time, space or memory than an agent has.
func bounds(t *testing.T, p *servertest.Postgres) {
	n := newNode(t, p, config.SQLStore{Timeout: time.Minute, Size: 4 << 20})
	n.rows(t, "agent_t", engine.Define, "CREATE TABLE notes (n int PRIMARY KEY, text text)")
	n.rows(t, "agent_t", engine.Define, "CREATE VIEW v AS SELECT 1 AS one")
	for _, c := range []struct {
		op   engine.Op
		text string
		code engine.Code
	}{
		{engine.Query, "SELECT pg_sleep(600)", engine.TooLarge},
		{engine.Query, "SELECT set_config('statement_timeout', '0', false), pg_sleep(600)", engine.Denied},
		{engine.Query, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n", engine.TooLarge},
		{engine.Query, "SELECT repeat('(', 100000)::tsquery", engine.TooLarge},
		{engine.Query, "SELECT repeat('x', 1000000)", engine.TooLarge},
		{engine.Query, "SELECT repeat('x', 100000000)", engine.TooLarge},
		{engine.Query, "SELECT $1::int", engine.Invalid},
		{engine.Change, "INSERT INTO notes SELECT i FROM generate_series(1, 2000) i RETURNING n", engine.TooLarge},
		{engine.Change, "INSERT INTO notes VALUES (1), (1)", engine.Conflict},
		{engine.Define, "CREATE TABLE notes (n int)", engine.Conflict},
		{engine.Define, "DROP TABLE notes", engine.Denied},
		{engine.Define, "ALTER TABLE notes DROP COLUMN text", engine.Denied},
		{engine.Define, "ALTER TABLE notes ADD COLUMN x int, DROP COLUMN text", engine.Denied},
		{engine.Change, "DROP VIEW v", engine.Denied},
		{engine.Define, "DROP OWNED BY agent_t", engine.Denied},
	} {
		n.limits.Timeout = time.Minute
		if strings.Contains(c.text, "pg_sleep") || strings.Contains(c.text, "RECURSIVE") {
			n.limits.Timeout = 300 * time.Millisecond
		}
		began := time.Now()
		reply, err := n.do(t, "agent_t", c.op, c.text)
		require.NoError(t, err, c.text)
		require.NotNil(t, reply.Error, c.text)
		assert.Equal(t, c.code, reply.Error.Code, "%s: %v", c.text, reply.Error)
		assert.Less(t, time.Since(began), 30*time.Second, c.text)
	}
	reply, err := n.do(t, "agent_t", engine.Query, "SELECT generate_series(1, 1000000000)")
	require.NoError(t, err)
	assert.Len(t, reply.Rows, 100)
	assert.True(t, reply.More)
	n.rows(t, "agent_t", engine.Define, "ALTER TABLE notes RENAME COLUMN text TO body")
	assert.Equal(t, `null`, n.rows(t, "agent_t", engine.Query, "SELECT body FROM notes"))
	reply, err = n.do(t, "agent_t", engine.Tables, "")
	require.NoError(t, err)
	assert.Equal(t, []engine.Table{
		{Name: "notes", Kind: "table", Columns: []engine.Column{{Name: "n", Type: "integer", NotNull: true, PrimaryKey: true}, {Name: "body", Type: "text"}}},
		{Name: "v", Kind: "view", Columns: []engine.Column{{Name: "one", Type: "integer"}}},
	}, reply.Tables)
	reply, err = n.do(t, "agent_t", engine.Change, "INSERT INTO notes SELECT i FROM generate_series(1, 150000) i")
	require.NoError(t, err)
	require.NotNil(t, reply.Error)
	assert.Equal(t, engine.TooLarge, reply.Error.Code)
	assert.Equal(t, `[[0]]`, n.rows(t, "agent_t", engine.Query, "SELECT count(*) FROM notes"))
	// An agent cannot fill the catalog.
	n.limits.FileBytes = 256 << 10
	var last *engine.Error
	for i := 0; i < 200 && last == nil; i++ {
		reply, err := n.do(t, "agent_u", engine.Define, fmt.Sprintf("CREATE TYPE t%d AS ENUM ('a')", i))
		require.NoError(t, err)
		last = reply.Error
	}
	require.NotNil(t, last)
	assert.Equal(t, engine.TooLarge, last.Code)
	n.rows(t, "agent_v", engine.Define, "CREATE TABLE notes (n int)")
}

// Values go in and come out as they do with SQLite.
func values(t *testing.T, p *servertest.Postgres) {
	n := newNode(t, p, config.SQLStore{})
	n.rows(t, "agent_w", engine.Define, "CREATE TABLE t (i bigint, r double precision, b bytea, o boolean, n numeric, s text)")
	row := []any{int64(1 << 62), 0.5, []byte{0, 255}, int64(1), "12.50", "日本'); DROP TABLE t; --"}
	reply, err := n.do(t, "agent_w", engine.Change, "INSERT INTO t VALUES ($1, $2, $3, $4, $5, $6), (NULL, 'NaN', '', $4, 7, 'x')", row...)
	require.NoError(t, err)
	require.Nil(t, reply.Error)
	assert.EqualValues(t, 2, reply.Changes)
	assert.Equal(t, `[[4611686018427387904,0.5,{"blob":"AP8="},1,12.5,"日本'); DROP TABLE t; --"],[null,null,{"blob":""},1,7,"x"]]`, n.rows(t, "agent_w", engine.Query, "SELECT * FROM t"))
	assert.Equal(t, `[["2024-01-02","2024-01-02T03:04:05.6Z","{1,2}","{\"a\": 1}","1 day","NaN","Infinity"]]`, n.rows(t, "agent_w", engine.Query,
		`SELECT date '2024-01-02', timestamptz '2024-01-02 03:04:05.6+00', ARRAY[1,2], '{"a": 1}'::jsonb, interval '1 day', 'NaN'::numeric, 'Infinity'::float8`))
	reply, err = n.do(t, "agent_w", engine.Query, "SELECT $1::text", "a\x00b")
	require.NoError(t, err)
	require.NotNil(t, reply.Error)
	assert.Equal(t, engine.Invalid, reply.Error.Code)
}

// TestNodes: nodes with one database make the same agents at the same time, and an agent that moves finds its rows.
func TestNodes(t *testing.T) {
	p := startServer(t)
	var all sync.WaitGroup
	nodes := []node{newNode(t, p, config.SQLStore{}), newNode(t, p, config.SQLStore{}), newNode(t, p, config.SQLStore{})}
	for i, n := range nodes {
		for _, role := range []string{"agent_a", "agent_b", "agent_" + strings.Repeat("c", 57)} {
			all.Go(func() {
				reply, err := n.do(t, role, engine.Define, fmt.Sprintf("CREATE TABLE t%d (text text)", i))
				assert.NoError(t, err, "%v", unwrapped(err))
				assert.Nil(t, reply.Error)
			})
		}
	}
	all.Wait()
	for i := range 3 {
		nodes[i].rows(t, "agent_a", engine.Change, fmt.Sprintf("INSERT INTO t%d VALUES ($1)", (i+1)%3), "x")
	}
	for i := range 3 {
		assert.Equal(t, `[["x"]]`, nodes[i].rows(t, "agent_a", engine.Query, fmt.Sprintf("SELECT * FROM t%d", i)))
	}
	// A role may change its own password and settings: those of the role that cannot log in.
	nodes[0].rows(t, "agent_a", engine.Define, "ALTER ROLE agent_a PASSWORD 'x'")
	nodes[0].rows(t, "agent_a", engine.Define, "ALTER ROLE agent_a SET statement_timeout = 0")
	// Roles that others have changed are made again, by whichever node needs them, and open sessions go on.
	p.Query(t, "ALTER ROLE login_a PASSWORD 'x' SUPERUSER; ALTER ROLE agent_a LOGIN")
	fresh := newNode(t, p, config.SQLStore{})
	fresh.rows(t, "agent_a", engine.Query, "SELECT 1")
	nodes[1].rows(t, "agent_a", engine.Query, "SELECT 1")
	assert.Equal(t, "f|f", p.Query(t, "SELECT bool_or(rolsuper), bool_or(rolcanlogin AND rolname = 'agent_a') FROM pg_roles WHERE rolname IN ('login_a', 'agent_a')"))
	// An administrator without the rights, and a role with more, are errors for the operator.
	p.Query(t, "CREATE ROLE low LOGIN CREATEROLE PASSWORD '"+adminPassword+"'; CREATE ROLE agent_e; GRANT pg_read_server_files TO agent_e; GRANT CONNECT ON DATABASE agents TO low")
	_, err := fresh.do(t, "agent_e", engine.Query, "SELECT 1")
	assert.ErrorContains(t, unwrapped(err), "agent_e or login_e is a member of pg_read_server_files: revoke that")
	assert.Equal(t, "0", p.Query(t, "SELECT count(*) FROM pg_roles WHERE rolname = 'login_e'"))
	fresh.Postgres.User = "low"
	assert.ErrorContains(t, fresh.Ping(t.Context()), "low is no superuser")
}

// TestServer: a server that ends makes calls unavailable, and one that is back serves them.
func TestServer(t *testing.T) {
	p := startServer(t)
	n := newNode(t, p, config.SQLStore{Timeout: 20 * time.Second})
	n.rows(t, "agent_a", engine.Define, "CREATE TABLE notes (text text)")
	n.rows(t, "agent_a", engine.Change, "INSERT INTO notes VALUES ('x')")
	running := make(chan error, 1)
	go func() {
		_, err := n.do(t, "agent_a", engine.Change, "INSERT INTO notes SELECT 'y' FROM pg_sleep(15)")
		running <- err
	}()
	require.Eventually(t, func() bool {
		return p.Query(t, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(15)' AND usename = 'login_a'") == "1"
	}, 30*time.Second, 20*time.Millisecond)
	p.Kill()
	unavailable := func(err error) {
		t.Helper()
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, tools.Unavailable, e.Code)
		assert.NotContains(t, fmt.Sprint(err, unwrapped(err)), adminPassword)
	}
	unavailable(<-running)
	_, err := n.do(t, "agent_a", engine.Query, "SELECT 1")
	unavailable(err)
	assert.Error(t, n.Ping(t.Context()))
	p.Start(t)
	assert.Equal(t, `[["x"]]`, n.rows(t, "agent_a", engine.Query, "SELECT * FROM notes"))
	// A server that answers nothing.
	n.limits.Timeout = 300 * time.Millisecond
	pid, err := strconv.Atoi(p.Query(t, "SELECT pid FROM pg_stat_activity WHERE usename = 'login_a'"))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = n.Do(ctx, "agent_a", &engine.Request{Op: engine.Query, SQL: "SELECT 1", Limit: 1})
	assert.Error(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	n.limits.Timeout = 20 * time.Second
	n.rows(t, "agent_a", engine.Query, "SELECT 1")
	// Nobody finds a password in the server's log.
	log, err := os.ReadFile(p.Dir + "/log")
	require.NoError(t, err)
	assert.Contains(t, string(log), "CREATE ROLE")
	assert.NotContains(t, string(log), passwordOf(adminPassword, "login_a"))
	// A server that takes a login without a password gets none.
	require.NoError(t, os.WriteFile(p.Dir+"/data/pg_hba.conf", []byte("local all all password\n"), 0o600))
	p.Query(t, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool {
		err := n.Ping(t.Context())
		return errors.Is(err, errLogin)
	}, 30*time.Second, 20*time.Millisecond)
}

// TestTLS: a node speaks to the server with the name that the URL has, and to no other one.
func TestTLS(t *testing.T) {
	p := startServer(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"db.example"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	owner, err := os.Stat(p.Dir + "/data/PG_VERSION")
	require.NoError(t, err)
	uid := int(owner.Sys().(*syscall.Stat_t).Uid)
	for name, block := range map[string]*pem.Block{"server.crt": {Type: "CERTIFICATE", Bytes: der}, "server.key": {Type: "PRIVATE KEY", Bytes: secret}} {
		require.NoError(t, os.WriteFile(p.Dir+"/data/"+name, pem.EncodeToMemory(block), 0o600))
		require.NoError(t, os.Chown(p.Dir+"/data/"+name, uid, uid))
	}
	n := newNode(t, p, config.SQLStore{})
	n.Postgres.Network, n.Postgres.Address = "tcp", "127.0.0.1:"+p.Port
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	n.TLS = &tls.Config{ServerName: "db.example", RootCAs: roots}
	assert.ErrorContains(t, n.Ping(t.Context()), "the server has none: write ssl = on")
	p.Query(t, "ALTER SYSTEM SET ssl = on")
	p.Query(t, "SELECT pg_reload_conf()")
	require.Eventually(t, func() bool { return n.Ping(t.Context()) == nil }, 30*time.Second, 20*time.Millisecond)
	n.rows(t, "agent_a", engine.Query, "SELECT 1")
	assert.Equal(t, "t", p.Query(t, "SELECT bool_and(s.ssl) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.usename = 'login_a'"))
	n.TLS.ServerName = "other.example"
	assert.ErrorContains(t, n.Ping(t.Context()), "certificate")
}
