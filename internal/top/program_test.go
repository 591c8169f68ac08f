package top

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestKeys: what a terminal sends is parsed, and what is pasted decides nothing.
func TestKeys(t *testing.T) {
	tests := map[string]struct {
		reads []string
		want  []string
	}{
		"letters":          {[]string{"jY"}, []string{"j", "Y"}},
		"others":           {[]string{"\r \x03"}, []string{"enter", "space", "ctrl+c"}},
		"arrows":           {[]string{"\x1b[A\x1bOB\x1b[5~\x1b[6~j"}, []string{"up", "down", "pgup", "pgdown", "j"}},
		"escape":           {[]string{"\x1b", "y"}, []string{"esc", "y"}},
		"Alt":              {[]string{"\x1byn"}, []string{"n"}},
		"control, up":      {[]string{"\x1b[1;5Ay"}, []string{"y"}},
		"pasted":           {[]string{"\x1b[200~y\rn\x1b", "[A y\x1b[201~j"}, []string{"j"}},
		"cut":              {[]string{"\x1b[", "5~y", "\x1b[200", "~y\x1b[2", "01~n"}, []string{"pgup", "y", "n"}},
		"not ASCII":        {[]string{"é\x00\x7fq"}, []string{"q"}},
		"unknown sequence": {[]string{"\x1b[15~\x1bOPq"}, []string{"q"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var k keys
			var got []string
			for _, read := range test.reads {
				got = append(got, k.parse(read)...)
			}
			assert.Equal(t, test.want, got)
		})
	}
}

// TestFit: a line has at most the columns of the screen, if characters beyond Latin-1 take two.
func TestFit(t *testing.T) {
	m := &model{width: 5}
	for text, want := range map[string]string{"": "", "12345": "12345", "123456": "1234…", "日本語": "日本…", "日本1": "日本1", "aé日本": "aé日…"} {
		assert.Equal(t, want, m.fit(text), text)
	}
}
