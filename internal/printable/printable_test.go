package printable

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestUnseen: a character that nobody sees, or that looks like another one, is an escape, whatever kind of character it is to
// Unicode. Texts of other languages stay as they are.
func TestUnseen(t *testing.T) {
	for text, want := range map[string]string{
		"a\u202eb": `a\u202eb`, "a\u200bb": `a\u200bb`, "a\u00a0b": `a\u00a0b`, // control, format, separators
		"a\u3164b": `a\u3164b`, "a\u115fb": `a\u115fb`, "a\uffa0b": `a\uffa0b`, // letters
		"a\ufe0fb": `a\ufe0fb`, "a\U000e0100b": `a\ue0100b`, "a\u034fb": `a\u034fb`, "a\u2800b": `a\u2800b`, // marks, a symbol
		"é日本 e\u0301": "é日本 e\u0301",
	} {
		assert.Equal(t, want, Text(text))
	}
	for text, want := range map[string]string{
		"p\u0430ypal": `p\u0430ypal`, "g\u03bfogle": `g\u03bfogle`, "\u0455\u0441\u0440": `\u0455\u0441\u0440`, "\u0440\u0430\u03c1": `\u0440\u0430\u03c1`, // a word of two scripts, or of twins alone
		"a\u2215b": `a\u2215b`, "\uff52\uff4d": `\uff52\uff4d`, "\U0001d42bm": `\u1d42bm`, "x\u0667": `x\u0667`, "a\u037eb": `a\u037eb`,
		"a\u0301\u0301\u0301\u0301b": "a\u0301\u0301" + `\u0301\u0301b`, "/\u0301": `/\u0301`, "\u0301a": `\u0301a`, "a\u0338b": `a\u0338b`, "a\u20ddb": `a\u20ddb`,
		"файл2.txt": "файл2.txt", "ухо и роща": "ухо и роща", "Ωμέγα Δx = πr": "Ωμέγα Δx = πr", "日本語、テスト：名前": "日本語、テスト：名前", "tiếng Việt": "tiếng Việt", "हिन्दी ไทย שָׁלוֹם ٣٤": "हिन्दी ไทย שָׁלוֹם ٣٤", "naïve kapı": "naïve kapı",
	} {
		assert.Equal(t, want, Text(text))
	}
	assert.Equal(t, "a\n\tb\\u000d", Lines("a\n\tb\r"))
}
