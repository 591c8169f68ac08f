package servertest

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// Postgres is a PostgreSQL server with the database "agents" and the superuser [Admin], which listens on a socket and on the
// loopback interface. Every login needs a password.
type Postgres struct {
	*Server
	Dir     string // of the socket
	Port    string
	program func(name string, args ...string) *exec.Cmd
}

// StartPostgres starts a PostgreSQL server, as an unprivileged user: it refuses to run as root. password is the one of Admin.
func StartPostgres(t testing.TB, password string) *Postgres {
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
	_, port, err := net.SplitHostPort(FreeAddress(t))
	require.NoError(t, err)
	p := &Postgres{Dir: dir, Port: port}
	p.program = func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(filepath.Dir(found[len(found)-1]), name), args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, attr, []string{"LC_ALL=C", "TZ=UTC", "PGHOST=" + dir, "PGPORT=" + port,
			"PGUSER=" + Admin, "PGPASSWORD=" + password}
		return cmd
	}
	word := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(word, []byte(password), 0o644))
	out, err := p.program("initdb", "-D", dir+"/data", "-U", Admin, "--pwfile", word, "-A", "scram-sha-256", "-E",
		"UTF8", "--no-sync").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.Server = Start(t, func() *exec.Cmd {
		return p.program("postgres", "-F", "-D", dir+"/data", "-k", dir, "-p", port, "-c", "listen_addresses=127.0.0.1",
			"-c", "shared_buffers=16MB", "-c", "log_statement=ddl",
			"-c", "logging_collector=on", "-c", "log_directory="+dir, "-c", "log_filename=log")
	}, func() bool { return p.program("psql", "-c", "SELECT 1", "postgres").Run() == nil })
	t.Cleanup(p.Kill)
	out, err = p.program("createdb", "agents").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return p
}

// Kill ends the server at once, with its children.
func (p *Postgres) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	_ = p.cmd.Wait()
}

// Query runs statements as Admin in the database "agents", and returns what they print.
func (p *Postgres) Query(t testing.TB, text string) string {
	t.Helper()
	out, err := p.program("psql", "-v", "ON_ERROR_STOP=1", "-qAtc", text, "agents").CombinedOutput()
	require.NoError(t, err, "%s: %s", text, out)
	return strings.TrimSpace(string(out))
}

// PostgresAttacks are statements of agent a against the server, the administrator and agent a-b. Each must fail.
var PostgresAttacks = []string{
	`SET ROLE "agent_a-b"`, `SET ROLE scopefs`, `SET SESSION AUTHORIZATION "agent_a-b"`, `SET SESSION AUTHORIZATION scopefs`,
	`SELECT * FROM "agent_a-b".notes`, `INSERT INTO "agent_a-b".notes VALUES ('x')`, `DROP TABLE "agent_a-b".notes`,
	`CREATE TABLE "agent_a-b".x (a int)`,
	`DROP SCHEMA "agent_a-b" CASCADE`, `ALTER SCHEMA "agent_a-b" RENAME TO x`,
	`GRANT USAGE ON SCHEMA "agent_a-b" TO agent_a`, `GRANT "agent_a-b" TO agent_a`,
	`ALTER ROLE "agent_a-b" PASSWORD 'x'`, `ALTER ROLE agent_a SUPERUSER`, `ALTER ROLE agent_a CREATEROLE`,
	`ALTER ROLE agent_a CONNECTION LIMIT -1`, `CREATE ROLE x`, `DROP ROLE "agent_a-b"`,
	`CREATE TABLE public.x (a int)`, `CREATE FUNCTION public.f() RETURNS int LANGUAGE sql AS 'SELECT 1'`,
	`CREATE SCHEMA x`, `CREATE DATABASE x`, `CREATE TEMP TABLE x (a int)`,
	`CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'`,
	`CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'x', 'y'`,
	`CREATE FUNCTION f() RETURNS int LANGUAGE internal AS 'pg_read_file'`, `DO 'BEGIN END'`,
	`CREATE EXTENSION dblink`, `CREATE EXTENSION file_fdw`, `SELECT dblink('dbname=postgres', 'SELECT 1')`,
	`CREATE SERVER s FOREIGN DATA WRAPPER postgres_fdw`, `LOAD '/tmp/x.so'`,
	`SELECT pg_read_file('/etc/passwd')`, `SELECT pg_read_binary_file('PG_VERSION')`, `SELECT pg_ls_dir('.')`,
	`SELECT pg_stat_file('.')`, `SELECT pg_ls_logdir()`, `SELECT pg_current_logfile()`,
	`COPY notes FROM '/etc/passwd'`, `COPY notes TO '/tmp/x'`, `COPY notes FROM PROGRAM 'id'`, `COPY notes TO PROGRAM 'sh'`,
	`SELECT lo_import('/etc/passwd')`, `SELECT lo_export(1, '/tmp/x')`, `SELECT lo_create(0)`,
	`SELECT lo_from_bytea(0, 'x')`, `SELECT * FROM pg_largeobject`,
	`SELECT * FROM pg_authid`, `SELECT * FROM pg_shadow`, `SELECT * FROM pg_user_mapping`,
	`SELECT * FROM pg_hba_file_rules`, `SELECT * FROM pg_file_settings`, `SELECT * FROM pg_statistic`,
	`ALTER SYSTEM SET work_mem = '1GB'`, `SET session_preload_libraries = 'x'`, `SELECT pg_reload_conf()`,
	`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'scopefs'`,
	`CREATE PUBLICATION p FOR ALL TABLES`, `CREATE SUBSCRIPTION s CONNECTION 'dbname=postgres' PUBLICATION p`,
	`SELECT pg_create_logical_replication_slot('x', 'pgoutput')`, `CHECKPOINT`,
	`CREATE EVENT TRIGGER t ON ddl_command_start EXECUTE FUNCTION f()`, `ALTER TABLE notes OWNER TO "agent_a-b"`,
	`REASSIGN OWNED BY "agent_a-b" TO agent_a`,
	// What else reaches beyond an agent's part.
	`SELECT set_config('role', 'agent_a-b', false)`, `SELECT set_config('role', 'scopefs', false)`,
	`SELECT set_config('session_authorization', 'scopefs', false)`,
	`GRANT agent_a TO "agent_a-b"`, `GRANT agent_a TO PUBLIC`, `ALTER ROLE login_a PASSWORD 'x'`,
	`ALTER ROLE login_a SET statement_timeout = 0`, `ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'`,
	`ALTER SCHEMA agent_a RENAME TO x`, `DROP SCHEMA agent_a CASCADE`, `ALTER SCHEMA agent_a OWNER TO agent_a`,
	`CREATE SCHEMA AUTHORIZATION agent_a`,
	`CREATE FUNCTION f() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'`,
	`CREATE FUNCTION f() RETURNS int RETURN 1`, `CREATE PROCEDURE f() LANGUAGE sql AS 'SELECT 1'`,
	`CREATE OR REPLACE FUNCTION scopefs.state(OUT bytes bigint, OUT columns text) LANGUAGE internal AS 'x'`,
	`CREATE TABLE scopefs.x (a int)`, `DROP FUNCTION scopefs.state()`,
	`SELECT pg_advisory_lock(8315178144)`, `SELECT pg_try_advisory_xact_lock_shared(1, 2)`,
	`SELECT pg_advisory_unlock_all()`, `SELECT pg_notify('c', 'x')`, `SELECT pg_notification_queue_usage()`,
	`SELECT * FROM pg_stat_activity`, `SELECT pg_stat_get_activity(NULL)`, `SELECT * FROM pg_locks`,
	`SELECT pg_cancel_backend(1)`, `SELECT pg_export_snapshot()`, `SELECT pg_relation_size(1259)`,
	`SELECT * FROM pg_roles`, `SELECT nspname FROM pg_namespace`, `SELECT relname FROM pg_class`,
	`SELECT prosrc FROM pg_proc`, `SELECT datname FROM pg_database`, `SELECT pg_get_viewdef(1)`,
	`LOCK TABLE pg_class IN ACCESS SHARE MODE`, `COPY (SELECT 1) TO PROGRAM 'id'`, `SET temp_file_limit = -1`,
	`SET log_statement = 'none'`, `SELECT set_config('temp_file_limit', '-1', false)`,
	`SELECT pg_logical_emit_message(false, 'x', 'y')`, `SELECT pg_logical_emit_message(true, 'x', 'y'::bytea)`,
	`SELECT set_config('role', 'none', false)`, `SELECT set_config('work_mem', '1GB', true)`,
	`CREATE RULE r AS ON INSERT TO notes DO ALSO SELECT 1`,
	`CREATE OR REPLACE RULE r AS ON UPDATE TO notes DO INSTEAD NOTHING`, `SELECT pg_describe_object(1259, 1259, 0)`,
	`SELECT pg_identify_object(1259, 1259, 0)`,
	`CREATE TRIGGER t BEFORE UPDATE ON notes FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
	`DROP EVENT TRIGGER scopefs`, `ALTER EVENT TRIGGER scopefs DISABLE`,
	`CREATE CONSTRAINT TRIGGER t AFTER INSERT ON notes FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()`, `DROP FUNCTION scopefs.refuse() CASCADE`,
	`CREATE TABLESPACE x LOCATION '/tmp'`, `ALTER DATABASE agents SET work_mem = '1GB'`,
	`COMMENT ON SCHEMA scopefs IS 'x'`, `VACUUM pg_class`, `IMPORT FOREIGN SCHEMA x FROM SERVER y INTO agent_a`,
}
