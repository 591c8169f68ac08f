package postgres

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/lib/pq"
)

// An agent has two roles, and a schema that it does not own: so it can grant nobody the use of
// the schema, nor drop or rename it.
//
//	agent_{id}  owns the agent's tables. Nobody can log in as it: its password and settings,
//	            which a role may change itself, mean nothing.
//	login_{id}  logs in, and has no right but to become agent_{id}. What undoes SET ROLE
//	            loses every right.
//
// The password of login_{id} follows from the administrator's and the name, so that all nodes
// with one database have the same. It reaches the server as a SCRAM verifier alone.

// loginOf returns the role that logs in for an agent's role.
func loginOf(role string) string { return "login_" + strings.TrimPrefix(role, "agent_") }

func passwordOf(admin, login string) string {
	return hex.EncodeToString(sum([]byte(admin), "scopefs "+login))
}

func sum(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// verifier returns what the server keeps of a password; RFC 5803.
func verifier(password string) (string, error) {
	const rounds = 4096
	salt := make([]byte, 16)
	rand.Read(salt)
	salted, err := pbkdf2.Key(sha256.New, password, salt, rounds, sha256.Size)
	if err != nil {
		return "", err
	}
	stored := sha256.Sum256(sum(salted, "Client Key"))
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", rounds, b64(salt), b64(stored[:]), b64(sum(salted, "Server Key"))), nil
}

// functions are those that PostgreSQL gives everybody and that reach beyond an agent's part:
// locks and notifications of the whole database, large objects, the server's log of changes, also of a
// transaction that only reads, settings, what others do, and objects of others by their numbers.
const functions = `^(pg_(try_)?advisory_|lo_|loread$|lowrite$|pg_notif|pg_listening_channels$|pg_stat_|pg_lock_status$|pg_prepared_|pg_blocking_pids$` +
	`|pg_safe_snapshot|pg_isolation_|pg_export_snapshot$|pg_(terminate|cancel)_backend$|pg_cursor$|pg_logical_emit_message$|set_config$` +
	`|pg_(total_|table_|indexes_|database_|tablespace_|)(relation_)?size$` +
	`|pg_get_(view|rule|trigger|constraint|index|function|statisticsobj|partkey)def|pg_describe_object$|pg_identify_object)`

// common is what every agent has: how large its part is, which columns it has, and its tables.
// The functions run as the administrator, and take the agent from the login. No right covers rules and triggers,
// which make a statement do something else, with the rights of whoever runs it.
const common = `
REVOKE ALL ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pg_catalog FROM PUBLIC;
CREATE SCHEMA IF NOT EXISTS scopefs;
REVOKE ALL ON SCHEMA scopefs FROM PUBLIC;
GRANT USAGE ON SCHEMA scopefs TO PUBLIC;
CREATE OR REPLACE FUNCTION scopefs.part() RETURNS text LANGUAGE sql SET search_path = pg_catalog, pg_temp AS
	$$ SELECT 'agent_' || substr(session_user::text, 7) $$;
CREATE OR REPLACE FUNCTION scopefs.state(OUT bytes bigint, OUT columns text) LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	WITH mine AS MATERIALIZED (SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = scopefs.part()),
	attributes AS MATERIALIZED (SELECT a.* FROM mine JOIN pg_attribute a ON a.attrelid = mine.oid WHERE mine.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0)
	SELECT (SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM mine WHERE relkind IN ('r', 'm'))
		+ 8192 * (SELECT count(*) FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = (SELECT oid FROM pg_authid WHERE rolname = scopefs.part()))
		+ 256 * (SELECT count(*) FROM attributes),
		(SELECT coalesce(string_agg(attrelid || '.' || attnum, ' '), '') FROM attributes WHERE NOT attisdropped) $$;
CREATE OR REPLACE FUNCTION scopefs.tables(after text, most bigint, OUT name text, OUT kind text, OUT columns text) RETURNS SETOF record
	LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
	SELECT c.relname, CASE WHEN c.relkind IN ('v', 'm') THEN 'view' ELSE 'table' END,
		(SELECT coalesce(json_agg(json_build_object('name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull, 'primary_key',
			EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey))) ORDER BY a.attnum), '[]')::text
			FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname = scopefs.part() AND c.relkind IN ('r', 'p', 'v', 'm') AND c.relname::text COLLATE "C" > after
	ORDER BY c.relname LIMIT most $$;
CREATE OR REPLACE FUNCTION scopefs.refuse() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$ BEGIN
	IF starts_with(session_user::text, 'login_') THEN
		RAISE insufficient_privilege USING MESSAGE = tg_tag || ' is not allowed';
	END IF; END $$;
DROP EVENT TRIGGER IF EXISTS scopefs;
CREATE EVENT TRIGGER scopefs ON ddl_command_start WHEN TAG IN ('CREATE RULE', 'CREATE TRIGGER') EXECUTE FUNCTION scopefs.refuse();
`

// settings are of each login. The first ones only a superuser can change.
const settings = `temp_file_limit = '1GB', idle_in_transaction_session_timeout = '60s', idle_session_timeout = '10min', client_connection_check_interval = '5s',
	tcp_keepalives_idle = '30s', tcp_keepalives_interval = '10s', tcp_keepalives_count = '3'`

// connections bounds the sessions of one agent, from all nodes.
const connections = 16

// asAdmin runs f in a transaction of the administrator, one at a time on all nodes.
func (s *Store) asAdmin(ctx context.Context, f func(*session) error) error {
	select {
	case s.admin <- struct{}{}:
		defer func() { <-s.admin }()
	case <-ctx.Done():
		return ctx.Err()
	}
	secret, err := s.Secret(ctx)
	if err != nil {
		return fmt.Errorf("password: %w", err)
	}
	one, err := s.login(ctx, s.Postgres.User, secret.Reveal())
	if err != nil {
		return fmt.Errorf("log in as %s: %w", s.Postgres.User, err)
	}
	defer one.close()
	defer context.AfterFunc(ctx, one.close)()
	if err := one.exec("BEGIN; SET LOCAL search_path = pg_catalog"); err != nil {
		return err
	}
	if err := s.rights(one); err != nil {
		return err
	}
	// No agent can hold the lock: prepare takes the functions from PUBLIC.
	if err := one.exec("SELECT pg_advisory_xact_lock(8315178144)"); err != nil {
		return err
	}
	if err := prepare(one); err != nil {
		return err
	}
	if err := f(one); err != nil {
		return err
	}
	return one.exec("COMMIT")
}

// rights checks that the administrator can make roles, and the version of the server.
func (s *Store) rights(one *session) error {
	rights,
		err := one.texts(`SELECT current_setting('is_superuser') = 'on' UNION ALL SELECT current_setting('server_version_num')::int >= 150000`)
	if err != nil {
		return err
	}
	if len(rights) != 2 || rights[0] != "true" {
		return fmt.Errorf("%s is no superuser: name one in postgres", s.Postgres.User)
	}
	if rights[1] != "true" {
		return errors.New("the server is too old: want PostgreSQL 15 or newer")
	}
	return nil
}

// prepare takes from everybody what PostgreSQL gives to everybody in this database. A comment of
// the schema scopefs says that it was done.
func prepare(one *session) error {
	sum := sha256.Sum256([]byte(common + functions))
	mark := "scopefs " + hex.EncodeToString(sum[:8])
	done, err := one.texts(`SELECT obj_description(to_regnamespace('scopefs'), 'pg_namespace')`)
	if err != nil || len(done) == 1 && done[0] == mark {
		return err
	}
	revoke, err := one.texts(`SELECT 'REVOKE ALL ON FUNCTION ' || string_agg(oid::regprocedure::text, ', ') || ' FROM PUBLIC' FROM pg_proc
		WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ ` + pq.QuoteLiteral(functions) + `
		UNION ALL SELECT 'REVOKE ALL ON LANGUAGE ' || string_agg(quote_ident(lanname), ', ') || ' FROM PUBLIC' FROM pg_language WHERE lanpltrusted
		UNION ALL SELECT 'REVOKE ALL ON DATABASE ' || quote_ident(current_database()) || ' FROM PUBLIC'`)
	if err != nil {
		return err
	}
	return one.exec(strings.Join(revoke, "; ") + ";" + common + "COMMENT ON SCHEMA scopefs IS " + pq.QuoteLiteral(mark))
}

// provide makes the roles and the schema of an agent, or gives them the attributes that they
// have lost. A login that is in progress meanwhile succeeds with either verifier, as both are of
// one password.
func (s *Store) provide(ctx context.Context, role, password string) error {
	login := loginOf(role)
	secret, err := verifier(password)
	if err != nil {
		return err
	}
	agent, entry := pq.QuoteIdentifier(role), pq.QuoteIdentifier(login)
	return s.asAdmin(ctx, func(one *session) error {
		names := pq.QuoteLiteral(role) + ", " + pq.QuoteLiteral(login)
		there, err := one.texts("SELECT rolname FROM pg_roles WHERE rolname IN (" + names + ")")
		if err != nil {
			return err
		}
		var make strings.Builder
		for _, name := range []string{role, login} {
			if !strings.Contains(" "+strings.Join(there, " ")+" ", " "+name+" ") {
				make.WriteString("CREATE ROLE " + pq.QuoteIdentifier(name) + ";")
			}
			make.WriteString("ALTER ROLE " + pq.QuoteIdentifier(name) + " NOSUPERUSER NOINHERIT NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;")
		}
		fmt.Fprintf(&make, "ALTER ROLE %s NOLOGIN; ALTER ROLE %s LOGIN CONNECTION LIMIT %d PASSWORD %s; GRANT %[1]s TO %[2]s;",
			agent, entry, connections, pq.QuoteLiteral(secret))
		fmt.Fprintf(&make,
			"GRANT CONNECT ON DATABASE %s TO %s; CREATE SCHEMA IF NOT EXISTS %s; ALTER SCHEMA %[3]s OWNER TO CURRENT_USER; GRANT USAGE, CREATE ON SCHEMA %[3]s TO %[3]s;",
			pq.QuoteIdentifier(s.Postgres.Database), entry, agent)
		for setting := range strings.SplitSeq(settings+", search_path = "+agent, ",") {
			make.WriteString("ALTER ROLE " + entry + " SET " + setting + ";")
		}
		if err := one.exec(make.String()); err != nil {
			return err
		}
		others, err := one.texts(
			`SELECT roleid::regrole FROM pg_auth_members WHERE member IN (SELECT oid FROM pg_roles WHERE rolname IN (` +
				names + `)) AND roleid <> (SELECT oid FROM pg_roles WHERE rolname = ` + pq.QuoteLiteral(role) + ")")
		if err == nil && len(others) > 0 {
			err = fmt.Errorf("%s or %s is a member of %s: revoke that", role, login, strings.Join(others, ", "))
		}
		return err
	})
}
