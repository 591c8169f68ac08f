package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// encoders are the ways in which programs write a character.
var encoders = map[string]func(c rune) string{
	"as it is":     func(c rune) string { return string(c) },
	"percent":      func(c rune) string { return percent(c, "%%%02X") },
	"Percent":      func(c rune) string { return percent(c, "%%%02x") },
	"URL":          func(c rune) string { return url.PathEscape(string(c)) },
	"form":         func(c rune) string { return url.QueryEscape(string(c)) },
	"JSON":         func(c rune) string { text, _ := json.Marshal(string(c)); return string(text[1 : len(text)-1]) },
	"JSON, number": func(c rune) string { return numbers(c, `\u%04x`) },
	"JSON, Number": func(c rune) string { return numbers(c, `\u%04X`) },
	"quoted": func(c rune) string { // PHP has \/, shells have any
		if strings.ContainsRune(`/"'\$ `, c) {
			return `\` + string(c)
		}
		return string(c)
	},
	"JavaScript": func(c rune) string {
		if c < 0x80 {
			return fmt.Sprintf(`\x%02x`, c)
		}
		return string(c)
	},
	"HTML":              func(c rune) string { return html.EscapeString(string(c)) },
	"HTML, decimal":     func(c rune) string { return fmt.Sprintf("&#%d;", c) },
	"HTML, hexadecimal": func(c rune) string { return fmt.Sprintf("&#x%X;", c) },
	"HTML, zeros":       func(c rune) string { return fmt.Sprintf("&#00%d;", c) },
	"HTML, name": func(c rune) string {
		if name := map[rune]string{'+': "plus", '/': "sol", '=': "equals", '_': "lowbar", '%': "percnt", '\\': "bsol", '&': "amp", 'ö': "ouml"}[c]; name != "" {
			return "&" + name + ";"
		}
		return string(c)
	},
}

func percent(c rune, format string) (text string) {
	for _, b := range []byte(string(c)) {
		text += fmt.Sprintf(format, b)
	}
	return text
}

func numbers(c rune, format string) (text string) {
	for _, unit := range utf16.Encode([]rune{c}) {
		text += fmt.Sprintf(format, unit)
	}
	return text
}

// encode returns a text in up to three layers, in each of which each character has an encoder of its own, or all have one:
// no program that writes another character as JSON does leaves a backslash as it is.
func encode(r *rand.Rand, text string) string {
	var all []func(rune) string
	for _, name := range slices.Sorted(maps.Keys(encoders)) {
		all = append(all, encoders[name])
	}
	parts := strings.Split(text, "")
	for range 1 + r.IntN(3) {
		one, mixed := all[r.IntN(len(all))], r.IntN(2) == 0 && !strings.Contains(text, `\`)
		for i, part := range parts {
			if mixed {
				one = all[r.IntN(len(all))]
			}
			var b strings.Builder
			for _, c := range part {
				b.WriteString(one(c))
			}
			if b.Len() <= maxChar/4 {
				parts[i] = b.String()
			}
		}
	}
	return strings.Join(parts, "")
}

func random(r *rand.Rand, alphabet string, n int) string {
	letters, text := []rune(alphabet), []rune{}
	for range n {
		text = append(text, letters[r.IntN(len(letters))])
	}
	return string(text)
}

// pieces reads a text in random pieces.
type pieces struct {
	*rand.Rand
	text string
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+p.IntN(1+len(p.text)/5))], p.text)
	p.text = p.text[n:]
	return n, nil
}

// TestAttackEncodings: a credential shows in no mix of encodings, however the stream is cut, and all around it passes byte
// for byte.
func TestAttackEncodings(t *testing.T) {
	t.Parallel()
	const plain = "abcXYZ0189-_+/= "
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 1))
		// A credential that looks like an encoding itself ends with a letter: what follows would be a part of it.
		secret := random(r, []string{plain, plain + `%25&#;\"'<>` + "{}$", plain + "ö€😀"}[r.IntN(3)], 10+r.IntN(30)) + "Zkey"
		around := `abc %zz%4 &amp; &x &#; u00 \u00 <a href="?a=1&b=2">` + "\n\t\x00\xff€"
		before, after := random(r, around, r.IntN(60))+" ", `"`+random(r, around, r.IntN(60))
		hidden := encode(r, secret)
		m, want := New(secret, "another one"), before+strings.Repeat("*", len(hidden))+after
		got, err := io.ReadAll(NewReader(&pieces{r, before + hidden + after}, m, nil))
		require.NoError(t, err)
		if at := len(before); got[at] == hidden[0] && strings.IndexByte(`%\&`, got[at]) >= 0 { // it has passed: it only encodes
			got[at] = '*'
		}
		switch {
		case string(got) != want, m.Stars(before+hidden+after) != want, m.Replace(before+hidden+after) != before+"***"+after, !m.In(hidden):
			t.Fatalf("seed %d: %q as %.2000q shows: %.2000q", seed, secret, before+hidden+after, got)
		}
		other := before + encode(r, strings.Replace(secret, "Zkey", "Zkez", 1)) + after // of the same beginning
		got, err = io.ReadAll(NewReader(&pieces{r, other}, m, nil))
		require.NoError(t, err)
		if string(got) != other {
			t.Fatalf("seed %d: %.2000q has changed for %q", seed, other, secret)
		}
	}
}

// TestEncodings: those that were seen in answers, and the ones of the pages.
func TestEncodings(t *testing.T) {
	t.Parallel()
	const secret = `p&ss "wörd"/+`
	m := New(secret)
	for name, text := range map[string]string{
		"an escaped slash":        `p&ss \"wörd\"\/+`,
		"lower case":              "p%26ss+%22w%c3%b6rd%22%2f%2b",
		"a slash that was left":   "p%26ss%20%22w%C3%B6rd%22/%2B",
		"numbers of JSON":         `p\u0026ss \u0022w\u00f6rd\u0022/\u002b`,
		"entities":                "p&amp;ss &quot;w&ouml;rd&#34;/&#43;",
		"JSON in a URL":           url.QueryEscape(`p\u0026ss \"w\u00f6rd\"/+`),
		"percent twice":           url.QueryEscape(url.QueryEscape(secret)),
		"an entity in JSON":       `p\u0026amp;ss \u0026quot;wörd\u0026#34;/\u0026#43;`,
		"percent of IIS":          "p%u0026ss%u0020%22w%u00F6rd%22%2F%2B",
		"UTF-16, little endian":   "p\x00&\x00s\x00s\x00 \x00\"\x00w\x00\xc3\x00\xb6\x00r\x00d\x00\"\x00/\x00+",
		"quoted and quoted again": `p&ss \\\"wörd\\\"\\/+`,
		"quoted by a shell":       `p\&ss\ \"wörd\"/\+`,
	} {
		assert.Equal(t, "<"+strings.Repeat("*", len(text))+">", m.Stars("<"+text+">"), name)
	}
	assert.True(t, m.InFolded(strings.ToUpper("x-p%26ss%20%22w%c3%b6rd%22%2f%2b-y")))
	assert.False(t, m.InFolded("x-p%26ss"))
	assert.Equal(t, "<******************>", New("line one\nline two").Stars(`<line one\nline two>`), "a line's end in JSON")
	assert.Equal(t, "<*******************>", New("line one\nline two").Stars(`<line one\\nline two>`), "and in JSON in JSON")
	assert.Equal(t, "<************>", New(`ab\&cdefghi`).Stars(`<ab\\&cdefghi>`))
	assert.NotContains(t, New(`ab/cdefghi\`).Stars(`<ab\/cdefghi\\>`), "i", "a backslash at the end")
	for _, text := range []string{"1234567", `1\2\3\4\5`} {
		assert.Equal(t, "1234567", New(text).Stars("1234567"), "too short")
	}
	assert.Equal(t, `*********`, New(`1\2\3\4\5`).Stars(`1\2\3\4\5`), "short without its backslashes")
}

// TestBorders: each text is found where texts overlap, and nothing is held back that cannot be one.
func TestBorders(t *testing.T) {
	t.Parallel()
	m := New("aabaabaa", "baabaaXX", "aabaabaabaaXY")
	const text = "aabaabaabaaXX aabaaba aabaabaa-aabaabaabaa"
	const want = "************* aabaaba ********-***********"
	assert.Equal(t, want, m.Stars(text))
	for _, r := range []io.Reader{
		strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)), iotest.HalfReader(strings.NewReader(text)),
		iotest.DataErrReader(strings.NewReader(text)),
	} {
		got, err := io.ReadAll(NewReader(r, m, nil))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	for _, line := range []string{"50%", `\`, "x &", "event\n", "50%\n", "a & b\n", "&amp;\n", "\\n\n", "a=1&b=2\n", "%25\n", "%\n", "x\x00\n"} {
		out, in := io.Pipe()
		go fmt.Fprint(in, line)
		got := make([]byte, len(line))
		_, err := io.ReadFull(NewReader(out, m, nil), got)
		require.NoError(t, err)
		assert.Equal(t, line, string(got))
		in.Close()
	}
}

// TestFound: the reader ends before the end of a text has passed.
func TestFound(t *testing.T) {
	t.Parallel()
	stop := errors.New("found")
	got, err := io.ReadAll(NewReader(iotest.OneByteReader(strings.NewReader("before se%63ret12 after")), New("secret12"), func() error { return stop }))
	assert.Equal(t, stop, err)
	assert.Equal(t, "before ", string(got))
}

// TestReplaceCut: no part of a text is left where the data was cut off.
func TestReplaceCut(t *testing.T) {
	t.Parallel()
	m := New("secret/12")
	for _, whole := range []string{"secret/12", `secret\/12`, "%73ecret%2f12"} {
		for n := range len(whole) {
			assert.Equal(t, "text ", m.ReplaceCut("text "+whole[:n]), whole[:n])
		}
		assert.Equal(t, "text ***", m.ReplaceCut("text "+whole))
	}
	assert.Empty(t, m.ReplaceCut(""))
}

// TestForms: those of a secret as a whole.
func TestForms(t *testing.T) {
	t.Parallel()
	const secret = `p&ss "wörd"/+`
	m := New(Forms(secret)...)
	for name, text := range map[string]string{
		"plain":            secret,
		"hexadecimal":      fmt.Sprintf("%x", "Bearer "+secret),
		"HEX":              fmt.Sprintf("%X", secret),
		"base64 0":         base64.StdEncoding.EncodeToString([]byte(secret)),
		"base64 1":         base64.StdEncoding.EncodeToString([]byte("x" + secret + "y")),
		"base64 2":         base64.URLEncoding.EncodeToString([]byte("xx" + secret + "yyy")),
		"base64 in a URL":  url.QueryEscape(base64.StdEncoding.EncodeToString([]byte("xx" + secret + "yyy"))),
		"base64, JSON":     strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("Bearer "+secret)), "/", `\/`),
		"base64, as lines": `{"a":"` + base64.StdEncoding.EncodeToString([]byte("Bearer "+secret)) + `"}`,
	} {
		assert.Contains(t, m.Replace("<"+text+">"), "***", name)
		assert.Less(t, len(m.Replace("<"+text+">")), 34, name)
	}
	login := base64.StdEncoding.EncodeToString([]byte("user:long-password"))
	assert.Equal(t, "*** *** is ***", New(Forms(login)...).Replace(login+" user:long-password is long-password"))
	assert.Empty(t, Forms("1234567"))
}

// TestAttackDepth: encodings that never end cost no more than their bytes.
func TestAttackDepth(t *testing.T) {
	t.Parallel()
	m := New("%25252525u", `\\\\\\\\uuuuuuuu`, "uuuuuuuuuuuu", "&&&&&&&&&&&&", "25252525")
	for _, part := range []string{`\`, "%", "&", "%25", `\u`, `\ud83d`, "%5c", "&amp;", "%u", `\x5c`, "&#", `%26#38;`, "\x00", `%\&`, "u", `\u005c`} {
		text := strings.Repeat(part, 8_000/len(part))
		got, err := io.ReadAll(NewReader(strings.NewReader(text), m, nil))
		require.NoError(t, err)
		assert.Len(t, got, len(text), part)
	}
}

// TestAttackHeld: the beginning of a text and encodings without end are not kept.
func TestAttackHeld(t *testing.T) {
	t.Parallel()
	for _, part := range []string{`\`, "\x00", "%00", "%25"} {
		r := NewReader(strings.NewReader("secre"+strings.Repeat(part, 100_000/len(part))), New("secret/12"), nil)
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Greater(t, len(got), 99_000, part)
		assert.Less(t, len(r.buf), 60_000, part)
	}
}

// TestAttackWork: encodings of encodings that end in no character are not read without end: all that follows is masked.
func TestAttackWork(t *testing.T) {
	t.Parallel()
	m := New("secret/12")
	before, odd := "text \\/ %41 ", strings.Repeat(`5cu\u005c\\\\x&#x26;%u0025`, 4_000)
	got, err := io.ReadAll(NewReader(strings.NewReader(before+odd+"secret/12 and more"), m, nil))
	require.NoError(t, err)
	assert.Len(t, got, len(before+odd+"secret/12 and more"))
	assert.Equal(t, before, string(got[:len(before)]))
	assert.Equal(t, strings.Repeat("*", len(odd)/2), string(got[len(got)-len(odd)/2:]))
	assert.True(t, m.In(odd))
	assert.True(t, m.InFolded(odd))
	assert.False(t, New().InFolded(odd))
	assert.Contains(t, Decode("%41"+odd+"%41"), odd[len(odd)/2:]+"%41")
}

// BenchmarkReader: a megabyte in which nothing is encoded, and one of JSON.
func BenchmarkReader(b *testing.B) {
	m := New("sk-ant-REDACTED")
	for name, line := range map[string]string{
		"plain": "The quick brown fox jumps over the lazy dog; sixty bytes a line\n",
		"json":  `{"role": "assistant", "content": "The quick \"brown\" fox jumps\nover the dog"}` + "\n",
	} {
		b.Run(name, func(b *testing.B) {
			data := bytes.Repeat([]byte(line), 1<<20/len(line))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			buf := make([]byte, 32<<10)
			for b.Loop() {
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{NewReader(bytes.NewReader(data), m, nil)}, buf)
			}
		})
	}
}
