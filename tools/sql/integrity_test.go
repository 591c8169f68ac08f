package sql

import (
	"database/sql"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// integrity returns what SQLite finds wrong in a database, or "ok".
func integrity(t *testing.T, name string) (text string) {
	db, err := sql.Open("sqlite", "file:"+name)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRow("PRAGMA integrity_check").Scan(&text))
	return text
}
