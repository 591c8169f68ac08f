package sql

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
		got, err := parse(text, false)
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
		_, err := parse(text, false)
		e, ok := errors.AsType[*tools.Error](err)
		require.True(t, ok, "%.80q", text)
		assert.Equal(t, want, e.Code, "%.80q", text)
	}
}
