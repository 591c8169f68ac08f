package mask

import (
	"bytes"
	"html"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxLayers = 8       // how often a character is encoded
	maxChar   = 1 << 10 // bytes of a character at the end of data: an entity, each character an escape of JSON in a URL, has 90
	maxQuotes = 16      // backslashes before a character: JSON that was quoted four times has 15
	maxName   = 40      // bytes of an entity: the longest name of HTML has 33 with its marks

	controls = "btnvfr"                              // after a backslash, for the characters from U+0008 on
	frequent = `&amp;&&lt;<&gt;>&quot;"&#34;"&#39;'` // entities and their characters
)

// codes are the bytes with which encodings begin. A form has a plus for a space.
const codes, formCodes = "\\%&\x00", codes + "+"

const (
	none   rune = -1
	short  rune = -2      // what follows decides
	single rune = 1 << 24 // marks a byte that is a part of a character
)

// decoder decodes data. It keeps its memory for the next.
type decoder struct {
	codes  string
	wanted *[utf8.RuneSelf + 1]bool // the characters to decode; the last stands for all that are no ASCII. nil: all
	data   []byte
	last   bool   // no data follows
	text   []byte // the data without the layers
	layers [maxLayers]layer
	n      int // of the layers
}

// layer is a text without one layer of encodings.
type layer struct {
	text  []byte
	marks []mark // where what the text has from out on is from in on in the text before
}

type mark struct{ out, in int }

// Decode returns a text without its encodings.
func Decode(text string) string { return string((&decoder{codes: codes}).decode([]byte(text), true)) }

// decode decodes layer by layer: what encodes a character may be encoded itself, as a whole or each part of it. Unless data is the
// last, it leaves an encoding at the end that what follows may complete.
func (d *decoder) decode(data []byte, last bool) []byte {
	d.data, d.last, d.text, d.n = data, last, data, 0
	for range maxLayers {
		l := &d.layers[d.n]
		in := d.layer(l)
		if len(l.marks) == 0 && len(in) == len(d.text) {
			break
		}
		if d.text = in; len(l.marks) > 0 {
			d.text = l.text
			d.n++
		}
	}
	return d.text
}

// layer decodes one more layer of the text, and returns as much of the text as it has decoded.
func (d *decoder) layer(l *layer) (in []byte) {
	in, l.text, l.marks = d.text, l.text[:0], l.marks[:0]
	first, encodes := len(in), [256]bool{}
	for _, c := range []byte(d.codes) {
		encodes[c] = true
		if i := bytes.IndexByte(in[:first], c); i >= 0 {
			first = i
		}
	}
	done := 0
	for i := first; i < len(in); {
		if !encodes[in[i]] {
			i++
			continue
		}
		c, size := d.char(in[i:], true)
		if c == short && !d.last && len(d.data)-d.start(i) <= maxChar {
			in = in[:i]
			break
		}
		if size == 0 || d.wanted != nil && c != none && !d.wanted[min(c&^single, utf8.RuneSelf)] {
			i += max(size, 1)
			continue
		}
		l.text = append(l.text, in[done:i]...)
		l.marks = append(l.marks, mark{len(l.text), i})
		switch {
		case c == none:
		case c&single != 0:
			l.text = append(l.text, byte(c))
		default:
			l.text = utf8.AppendRune(l.text, c)
		}
		i += size
		done = i
		l.marks = append(l.marks, mark{len(l.text), i})
	}
	if len(l.marks) > 0 {
		l.text = append(l.text, in[done:]...)
	}
	return in
}

// start returns where in the data the character at i of the text begins.
func (d *decoder) start(i int) int {
	for _, l := range slices.Backward(d.layers[:d.n]) {
		if k := sort.Search(len(l.marks), func(k int) bool { return l.marks[k].out > i }); k > 0 {
			i += l.marks[k-1].in - l.marks[k-1].out
		}
	}
	return i
}

// char returns the character that is encoded where s begins, and the size of that, 0 if there is none. A backslash that is no escape
// only quotes, and a zero is the other half of UTF-16: neither is a character. pair allows for a second surrogate.
func (d *decoder) char(s []byte, pair bool) (c rune, size int) {
	quotes := 0
	for quotes < min(len(s), maxQuotes) && s[quotes] == '\\' {
		quotes++
	}
	switch {
	case quotes < len(s):
		s = s[quotes:]
	case d.last:
		return none, quotes
	default:
		return short, 0
	}
	switch first := s[0]; {
	case first == 0 || first == '\\':
		c, size = none, 1
	case first == '&':
		c, size = entity(s)
	case first == '%' && len(s) > 1 && s[1]|0x20 == 'u': // IIS
		c, size = d.unicode(s, 2, pair)
	case first == '%':
		if c, size = number(s, 1, 2); c >= utf8.RuneSelf {
			c |= single
		}
	case quotes == 0: // a plus
		c, size = ' ', 1
	case first == 'x':
		c, size = number(s, 1, 2)
	case first == 'u':
		c, size = d.unicode(s, 1, pair)
	case strings.IndexByte(controls, first) >= 0:
		c, size = '\b'+rune(strings.IndexByte(controls, first)), 1
	}
	switch {
	case c == short && !d.last:
		return short, 0
	case size > 0:
		return c, quotes + size
	case quotes == 0, (s[0] == 'u' || s[0] == 'x') && bytes.ContainsAny(s[1:min(len(s), 5)], d.codes): // perhaps encoded digits
		return none, 0
	}
	return rune(s[0]) | single, quotes + 1
}

// unicode returns the character of four digits at s[from:], or of a pair of surrogates (RFC 8259, section 7).
func (d *decoder) unicode(s []byte, from int, pair bool) (c rune, size int) {
	if c, size = number(s, from, 4); !pair || !utf16.IsSurrogate(c) {
		return c, size
	}
	if size == len(s) {
		return short, 0
	}
	if strings.IndexByte(d.codes, s[size]) >= 0 {
		low, more := d.char(s[size:], false)
		if both := utf16.DecodeRune(c, low); both != unicode.ReplacementChar {
			return both, size + more
		} else if low == short {
			return short, 0
		}
	}
	return c, size
}

// number returns the character whose number has so many hexadecimal digits at s[from:].
func number(s []byte, from, digits int) (c rune, size int) {
	end := min(from+digits, len(s))
	for _, digit := range s[from:end] {
		switch {
		case '0' <= digit && digit <= '9':
			digit -= '0'
		case 'a' <= digit|0x20 && digit|0x20 <= 'f':
			digit = digit | 0x20 - 'a' + 10
		default:
			return none, 0
		}
		c = c<<4 | rune(digit)
	}
	if end < from+digits {
		return short, 0
	}
	return c, end
}

// entity returns the character of an entity of HTML.
func entity(s []byte) (c rune, size int) {
	n := 1
	for n < min(len(s), maxName) && isName(rune(s[n])) {
		n++
	}
	switch {
	case n == maxName:
		return none, 0
	case n == len(s):
		return short, 0
	case s[n] != ';':
		return none, 0
	}
	name := string(s[:n+1])
	if i := strings.Index(frequent, name); i >= 0 { // package html is slow
		return rune(frequent[i+n+1]), n + 1
	}
	found := html.UnescapeString(name)
	if c, size := utf8.DecodeRuneInString(found); size == len(found) {
		return c, n + 1
	}
	return none, 0
}

// isName reports whether c may be in the name or number of an entity.
func isName(c rune) bool {
	return c == '#' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}
