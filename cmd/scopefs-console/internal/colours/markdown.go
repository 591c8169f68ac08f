package colours

import "github.com/alecthomas/chroma/v2"

// markdown lexes Markdown line by line: the library's lexer runs those of other languages for what a text fences. It sees
// headings, marks of lists, quotes and fences, code in a line, and links. No expression has two ways to match a text. What is
// fenced looks as what is not: a hunk does not say which of both its first line is.
var markdown = chroma.MustNewLexer(&chroma.Config{Name: "Markdown lines", Filenames: []string{"*.md", "*.mkd", "*.markdown"}}, func() chroma.Rules {
	return chroma.Rules{"root": {
		{Pattern: `^#{1,6} [^\n]*`, Type: chroma.GenericHeading},
		{Pattern: "^ {0,3}(?:```|~~~)[^\n]*", Type: chroma.LiteralString},
		{Pattern: `^[ \t]*(?:[*+-]|[0-9]{1,9}[.)])(?=[ \t])`, Type: chroma.Keyword},
		{Pattern: `^ {0,3}>`, Type: chroma.Keyword},
		{Pattern: "`[^`\n]+`", Type: chroma.LiteralString},
		{Pattern: `\[[^\[\]\n]+\]\([^()\n]+\)`, Type: chroma.NameTag},
		{Pattern: "[^`\\[\n]+", Type: chroma.Text},
		{Pattern: "[`\\[\n]", Type: chroma.Text},
	}}
})
