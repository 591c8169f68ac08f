package engine

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/scopefs/scopefs/tools/sql"
)

// FuzzParse compares the tokenizer with SQLite's: of a text that package tools/sql accepts, SQLite
// compiles all as one statement, or nothing.
func FuzzParse(f *testing.F) {
	seeds, err := os.ReadFile("../../../../tools/sql/testdata/hostile.txt")
	require.NoError(f, err)
	for line := range strings.Lines(string(seeds)) {
		if words := strings.SplitN(strings.TrimSpace(line), " ", 3); len(words) == 3 { // OUTCOME TOOL STATEMENT
			f.Add(words[2])
		}
	}
	db := openMemory(f)
	f.Fuzz(func(t *testing.T, text string) {
		n, err := sql.Parameters(text)
		if err != nil {
			return
		}
		params, rest, ok := db.prepare(t, text)
		if !ok {
			return
		}
		assert.Equal(t, params, n)
		_, _, more := db.prepare(t, rest)
		assert.False(t, more, "after the end: %q", rest)
	})
}

// memory is a database through SQLite's C interface, which tells where a statement ends.
type memory struct {
	tls *libc.TLS
	db  uintptr
}

func openMemory(t testing.TB) memory {
	m := memory{tls: libc.NewTLS()}
	name, err := libc.CString(":memory:")
	require.NoError(t, err)
	defer libc.Xfree(m.tls, name)
	var db uintptr
	out := libc.Xmalloc(m.tls, 8)
	defer libc.Xfree(m.tls, out)
	require.EqualValues(t, sqlite3.SQLITE_OK, sqlite3.Xsqlite3_open(m.tls, name, out))
	db = *(*uintptr)(unsafe.Pointer(&[]byte(libc.GoBytes(out, 8))[0]))
	m.db = db
	t.Cleanup(func() {
		sqlite3.Xsqlite3_close(m.tls, m.db)
		m.tls.Close()
	})
	return m
}

// prepare compiles the first statement of a text. ok is false when there is none.
func (m memory) prepare(t testing.TB, text string) (params int, rest string, ok bool) {
	sql, err := libc.CString(text)
	require.NoError(t, err)
	defer libc.Xfree(m.tls, sql)
	out := libc.Xmalloc(m.tls, 16)
	defer libc.Xfree(m.tls, out)
	rc := sqlite3.Xsqlite3_prepare_v2(m.tls, m.db, sql, -1, out, out+8)
	b := libc.GoBytes(out, 16)
	stmt, tail := *(*uintptr)(unsafe.Pointer(&b[0])), *(*uintptr)(unsafe.Pointer(&b[8]))
	if rc != sqlite3.SQLITE_OK || stmt == 0 {
		return 0, "", false
	}
	defer sqlite3.Xsqlite3_finalize(m.tls, stmt)
	return int(sqlite3.Xsqlite3_bind_parameter_count(m.tls, stmt)), libc.GoString(tail), true
}
