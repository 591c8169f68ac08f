package engine

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools/sql"
	wire "github.com/scopefs/scopefs/tools/sql/engine"
)

// TestRules: the authoriser refuses by itself, in every operation, what the door of the tools refuses by the first keyword
// of a statement. No call of a tool reaches that: the rule holds if the door reads a text in another way than SQLite.
func TestRules(t *testing.T) {
	dir := t.TempDir()
	d, err := open(t.Context(), filepath.Join(dir, "a.db"), sql.Limits{}.Config())
	require.NoError(t, err)
	defer d.close()
	require.NoError(t, d.write.as(wire.Define, func() error {
		_, err := d.write.ExecContext(t.Context(), "CREATE TABLE t (a)")
		return err
	}))
	for text, refusal := range map[string]string{
		"ATTACH ':memory:' AS x":               "ATTACH",
		"DETACH main":                          "DETACH",
		"VACUUM INTO '" + dir + "/x.db'":       "ATTACH",
		"VACUUM":                               "ATTACH",
		"PRAGMA page_count":                    "PRAGMA",
		"BEGIN":                                "control the transaction",
		"SAVEPOINT x":                          "control the transaction",
		"ANALYZE":                              "",
		"CREATE TEMP TABLE x (a)":              "",
		"CREATE VIRTUAL TABLE x USING fts5(a)": "",
		"SELECT load_extension('x')":           "call the function load_extension",
		"SELECT * FROM pragma_database_list":   "read the virtual table pragma_database_list",
		"EXPLAIN ATTACH ':memory:' AS x":       "ATTACH",
		"/* SELECT */ ATTACH ':memory:' AS y":  "ATTACH",
	} {
		for _, op := range []wire.Op{"", wire.Query, wire.Change, wire.Define, wire.Drop} {
			for name, c := range map[string]*conn{"write": d.write, "read": d.read} {
				err := c.as(op, func() error {
					_, err := c.ExecContext(t.Context(), text)
					return err
				})
				e, ok := err.(*wire.Error)
				if assert.True(t, ok, "%s, %s, %s: %v", text, op, name, err) {
					assert.Equal(t, wire.Denied, e.Code, text)
					assert.True(t, op == "" || strings.Contains(e.Message, refusal), "%s: %s", text, e.Message)
				}
			}
		}
	}
}
