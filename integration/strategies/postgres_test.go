package strategies

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// startPostgres starts a server on a socket, as an unprivileged user: it refuses to
// run as root.
func startPostgres(t *testing.T) (dsn string) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		need.Skip(t, "PostgreSQL is not installed")
	}
	dir, err := os.MkdirTemp("", "pg") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		const nobody = 65534
		attr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		require.NoError(t, os.Chown(dir, nobody, nobody))
	}
	word := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(word, []byte("admin"), 0o644))
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(filepath.Dir(found[len(found)-1]), program), args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, attr, []string{"LC_ALL=C", "TZ=UTC"}
		return cmd
	}
	out, err := command("initdb", "-D", dir+"/data", "-U", "admin", "--pwfile", word, "-A", "scram-sha-256", "-E", "UTF8", "--no-sync").CombinedOutput()
	require.NoError(t, err, "%s", out)
	server := command("postgres", "-F", "-D", dir+"/data", "-k", dir, "-c", "listen_addresses=", "-c", "shared_buffers=16MB")
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGQUIT) // at once, with its children
		server.Wait()
	})
	return "host=" + dir + " sslmode=disable"
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("postgres", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// all allows every tool.
type all struct{}

func (all) Call(string, bool) scope.Decision {
	return scope.Decision{Allow: true, Kind: scope.KindTool, Rule: "all"}
}
func (all) RatesOf(string) []scope.Rate     { return nil }
func (all) FiltersOf(string) []scope.Filter { return nil }
func (all) Version() string                 { return "1" }

// TestPostgres: two agents use the same table name and never meet, through the door
// and behind it.
func TestPostgres(t *testing.T) {
	need.Once(t)
	t.Parallel()
	dsn := startPostgres(t)
	admin := open(t, dsn+" user=admin password=admin dbname=postgres")
	require.Eventually(t, func() bool { return admin.Ping() == nil }, 30*time.Second, 20*time.Millisecond)
	_, err := admin.Exec("CREATE DATABASE agents")
	require.NoError(t, err)
	d := Database{Admin: open(t, dsn+" user=admin password=admin dbname=agents"), DSN: dsn + " dbname=agents", Secret: []byte("of the daemon")}
	require.NoError(t, d.Prepare(t.Context(), "agents"))
	add, err := d.Tool()
	require.NoError(t, err)
	call := func(id scope.ID, table, text string) (rows int, err error) {
		set, err := tools.NewSet(tools.Gate{Agent: id, Rules: func() tools.Rules { return all{} }, Record: func(context.Context, audit.Event) error { return nil }}, add)
		require.NoError(t, err)
		in, err := json.Marshal(map[string]string{"table": table, "text": text})
		require.NoError(t, err)
		out, err := set.Call(t.Context(), tools.Call{Tool: "note_add", Args: in})
		var result added
		if err == nil {
			require.NoError(t, json.Unmarshal(out.Structured, &result))
		}
		return result.Rows, err
	}
	for _, id := range []scope.ID{"a", "a-b"} {
		require.NoError(t, d.AddAgent(t.Context(), "agents", id))
		for _, table := range []string{"notes", `"agent_a"."notes"`, `x"; DROP SCHEMA "agent_a" CASCADE; --`, "pg_catalog.pg_authid", "Größe", "../a", "%s"} {
			rows, err := call(id, table, "of "+string(id))
			require.NoError(t, err, table)
			assert.Equal(t, 1, rows, table)
		}
	}
	for _, table := range []string{"", "a\x00b", strings.Repeat("n", 64)} {
		_, err := call("a", table, "x")
		assert.ErrorContains(t, err, "invalid", "%q", table)
	}
	_, err = call("c", "notes", "x")
	assert.Error(t, err, "it has no role")

	a, err := d.Login(`"agent_a"`)
	require.NoError(t, err)
	defer a.Close()
	var own string
	require.NoError(t, a.QueryRow("SELECT text FROM notes").Scan(&own))
	assert.Equal(t, "of a", own)
	for _, text := range attacks {
		_, err := a.Exec(text)
		e, ok := err.(*pq.Error)
		if assert.True(t, ok, "%s: %v", text, err) {
			assert.Contains(t, []string{"insufficient_privilege", "undefined_function", "undefined_object"}, e.Code.Name(), "%s: %v", text, err)
		}
	}
	for _, database := range []string{"postgres", "template1"} {
		other := open(t, strings.Replace(dsn, "host", "dbname="+database+" host", 1)+" user=agent_a password="+d.password(`"agent_a"`))
		assert.ErrorContains(t, other.Ping(), "permission denied for database", database)
	}
	var rows, schemas int
	require.NoError(t, d.Admin.QueryRow(`SELECT count(*) FROM "agent_a-b".notes WHERE text = 'of a-b'`).Scan(&rows))
	require.NoError(t, d.Admin.QueryRow(`SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'agent%'`).Scan(&schemas))
	assert.Equal(t, []int{1, 2}, []int{rows, schemas})
}

// attacks are statements of agent a, past the strategy. The server refuses each.
var attacks = []string{
	`SET ROLE "agent_a-b"`, `SET ROLE admin`, `SET SESSION AUTHORIZATION "agent_a-b"`, `SET SESSION AUTHORIZATION admin`,
	`SELECT * FROM "agent_a-b".notes`, `INSERT INTO "agent_a-b".notes VALUES ('x')`, `DROP TABLE "agent_a-b".notes`, `CREATE TABLE "agent_a-b".x (a int)`,
	`DROP SCHEMA "agent_a-b" CASCADE`, `ALTER SCHEMA "agent_a-b" RENAME TO x`, `GRANT USAGE ON SCHEMA "agent_a-b" TO agent_a; SELECT * FROM "agent_a-b".notes`, `GRANT "agent_a-b" TO agent_a`,
	`ALTER ROLE "agent_a-b" PASSWORD 'x'`, `ALTER ROLE agent_a SUPERUSER`, `ALTER ROLE agent_a CREATEROLE`, `ALTER ROLE agent_a CONNECTION LIMIT -1`, `CREATE ROLE x`, `DROP ROLE "agent_a-b"`,
	`CREATE TABLE public.x (a int)`, `CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`, `CREATE SCHEMA x`, `CREATE DATABASE x`, `CREATE TEMP TABLE x (a int)`,
	`CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'`, `CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x', 'y'`, `CREATE FUNCTION f() RETURNS int LANGUAGE internal AS 'pg_read_file'`, `DO 'BEGIN END'`,
	`CREATE EXTENSION dblink`, `CREATE EXTENSION file_fdw`, `SELECT dblink('dbname=postgres', 'SELECT 1')`, `CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw`, `LOAD '/tmp/x.so'`,
	`SELECT pg_read_file('/etc/passwd')`, `SELECT pg_read_binary_file('PG_VERSION')`, `SELECT pg_ls_dir('.')`, `SELECT pg_stat_file('.')`, `SELECT pg_ls_logdir()`, `SELECT pg_current_logfile()`,
	`COPY notes FROM '/etc/passwd'`, `COPY notes TO '/tmp/x'`, `COPY notes FROM PROGRAM 'id'`, `COPY notes TO PROGRAM 'sh'`,
	`SELECT lo_import('/etc/passwd')`, `SELECT lo_export(1, '/tmp/x')`, `SELECT lo_create(0)`, `SELECT lo_from_bytea(0, 'x')`, `SELECT * FROM pg_largeobject`,
	`SELECT * FROM pg_authid`, `SELECT * FROM pg_shadow`, `SELECT * FROM pg_user_mapping`, `SELECT * FROM pg_hba_file_rules`, `SELECT * FROM pg_file_settings`, `SELECT * FROM pg_statistic`,
	`ALTER SYSTEM SET work_mem = '1GB'`, `SET session_preload_libraries = 'x'`, `SELECT pg_reload_conf()`, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'admin'`,
	`CREATE PUBLICATION p FOR ALL TABLES`, `CREATE SUBSCRIPTION s CONNECTION 'dbname=postgres' PUBLICATION p`, `SELECT pg_create_logical_replication_slot('x', 'pgoutput')`, `CHECKPOINT`,
	`CREATE EVENT TRIGGER t ON ddl_command_start EXECUTE FUNCTION f()`, `ALTER TABLE notes OWNER TO "agent_a-b"`, `REASSIGN OWNED BY "agent_a-b" TO agent_a`,
}

// TestPage holds docs/strategies.md to the code: it has schemas.go as it is, and
// each row of its table is true.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/strategies.md")
	require.NoError(t, err)
	code, err := os.ReadFile("schemas.go")
	require.NoError(t, err)
	assert.Contains(t, string(page), "```go\n"+string(code)+"```\n", "copy integration/strategies/schemas.go into the page")
	strategies := map[string]scope.Strategy{
		"Prefix": scope.Prefix{Base: "/srv"}, "File": scope.File{Dir: "/state/db"}, "Keys": scope.Keys, "Buckets": scope.Buckets, "Subjects": scope.Subjects{}, "None": scope.None{}, "Schemas": Schemas{},
	}
	rows := 0
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		s := strategies[strings.Trim(cells[0], " ")]
		if s == nil || len(cells) != 3 {
			continue
		}
		rows++
		key, err := strconv.Unquote(strings.Trim(cells[1], "` "))
		require.NoError(t, err, line)
		want := strings.Trim(cells[2], "` ")
		name, err := s.Apply("a", key)
		switch want {
		case "outside_scope":
			assert.ErrorIs(t, err, scope.ErrOutside, line)
		case "invalid":
			assert.ErrorIs(t, err, scope.ErrKey, line)
		default:
			assert.NoError(t, err, line)
			assert.Equal(t, want, name, line)
			back, err := s.Enforce("a", name)
			assert.NoError(t, err, line)
			assert.Equal(t, key, back, line)
			if _, none := s.(scope.None); !none {
				for _, other := range []scope.ID{"a-b", "ab", "b"} {
					_, err = s.Enforce(other, name)
					assert.ErrorIs(t, err, scope.ErrOutside, "%s: %s", other, line)
				}
			}
		}
	}
	assert.Greater(t, rows, 20)
}

// TestLongID: ids whose roles PostgreSQL would cut off to the same name have none.
func TestLongID(t *testing.T) {
	id := scope.ID(strings.Repeat("a", 58))
	_, err := Schemas{}.Apply(id, "t")
	assert.ErrorIs(t, err, scope.ErrKey)
	_, err = Schemas{}.Enforce(id, fmt.Sprintf(`"agent_%.57s"."t"`, id))
	assert.Error(t, err)
}
