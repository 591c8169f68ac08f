package strategies

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/lib/pq"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// Schemas divides a PostgreSQL database among agents. Agent a has the role and the
// schema "agent_a", and the key notes is the table "agent_a"."notes".
type Schemas struct{}

// Apply returns the quoted name of a table, or of the schema for the key "".
func (Schemas) Apply(id scope.ID, key string) (string, error) {
	role := "agent_" + string(id)
	switch {
	case len(role) > 63 || len(key) > 63: // PostgreSQL cuts longer names off: two would be one
		return "", fmt.Errorf("%w: a name in PostgreSQL has at most 63 bytes", scope.ErrKey)
	case strings.Contains(key, "\x00") || !utf8.ValidString(key):
		return "", fmt.Errorf("%w: it is no text", scope.ErrKey)
	case key == "":
		return pq.QuoteIdentifier(role), nil
	}
	return pq.QuoteIdentifier(role) + "." + pq.QuoteIdentifier(key), nil
}

// Enforce returns the key of a name that Apply returned for the agent.
func (s Schemas) Enforce(id scope.ID, name string) (string, error) {
	part, err := s.Apply(id, "")
	if err != nil || name == part {
		return "", err
	}
	rest, _ := strings.CutPrefix(name, part+`."`)
	key := strings.ReplaceAll(strings.TrimSuffix(rest, `"`), `""`, `"`)
	if again, err := s.Apply(id, key); err != nil || again != name {
		return "", scope.ErrOutside
	}
	return key, nil
}

// Database is a PostgreSQL database with a role for each agent. Its tools log in as
// the agent's role, so that the server is the second wall: SQL that gets past the
// strategy has the rights of one agent.
type Database struct {
	Admin  *sql.DB // a superuser's, for New and AddAgent
	DSN    string  // of a login, without user and password
	Secret []byte  // of the daemon: the roles' passwords follow from it
}

// Prepare takes from everybody what PostgreSQL gives to everybody.
func (d Database) Prepare(ctx context.Context, database string) error {
	_, err := d.Admin.ExecContext(ctx, `
		REVOKE ALL ON DATABASE postgres, template1, `+pq.QuoteIdentifier(database)+` FROM PUBLIC;
		REVOKE ALL ON SCHEMA public FROM PUBLIC;
		REVOKE ALL ON LANGUAGE plpgsql FROM PUBLIC;
		REVOKE EXECUTE ON FUNCTION lo_creat(integer), lo_create(oid), lo_from_bytea(oid, bytea) FROM PUBLIC`)
	return err
}

// AddAgent makes the role and the schema of an agent.
func (d Database) AddAgent(ctx context.Context, database string, id scope.ID) error {
	role, err := Schemas{}.Apply(id, "")
	if err != nil {
		return err
	}
	_, err = d.Admin.ExecContext(ctx, fmt.Sprintf(`
		CREATE ROLE %[1]s LOGIN NOINHERIT CONNECTION LIMIT 8 PASSWORD %[2]s;
		GRANT CONNECT ON DATABASE %[3]s TO %[1]s;
		CREATE SCHEMA %[1]s AUTHORIZATION %[1]s;
		ALTER ROLE %[1]s SET search_path = %[1]s`, role, pq.QuoteLiteral(d.password(role)), pq.QuoteIdentifier(database)))
	return err
}

func (d Database) password(role string) string {
	mac := hmac.New(sha256.New, d.Secret)
	mac.Write([]byte(role))
	return fmt.Sprintf("%x", mac.Sum(nil))
}

// Login connects as a role. The name of the role is quoted.
func (d Database) Login(role string) (*sql.DB, error) {
	return sql.Open("postgres", fmt.Sprintf("%s user=%s password=%s", d.DSN, strings.Trim(role, `"`), d.password(role)))
}

type addArgs struct {
	Table tools.Resource `json:"table"`
	Text  string         `json:"text"`
}

type added struct {
	Rows int `json:"rows" jsonschema:"how many the table has"`
}

// Tool returns note_add, which adds a text to a table of the agent.
func (d Database) Tool() (tools.Tool, error) {
	return tools.NewScoped(Schemas{}, "note_add", "Add a text to one of your tables.", tools.Hints{Writes: true, Acts: true}, d.add)
}

func (d Database) add(ctx context.Context, _ tools.Env, in addArgs) (out added, err error) {
	role, err := in.Table.Part()
	if err != nil {
		return out, err
	}
	db, err := d.Login(role)
	if err != nil {
		return out, err
	}
	defer db.Close()
	if _, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+in.Table.Name()+" (text text)"); err != nil {
		return out, err
	}
	if _, err = db.ExecContext(ctx, "INSERT INTO "+in.Table.Name()+" VALUES ($1)", in.Text); err != nil {
		return out, err
	}
	return out, db.QueryRowContext(ctx, "SELECT count(*) FROM "+in.Table.Name()).Scan(&out.Rows)
}
