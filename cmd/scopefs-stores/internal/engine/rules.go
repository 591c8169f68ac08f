package engine

import (
	"fmt"
	"strings"

	"modernc.org/sqlite"

	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

// rules is SQLite's authoriser. While SQLite compiles a statement it reports each action,
// with the names resolved. What is not listed is refused.
// https://sqlite.org/c3ref/set_authorizer.html
type rules struct {
	op      wire.Op // "" allows nothing
	modules map[string]bool
	refused string // what the first refusal was about
}

// own is the operation of the engine's own statements. No request has it.
const own wire.Op = "own"

// authorize is called by SQLite on the goroutine that compiles or steps the statement.
// The arguments depend on the action: https://sqlite.org/c3ref/c_alter_table.html
func (r *rules) authorize(a sqlite.AuthorizerActionCode, arg1, arg2, db, _ string) sqlite.AuthorizerReturnCode {
	if r.op == own {
		return sqlite.AuthorizerOK
	}
	refusal := r.refusal(a, arg1, arg2, db)
	if refusal == "" {
		return sqlite.AuthorizerOK
	}
	if r.refused == "" {
		r.refused = refusal
	}
	return sqlite.AuthorizerDeny
}

// refusal returns what of an action is not allowed; "" allows it.
func (r *rules) refusal(a sqlite.AuthorizerActionCode, arg1, arg2, db string) string {
	if r.op == "" {
		return action(a)
	}
	defines := r.op == wire.Define || r.op == wire.Drop
	switch a {
	case sqlite.AuthSelect, sqlite.AuthRecursive:
		return ""
	case sqlite.AuthFunction:
		return r.function(arg2)
	case sqlite.AuthRead:
		switch {
		case db != "main" && db != "" && (db != "temp" || !defines): // "" is of a WITH or a subquery
			return fmt.Sprintf("read the schema %.80q", db)
		case r.module(arg1):
			return "read the virtual table " + arg1
		}
		return ""
	case sqlite.AuthAlterTable:
		if defines && arg1 == "main" {
			return ""
		}
		return action(a)
	}
	// ALTER TABLE looks for its table in the temporary schema, which is empty.
	alters := defines && a == sqlite.AuthUpdate && db == "temp" && reserved(arg1)
	if db != "main" && !alters {
		return action(a)
	}
	allowed := false
	switch a {
	case sqlite.AuthInsert, sqlite.AuthUpdate, sqlite.AuthDelete:
		// CREATE, ALTER and DROP change the schema by statements of their own.
		allowed = defines || r.op == wire.Change && !reserved(arg1)
		if !allowed && reserved(arg1) {
			return "change " + arg1
		}
	case sqlite.AuthCreateTable, sqlite.AuthCreateIndex, sqlite.AuthCreateView:
		if r.module(arg1) {
			return "create a table with the reserved name " + arg1
		}
		allowed = defines
	case sqlite.AuthReindex: // CREATE INDEX fills an index by it
		allowed = defines
	case sqlite.AuthDropTable, sqlite.AuthDropIndex, sqlite.AuthDropView:
		allowed = r.op == wire.Drop
	}
	if allowed {
		return ""
	}
	return action(a)
}

// module reports whether a table is one that a module of the engine makes up. json_each
// and json_tree read their argument alone.
func (r *rules) module(table string) bool {
	name := strings.ToLower(table)
	if name == "json_each" || name == "json_tree" || name == "jsonb_each" || name == "jsonb_tree" {
		return false
	}
	return r.modules[name] || strings.HasPrefix(name, "pragma_")
}

func (r *rules) function(name string) string {
	name = strings.ToLower(name)
	if functions[name] {
		return ""
	}
	switch r.op {
	case wire.Define, wire.Drop: // ALTER TABLE calls these; a statement cannot
		switch name {
		case "sqlite_rename_table", "sqlite_rename_column", "sqlite_rename_test", "sqlite_rename_quotefix", "sqlite_fail",
			"sqlite_add_constraint", "sqlite_drop_constraint", "sqlite_find_constraint":
			return ""
		case "sqlite_drop_column":
			if r.op == wire.Drop {
				return ""
			}
			return "drop a column"
		}
	}
	return "call the function " + name
}

// reserved reports whether a table is SQLite's own.
func reserved(table string) bool {
	return strings.HasPrefix(strings.ToLower(table), "sqlite_")
}

// action names an action as an error does.
func action(a sqlite.AuthorizerActionCode) string {
	if name := actions[a]; name != "" {
		return name
	}
	return "do this"
}

var actions = map[sqlite.AuthorizerActionCode]string{
	sqlite.AuthCreateIndex: "CREATE INDEX", sqlite.AuthCreateTable: "CREATE TABLE", sqlite.AuthCreateView: "CREATE VIEW",
	sqlite.AuthCreateTempIndex: "create a temporary index", sqlite.AuthCreateTempTable: "create a temporary table",
	sqlite.AuthCreateTempTrigger: "create a trigger", sqlite.AuthCreateTrigger: "create a trigger",
	sqlite.AuthCreateTempView: "create a temporary view", sqlite.AuthCreateVTable: "create a virtual table",
	sqlite.AuthDelete: "DELETE", sqlite.AuthInsert: "INSERT", sqlite.AuthUpdate: "UPDATE",
	sqlite.AuthDropIndex: "DROP INDEX", sqlite.AuthDropTable: "DROP TABLE", sqlite.AuthDropView: "DROP VIEW",
	sqlite.AuthDropTempIndex: "DROP INDEX", sqlite.AuthDropTempTable: "DROP TABLE", sqlite.AuthDropTempView: "DROP VIEW",
	sqlite.AuthDropTrigger: "DROP TRIGGER", sqlite.AuthDropTempTrigger: "DROP TRIGGER", sqlite.AuthDropVTable: "DROP TABLE",
	sqlite.AuthPragma: "PRAGMA", sqlite.AuthTransaction: "control the transaction", sqlite.AuthSavepoint: "control the transaction",
	sqlite.AuthAttach: "ATTACH", sqlite.AuthDetach: "DETACH", sqlite.AuthAlterTable: "ALTER TABLE",
	sqlite.AuthReindex: "REINDEX", sqlite.AuthAnalyze: "ANALYZE", sqlite.AuthSelect: "SELECT", sqlite.AuthRead: "read",
}

// functions are those that read their arguments alone, the clock and the random
// generator. https://sqlite.org/lang_corefunc.html
var functions = set(`
	abs changes char coalesce concat concat_ws format glob hex if ifnull iif instr last_insert_rowid length like
	likelihood likely lower ltrim max min nullif octet_length printf quote random randomblob replace round rtrim sign
	soundex substr substring total_changes trim typeof unhex unicode unistr unistr_quote unlikely upper zeroblob
	sqlite_version
	date time datetime julianday unixepoch strftime timediff current_date current_time current_timestamp
	avg count group_concat string_agg sum total median percentile percentile_cont percentile_disc
	row_number rank dense_rank percent_rank cume_dist ntile lag lead first_value last_value nth_value
	acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power
	radians sin sinh sqrt tan tanh trunc
	json jsonb json_array jsonb_array json_array_insert jsonb_array_insert json_array_length json_error_position
	json_extract jsonb_extract json_insert jsonb_insert json_object jsonb_object json_patch jsonb_patch json_pretty
	json_remove jsonb_remove json_replace jsonb_replace json_set jsonb_set json_type json_valid json_quote
	json_group_array jsonb_group_array json_group_object jsonb_group_object -> ->>
`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		m[w] = true
	}
	return m
}
