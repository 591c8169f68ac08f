package sql

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/scopefs/scopefs/tools"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]statement{
		"SELECT 1":                      {"SELECT", 0},
		" \t\r\n\fselect 1;;":           {"SELECT", 0},
		"-- x\n/* y */ With a":          {"WITH", 0},
		"SELECT ?, ?":                   {"SELECT", 2},
		"SELECT ?3, ?, ?1":              {"SELECT", 4},
		"SELECT ?007":                   {"SELECT", 7},
		"SELECT '?', \"?\", [?], `?`":   {"SELECT", 0},
		"SELECT '''?', ?":               {"SELECT", 1},
		"SELECT a$b, x1, 1e5, 0xff":     {"SELECT", 0},
		"SELECT 1 -- ?":                 {"SELECT", 0},
		"SELECT 1 /**/ - /* -- */ 1 -?": {"SELECT", 1},
		"DROP":                          {"DROP", 0},
	} {
		got, err := parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, want := range map[string]tools.Code{
		"": tools.Invalid, " ": tools.Invalid, "-- x": tools.Invalid, ";": tools.Invalid, "'a'": tools.Invalid, "1": tools.Invalid, "*": tools.Invalid,
		"SELECT 1; SELECT 2": tools.Denied, "SELECT 1; ;x": tools.Denied, "SELECT 'a": tools.Invalid, "SELECT /* a": tools.Invalid, "SELECT [a": tools.Invalid,
		"SELECT :a": tools.Invalid, "SELECT @a": tools.Invalid, "SELECT $a(": tools.Invalid, "SELECT #1": tools.Invalid, "SELECT ?0": tools.Invalid, "SELECT ?501": tools.Invalid,
		"SELECT \x00": tools.Invalid, "SELECT \xff": tools.Invalid,
		"SELECT " + strings.Repeat("1", maxSQL): tools.TooLarge,
	} {
		_, err := parse(text)
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok, "%.80q", text)
		assert.Equal(t, want, e.Code, "%.80q", text)
	}
}

// FuzzParse compares the tokenizer with SQLite's: of a text that parse accepts, SQLite
// compiles all as one statement, or nothing.
func FuzzParse(f *testing.F) {
	for _, h := range readHostile(f) {
		f.Add(h.text)
	}
	db := openMemory(f)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(text)
		if err != nil {
			return
		}
		params, rest, ok := db.prepare(t, text)
		if !ok {
			return
		}
		assert.Equal(t, params, s.params)
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
