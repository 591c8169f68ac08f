package sql

import (
	"strings"
	"unicode/utf8"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sql/engine"
)

// maxSQL bounds a statement, in bytes.
const maxSQL = 64 << 10

// statement is a statement as the tokenizer reads it. What it does, SQLite
// decides: see package engine.
type statement struct {
	keyword string // the first, in upper case
	params  int    // values to bind
}

// Parameters returns how many values a text takes that is one statement for the tools.
func Parameters(text string) (int, error) {
	s, err := parse(text, false)
	return s.params, err
}

// parse finds the first keyword of a statement, its parameters, and its end. Text after
// the end is an error, as is a token that this tokenizer could read otherwise than
// SQLite's does: https://sqlite.org/src/file/src/tokenize.c. With first, it reads the first
// keyword alone.
func parse(text string, first bool) (s statement, err error) {
	switch {
	case len(text) > maxSQL:
		return s, tools.Errorf(tools.TooLarge, "the statement has %d bytes, of at most %d", len(text), maxSQL)
	case !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0:
		return s, tools.Errorf(tools.Invalid, "the statement is not text: want UTF-8 without NUL")
	}
	z := scanner{text: text}
	ended := false
	for {
		kind, token, err := z.next()
		switch {
		case err != nil:
			return s, err
		case kind == tokenEnd && s.keyword == "":
			return s, tools.Errorf(tools.Invalid, "there is no statement")
		case kind == tokenEnd:
			return s, nil
		case kind == tokenSemicolon && s.keyword != "":
			ended = true
		case ended:
			return s, denied("one statement in a call: there is text after its end", "call once for each statement")
		case kind == tokenParam:
			if err := s.param(token); err != nil {
				return s, err
			}
		}
		if s.keyword == "" {
			if kind != tokenWord {
				return s, tools.Errorf(tools.Invalid, "a statement begins with a keyword, such as SELECT")
			}
			if s.keyword = strings.ToUpper(token); first {
				return s, nil
			}
		}
	}
}

// param counts a parameter as SQLite does: ? is the one after the largest so far, ?N
// the Nth.
func (s *statement) param(token string) error {
	n := s.params + 1
	if digits := token[1:]; digits != "" {
		n = 0
		for _, c := range digits {
			if n = 10*n + int(c-'0'); n > engine.MaxParams {
				break
			}
		}
	}
	if n < 1 || n > engine.MaxParams {
		return tools.Errorf(tools.Invalid, "%.20s: a statement has parameters 1 to %d", token, engine.MaxParams)
	}
	s.params = max(s.params, n)
	return nil
}

// match reports whether there is a value for each parameter.
func (s statement) match(params []engine.Value) error {
	if len(params) == s.params {
		return nil
	}
	return tools.Errorf(tools.Invalid, "the statement has %d parameters, and there are %d values", s.params, len(params))
}

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenParam
	tokenSemicolon
	tokenOther
)

// scanner splits SQL into tokens.
type scanner struct {
	text string
	at   int
}

func (z *scanner) next() (kind tokenKind, token string, err error) {
	if err := z.space(); err != nil {
		return 0, "", err
	}
	if z.at == len(z.text) {
		return tokenEnd, "", nil
	}
	from := z.at
	c := z.text[z.at]
	z.at++
	kind = tokenOther
	switch {
	case c == ';':
		kind = tokenSemicolon
	case c == '\'' || c == '"' || c == '`':
		err = z.quoted(c)
	case c == '[':
		end := strings.IndexByte(z.text[z.at:], ']')
		if end < 0 {
			return 0, "", unterminated("name")
		}
		z.at += end + 1
	case c == '?':
		kind = tokenParam
		for z.at < len(z.text) && isDigit(z.text[z.at]) {
			z.at++
		}
	case c == ':' || c == '@' || c == '$' || c == '#':
		// SQLite reads what follows $name( up to the next ")" as part of the name.
		return 0, "", tools.Errorf(tools.Invalid, "%q outside of quotes", c).Suggest("write parameters as ?, and give their values in order")
	case isWord(c):
		if !isDigit(c) {
			kind = tokenWord
		}
		for z.at < len(z.text) && isWord(z.text[z.at]) {
			z.at++
		}
	}
	return kind, z.text[from:z.at], err
}

// space skips white space and comments. A comment may be open at the end.
func (z *scanner) space() error {
	for z.at < len(z.text) {
		rest := z.text[z.at:]
		switch {
		case strings.IndexByte(" \t\n\f\r", rest[0]) >= 0:
			z.at++
		case strings.HasPrefix(rest, "--"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			z.at += n
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return unterminated("comment")
			}
			z.at += n + 4
		default:
			return nil
		}
	}
	return nil
}

// quoted skips the rest of a string or name. A quote in it is doubled.
func (z *scanner) quoted(quote byte) error {
	for z.at < len(z.text) {
		n := strings.IndexByte(z.text[z.at:], quote)
		if n < 0 {
			break
		}
		z.at += n + 1
		if z.at == len(z.text) || z.text[z.at] != quote {
			return nil
		}
		z.at++
	}
	return unterminated("string")
}

func unterminated(what string) error {
	return tools.Errorf(tools.Invalid, "a %s has no end", what)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isWord reports whether a byte may be in a keyword or name: SQLite takes every byte
// from 0x80 for a letter.
func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || isDigit(c) || c == '_' || c == '$' || c >= 0x80
}

// refused are the statements that no tool runs.
var refused = map[string]string{
	"ATTACH": "", "DETACH": "", "PRAGMA": "sql_tables shows the tables and their columns", "VACUUM": "",
	"BEGIN": onlyOne, "COMMIT": onlyOne, "END": onlyOne, "ROLLBACK": onlyOne, "SAVEPOINT": onlyOne, "RELEASE": onlyOne,
	"ANALYZE": "", "REINDEX": "", "EXPLAIN": "",
}

const onlyOne = "each call is a transaction of its own"

// readOp returns the operation of a statement for sql_query.
func (s statement) readOp() (engine.Op, error) {
	switch s.keyword {
	case "SELECT", "WITH", "VALUES":
		return engine.Query, nil
	}
	return "", s.wrong("sql_query runs SELECT, WITH and VALUES", "sql_execute changes data")
}

// writeOp returns the operation of a statement for sql_execute.
func (s statement) writeOp(drop bool) (engine.Op, error) {
	switch s.keyword {
	case "INSERT", "REPLACE", "UPDATE", "DELETE", "WITH":
		return engine.Change, nil
	case "CREATE", "ALTER":
		if drop {
			return engine.Drop, nil
		}
		return engine.Define, nil
	case "DROP":
		if drop {
			return engine.Drop, nil
		}
		d := scope.Decision{Kind: scope.KindGrant, Rule: "stores.sql.drop", Remedy: "set drop: true in stores.sql"}
		return "", tools.Refused(d, tools.Denied, "DROP is not allowed").Suggest("ask your operator, who can allow it")
	}
	return "", s.wrong("sql_execute runs INSERT, REPLACE, UPDATE, DELETE, WITH, CREATE, ALTER and DROP", "sql_query reads")
}

// wrong returns the error of a statement that is not for this tool.
func (s statement) wrong(message, hint string) error {
	if other, ok := refused[s.keyword]; ok {
		return denied(s.keyword+" is not allowed", other)
	}
	return tools.Errorf(tools.Invalid, "%s: this begins with %.20q", message, s.keyword).Suggest(hint)
}

// denied returns an error that the log has as a denial.
func denied(message, hint string) error {
	return tools.Refused(scope.Decision{Kind: scope.KindStore, Rule: "sql: " + message}, tools.Denied, "%s", message).
		Suggest(hint)
}
