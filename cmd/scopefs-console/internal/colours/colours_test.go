package colours

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/sides"
)

func soon() time.Time { return time.Now().Add(time.Minute) }

// added returns the rows of a new file.
func added(name, text string) []sides.Row {
	lines := strings.Split(text, "\n")
	rows, _ := sides.Rows(fmt.Sprintf("--- /dev/null\n+++ b/%s\n@@ -0,0 +1,%d @@\n+%s\n", name, len(lines), strings.Join(lines, "\n+")), 1000)
	return rows
}

// textOf returns the text of a side, with its kinds: [k:func] for a keyword.
func textOf(rows []sides.Row, kinds bool, of func(sides.Row) sides.Side) string {
	var text strings.Builder
	for _, r := range rows {
		for _, p := range of(r).Parts {
			if kinds && p.Kind != "" {
				p.Text = "[" + p.Kind + ":" + p.Text + "]"
			}
			text.WriteString(p.Text)
		}
		text.WriteByte('\n')
	}
	return text.String()
}

func oldSide(r sides.Row) sides.Side { return r.Old }
func newSide(r sides.Row) sides.Side { return r.New }

// TestRows: the parts of a program get kinds, on each side and beside what differs, and the text stays the same.
func TestRows(t *testing.T) {
	l := New()
	rows, _ := sides.Rows("--- \"a/f.go\"\n+++ \"b/f.go\"\n@@ -3,3 +3,3 @@\n func f() {\n-\treturn 1 // one\n+\treturn \"two\"\n }\n--- a/x\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+def a(): pass # func\n", 100)
	before := textOf(rows, false, oldSide) + textOf(rows, false, newSide)
	l.Rows(soon(), "", rows)
	assert.Equal(t, before, textOf(rows, false, oldSide)+textOf(rows, false, newSide))
	assert.Equal(t, "\n\n\n[k:func] [t:f]() {\n\t[k:return] [n:1] [c:// one]\n}\n\n\n\na\n", textOf(rows, true, oldSide))
	assert.Equal(t, "\n\n\n[k:func] [t:f]() {\n\t[k:return] [s:\"two\"]\n}\n\n\n\n[k:def ][t:a](): [k:pass] [c:# func]\n", strings.ReplaceAll(textOf(rows, true, newSide), "[k:def] ", "[k:def ]"))
	for _, r := range rows {
		for _, p := range r.New.Parts {
			assert.False(t, p.Hot && strings.Contains(p.Text, "return"))
		}
	}

	rows = added("f.txt", "func f() {}")
	l.Rows(soon(), "", rows)
	assert.NotContains(t, textOf(rows, true, newSide), "[")
	rows = added("f.go", "func f() {}")
	l.Rows(time.Time{}, "", rows)
	assert.NotContains(t, textOf(rows, true, newSide), "[", "there was no time")
	l.Rows(soon(), "", rows)
	assert.Contains(t, textOf(rows, true, newSide), "[k:func]")
	again := added("f.go", "func f() {}")
	l.Rows(time.Time{}, "", again)
	assert.Equal(t, rows, again, "kept")
}

// TestMarkdown: lines have kinds by themselves, whatever is above them and in fences; hostile texts are lexed to their end.
func TestMarkdown(t *testing.T) {
	rows := added("README.md", "# A `head`\n#no\n- one `x` and [a](b) [c]\n  12. two\n> said\n```go\nfunc f() {} <!-- x -->\n```\n`a\nb` ](")
	New().Rows(soon(), "", rows)
	assert.Equal(t, "\n\n\n[k:# A `head`]\n#no\n[k:-] one [s:`x`] and [t:[a](b)] [c]\n[k:  12.] two\n[k:>] said\n[s:```go]\nfunc f() {} <!-- x -->\n[s:```]\n`a\nb` ](\n",
		textOf(rows, true, newSide))
	for what, line := range map[string]string{"brackets": "[", "backquotes": "``", "links": "[a](", "closed": "[a]", "blanks": " ", "quotes": "> ", "lists": "- ", "stars": "**a_", "digits": "1"} {
		text := strings.Repeat(strings.Repeat(line, maxLine/len(line)-1)+"\n", maxText/maxLine-1)
		assert.NotNil(t, lex(markdown, text, soon()), what)
	}
}

// TestEscapedTextHasNoColours: a lexer does not see the end of a comment where a compiler does.
func TestEscapedTextHasNoColours(t *testing.T) {
	for what, text := range map[string]string{
		"carriage return": "// a\rrun()", "line separator": "// a\u2028run()", "bidi": "x = 1 // \u202e", "invalid": "x = \xff",
	} {
		rows := added("f.js", "let a = 1\n"+text)
		New().Rows(soon(), "", rows)
		assert.NotContains(t, textOf(rows, true, newSide), "[", what)
	}
}

// TestHostile: neither exponential expressions nor long texts take long, and a lexer that took long rests.
func TestHostile(t *testing.T) {
	l := New()
	// The lexer for Go has "(\\\\|\\"|[^"])*": each pair of backslashes fits two ways.
	rows := added("f.go", `"`+strings.Repeat(`\`, 301))
	began := time.Now()
	l.Rows(time.Now().Add(50*time.Millisecond), "", rows)
	assert.Less(t, time.Since(began), 10*time.Second, "the page waits for the time that it has")
	require.Eventually(t, func() bool { return len(l.turn) == 0 }, time.Minute, 10*time.Millisecond)

	slow := chroma.MustNewLexer(&chroma.Config{Name: "slow"}, func() chroma.Rules { return chroma.Rules{"root": {{Pattern: `(a|aa)*b`, Type: chroma.Keyword}}} })
	assert.Nil(t, l.lexed(time.Now().Add(time.Millisecond), slow, strings.Repeat("a", 1000)))
	require.Eventually(t, func() bool { return len(l.turn) == 0 }, time.Minute, 10*time.Millisecond, "the lexer ends")
	assert.Nil(t, l.lexed(soon(), slow, "b"), "it rests")
	l.rests["slow"] = time.Now()
	assert.NotNil(t, l.lexed(soon(), slow, "b"))
	panics := chroma.MustNewLexer(&chroma.Config{Name: "panics"}, func() chroma.Rules { return chroma.Rules{"root": {{Pattern: "b", Type: chroma.Using("none")}}} })
	assert.Nil(t, l.lexed(soon(), panics, "b"))

	rows = added("f.py", "import x")
	l.Rows(soon(), "", rows)
	assert.Contains(t, textOf(rows, true, newSide), "[k:import]", "others do not")

	for what, text := range map[string]string{"line": "x = '" + strings.Repeat("a", 100<<20), "text": strings.Repeat("x = 1\n", 900*20)} {
		rows := []sides.Row{{Own: "+++ b/f.py"}}
		for i, line := range strings.Split(text, "\n") {
			rows = append(rows, sides.Row{New: sides.Side{Line: i + 1, Parts: []sides.Part{{Text: line}}}})
		}
		began := time.Now()
		l.Rows(soon(), "", rows)
		assert.Empty(t, rows[1].New.Parts[0].Kind, what)
		assert.Less(t, time.Since(began), 30*time.Second, what)
	}
	for i := range 50 {
		l.Rows(soon(), "", added("f.py", strings.Repeat("1\n", 900)+fmt.Sprint("x", i)))
	}
	assert.NotEmpty(t, l.kept)
	assert.LessOrEqual(t, l.spans, maxSpans)
	assert.LessOrEqual(t, len(l.kept), maxSpans)
}

// TestLanguages: each language has a lexer that can be bounded, and needs no other.
func TestLanguages(t *testing.T) {
	this, err := os.ReadFile("colours.go")
	require.NoError(t, err)
	for _, name := range languages {
		lexer, ok := lexers.Get(name).(*chroma.RegexLexer)
		if assert.True(t, ok, name) {
			assert.Equal(t, name, lexer.Config().Name)
			_ = known()
			assert.NotNil(t, lex(lexer, "x = 1 # <a>\n", soon()), name)
			_ = lex(lexer, string(this[:min(len(this), 1<<10)]), soon())
		}
	}
	for _, file := range []string{"a.go", "a.py", "a.ts", "a.tsx", "a.js", "a.rs", "a.c", "a.h", "a.cc", "a.java", "a.sh", "a.yaml", "a.json", "a.toml", "a.html",
		"a.css", "a.sql", "Makefile", "Dockerfile", "d/Dockerfile.test", "a.rb", "a.kt", "a.swift", "a.tf", "a.service", "CMakeLists.txt", "a.xml", "a.proto", "README.md"} {
		assert.NotNil(t, lexerOf(file), file)
	}
}

// FuzzRows: whatever the text, it stays the same, and no lexer runs for ever.
func FuzzRows(f *testing.F) {
	f.Add("a.go", "func f() { `x` /* */ }\n\"\\\\")
	f.Add("a.js", "a = /[/*]/; `${`${x}`}` // é")
	f.Add("a.md", "# a\n- [x](y) `z`\n```go\n")
	f.Add("a.html", "<script>x</script><style>a{}</style>\x00")
	f.Fuzz(func(t *testing.T, name, text string) {
		rows := added("f", strings.ReplaceAll(text, "\n+++", "\n"))
		before := textOf(rows, false, newSide)
		rows[1].Own = "+++ " + name
		New().Rows(soon(), "", rows)
		assert.Equal(t, before, textOf(rows, false, newSide))
	})
}
