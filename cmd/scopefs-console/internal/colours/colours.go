// Package colours marks the keywords, strings and comments of programs in the rows of a diff.
//
// The text is an agent's. Lexers are tables of backtracking expressions, which a text can make take exponential time: one
// text is lexed at a time, each has a bound, and a lexer that exceeds it rests. What has no colours is shown all the same.
package colours

import (
	"cmp"
	"crypto/sha256"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/sides"
	"github.com/scopefs/scopefs/internal/printable"
)

// languages are the names of the lexers that are used. Lexers of templates would lex a whole text at once, without a bound.
var languages = []string{
	"Bash", "C", "C#", "C++", "CMake", "CSS", "Dart", "Docker", "Elixir", "Erlang", "Fish", "Go", "GraphQL", "Groovy", "Haskell", "HCL",
	"HTML", "INI", "Java", "JavaScript", "JSON", "Julia", "Kotlin", "Lua", "Makefile", "Nginx configuration file", "Nix", "OCaml", "Perl",
	"PowerShell", "Protocol Buffer", "Python", "R", "react", "Ruby", "Rust", "Scala", "SCSS", "SQL", "Swift", "SYSTEMD", "Terraform",
	"TOML", "TypeScript", "XML", "YAML", "Zig",
}

// known has the lexers of languages by a pattern of file names. A lexer that wants another one than these fails, and its text
// has no colours. The registry's own Match takes 2 ms for a name: it tries each pattern with each suffix of a backup.
var known = sync.OnceValue(func() map[string]chroma.Lexer {
	all, byName := chroma.NewLexerRegistry(), map[string]chroma.Lexer{}
	add := func(lexer *chroma.RegexLexer) {
		all.Register(lexer)
		for _, pattern := range slices.Concat(lexer.Config().Filenames, lexer.Config().AliasFilenames) {
			if byName[pattern] == nil {
				byName[pattern] = lexer
			}
		}
	}
	for _, name := range languages {
		if lexer, ok := lexers.Get(name).(*chroma.RegexLexer); ok {
			add(lexer)
		}
	}
	add(markdown)
	return byName
})

// lexerOf returns the lexer of a file; nil: none.
func lexerOf(file string) chroma.Lexer {
	name := path.Base(file)
	stem, _, _ := strings.Cut(name, ".")
	return cmp.Or(known()[name], known()["*"+path.Ext(name)], known()[stem+".*"])
}

// The bounds of lexers.
const (
	maxText  = 64 << 10    // bytes of a text with colours
	maxLine  = 4 << 10     // bytes of each of its lines
	maxSpans = 64 << 10    // of all texts that are kept
	lexTime  = time.Second // for a text; the expression that is then under way takes a quarter of a second at most
	restTime = time.Minute
)

// The kinds of parts.
const (
	Keyword = "k"
	Type    = "t" // and what a program names: functions, tags, attributes
	String  = "s"
	Number  = "n"
	Comment = "c"
)

// Lexers lexes texts, and keeps the results. Its methods are safe for concurrent use.
type Lexers struct {
	turn chan struct{} // of the one text that is lexed

	mu    sync.Mutex
	kept  map[[sha256.Size]byte][]span // nil: no colours
	spans int                          // in kept
	rests map[string]time.Time         // until when, by the lexer's name
}

// span is a part of a text, from the end of the one before.
type span struct {
	end  int // bytes from the beginning of the text
	kind string
}

// New returns lexers that have lexed nothing.
func New() *Lexers {
	return &Lexers{turn: make(chan struct{}, 1), kept: map[[sha256.Size]byte][]span{}, rests: map[string]time.Time{}}
}

// Rows sets the kinds of parts, and splits parts for it: their text stays the same. name is the file's, where the diff has
// none. A text that is not lexed at until keeps its parts; it may have colours the next time.
func (l *Lexers) Rows(until time.Time, name string, rows []sides.Row) {
	for i := 0; i < len(rows); i++ {
		if header, ok := strings.CutPrefix(rows[i].Own, "+++ "); ok {
			name = strings.Trim(header, `"`)
		}
		start := i
		for i < len(rows) && rows[i].Own == "" {
			i++
		}
		if lexer := lexerOf(name); i > start && lexer != nil {
			l.side(until, lexer, rows[start:i], func(r *sides.Row) *sides.Side { return &r.Old })
			l.side(until, lexer, rows[start:i], func(r *sides.Row) *sides.Side { return &r.New })
			i-- // the row after it may be a header
		}
	}
}

// side sets the kinds of one side of a hunk.
func (l *Lexers) side(until time.Time, lexer chroma.Lexer, rows []sides.Row, of func(*sides.Row) *sides.Side) {
	var text strings.Builder
	for i := range rows {
		side := of(&rows[i])
		if side.Line == 0 {
			continue
		}
		before := text.Len()
		for _, p := range side.Parts {
			text.WriteString(p.Text)
		}
		if text.Len()-before > maxLine || text.Len() > maxText {
			return
		}
		text.WriteByte('\n')
	}
	if printable.Lines(text.String()) != text.String() {
		return // a compiler may take such a character otherwise than the lexer, as JavaScript the end of a comment
	}
	spans := l.lexed(until, lexer, text.String())
	if spans == nil {
		return
	}
	at := 0
	for i := range rows {
		if side := of(&rows[i]); side.Line > 0 {
			side.Parts = split(side.Parts, spans, &at)
			at++ // the newline
		}
	}
}

// split returns parts with their kinds. at is where they begin in the text of the spans, and then where they end.
func split(parts []sides.Part, spans []span, at *int) (kinds []sides.Part) {
	for _, p := range parts {
		for p.Text != "" {
			i, _ := slices.BinarySearchFunc(spans, *at+1, func(s span, at int) int { return s.end - at })
			n := min(spans[i].end-*at, len(p.Text))
			kinds = append(kinds, sides.Part{Text: p.Text[:n], Hot: p.Hot, Kind: spans[i].kind})
			p.Text, *at = p.Text[n:], *at+n
		}
	}
	return kinds
}

// lexed returns the spans of a text; nil: it has no colours, or not yet.
func (l *Lexers) lexed(until time.Time, lexer chroma.Lexer, text string) []span {
	name := lexer.Config().Name
	key := sha256.Sum256([]byte(name + "\x00" + text))
	l.mu.Lock()
	spans, ok := l.kept[key]
	rests := time.Now().Before(l.rests[name])
	l.mu.Unlock()
	if ok || rests || !time.Now().Before(until) {
		return spans
	}
	over := time.NewTimer(time.Until(until))
	defer over.Stop()
	select {
	case l.turn <- struct{}{}:
	case <-over.C:
		return nil
	}
	done := make(chan []span, 1)
	go func() {
		defer func() { <-l.turn }()
		began := time.Now()
		spans := lex(lexer, text, began.Add(lexTime))
		l.mu.Lock()
		defer l.mu.Unlock()
		if time.Since(began) >= lexTime {
			l.rests[name] = time.Now().Add(restTime)
		}
		if l.spans+len(spans)+1 > maxSpans {
			clear(l.kept)
			l.spans = 0
		}
		if _, ok := l.kept[key]; !ok {
			l.kept[key] = spans
			l.spans += len(spans) + 1
		}
		done <- spans
	}()
	select {
	case spans := <-done:
		return spans
	case <-over.C:
		return nil
	}
}

// lex returns the spans of a text; nil: the lexer has failed, changed the text, or was not done at end.
func lex(lexer chroma.Lexer, text string, end time.Time) (spans []span) {
	defer func() {
		if recover() != nil { // rules that fit no other rule
			spans = nil
		}
	}()
	next, err := lexer.Tokenise(&chroma.TokeniseOptions{State: "root"}, text)
	if err != nil {
		return nil
	}
	at := 0
	for token := next(); token != chroma.EOF; token = next() {
		if time.Now().After(end) || !strings.HasPrefix(text[at:], token.Value) {
			return nil
		}
		at += len(token.Value)
		kind := kindOf(token.Type)
		if n := len(spans); n > 0 && spans[n-1].kind == kind {
			spans[n-1].end = at
		} else if token.Value != "" {
			spans = append(spans, span{at, kind})
		}
	}
	if at != len(text) {
		return nil
	}
	return spans
}

// kindOf never takes for a comment what may not be one: lexers call directives of a preprocessor, which do something,
// comments.
func kindOf(t chroma.TokenType) string {
	switch {
	case t.InSubCategory(chroma.CommentPreproc):
		return Keyword
	case t.InCategory(chroma.Comment):
		return Comment
	case t == chroma.KeywordType:
		return Type
	case t.InCategory(chroma.Keyword), t == chroma.GenericHeading, t == chroma.GenericSubheading:
		return Keyword
	case t.InSubCategory(chroma.LiteralNumber):
		return Number
	case t.InCategory(chroma.Literal):
		return String
	}
	switch t {
	case chroma.NameBuiltin, chroma.NameClass, chroma.NameFunction, chroma.NameTag, chroma.NameAttribute, chroma.NameDecorator:
		return Type
	}
	return ""
}
