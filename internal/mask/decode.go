package mask

import (
	"html"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxChar limits the encoding of one character, in bytes: an entity of which each character is an escape of JSON in a URL
// has 90, and a credential may have what looks like one. maxLayers limits how often a character is encoded, and how deep
// the parts of that are. maxQuotes limits the backslashes before it: JSON that was quoted four times has 15.
const (
	maxChar   = 1 << 10
	maxLayers = 8
	maxQuotes = 16
)

// maxName limits an entity, in bytes. The longest name of HTML has 33 with its marks.
const maxName = 40

const (
	none   rune = -1
	single rune = 1 << 24 // marks a byte that is a part of a character
)

// decoder reads the characters of data from at on, each with all its encodings.
type decoder struct {
	data  []byte
	at    int
	limit int  // of the character under way
	depth int  // of the encodings under way
	short bool // data has ended: what follows may change what was read
}

// Decode returns a text without its encodings.
func Decode(text string) string { return string(decode(text)) }

// decode returns the characters of a whole text.
func decode(text string) (plain []byte) {
	for d := (decoder{data: []byte(text)}); ; {
		d.limit = d.at + maxChar
		c := d.char()
		if c == none && d.at == len(text) {
			return plain
		}
		plain = add(plain, c)
	}
}

// reads reports whether c and the next characters are those of a text.
func (d *decoder) reads(c rune, plain []byte) bool {
	for {
		if c == '+' && plain[0] == ' ' { // in a form
			c = ' '
		}
		var buf [utf8.UTFMax]byte
		read := add(buf[:0], c)
		for _, b := range read {
			if b != plain[0] {
				return false
			}
			if plain = plain[1:]; len(plain) == 0 {
				return true
			}
		}
		if len(read) == 0 {
			return false
		}
		d.limit = d.at + maxChar
		c = d.char()
	}
}

func add(text []byte, c rune) []byte {
	switch {
	case c == none:
		return text
	case c&single != 0:
		return append(text, byte(c))
	}
	return utf8.AppendRune(text, c)
}

// byte returns the next byte; none at the end.
func (d *decoder) byte() rune {
	switch {
	case d.at == d.limit:
		return none
	case d.at == len(d.data):
		d.short = true
		return none
	}
	c := rune(d.data[d.at])
	d.at++
	if c >= utf8.RuneSelf {
		c |= single
	}
	return c
}

// char returns the next character; none at the end. What encodes a character may be encoded itself, as a whole or each part
// of it. A backslash that is no escape by a number only quotes, and a zero is the other half of UTF-16: neither
// is a character.
func (d *decoder) char() rune { return d.next(maxLayers) }

// next is char, but a backslash that is encoded in so many layers is a character: another one quotes it.
func (d *decoder) next(quoted int) rune {
	c := d.byte()
	if d.depth == maxLayers {
		return c
	}
	d.depth++
	for layer := range maxLayers {
		for c == 0 {
			c = d.byte()
		}
		after, decoded := d.at, none
		switch {
		case c == '%':
			if c1 := d.char(); c1 == 'u' || c1 == 'U' { // IIS
				decoded = d.hex(d.char(), 4)
			} else if decoded = d.hex(c1, 2); decoded >= utf8.RuneSelf {
				decoded |= single
			}
		case c == '&':
			decoded = d.entity()
		case c == '\\' && layer < quoted:
			for n := 0; c == '\\' && n < maxQuotes; n++ {
				if d.depth == 1 {
					d.limit = d.at + maxChar
				}
				c = d.next(layer)
			}
			switch after = d.at; c {
			case 'u':
				decoded = d.unicode()
			case 'x':
				decoded = d.hex(d.char(), 2)
			}
		}
		if decoded == none {
			d.at = after
			break
		}
		c = decoded
	}
	d.depth--
	return c
}

// hex returns a number of so many hexadecimal digits; none if they are other characters.
func (d *decoder) hex(digit rune, digits int) (number rune) {
	for {
		switch {
		case digit >= '0' && digit <= '9':
			digit -= '0'
		case digit|0x20 >= 'a' && digit|0x20 <= 'f':
			digit = digit | 0x20 - 'a' + 10
		default:
			return none
		}
		number = number<<4 | digit
		if digits--; digits == 0 {
			return number
		}
		digit = d.char()
	}
}

// unicode returns the character of an escape of JSON, which may be a pair (RFC 8259, section 7).
func (d *decoder) unicode() rune {
	c := d.hex(d.char(), 4)
	if utf16.IsSurrogate(c) {
		after := d.at
		if pair := utf16.DecodeRune(c, d.char()); pair != unicode.ReplacementChar {
			return pair
		}
		d.at = after
	}
	return c
}

// entity returns the character of an entity of HTML.
func (d *decoder) entity() rune {
	var text [maxName]byte
	text[0] = '&'
	for n := 1; n < len(text); n++ {
		c := d.char()
		switch {
		case c == ';':
			text[n] = ';'
			found := html.UnescapeString(string(text[:n+1]))
			if c, size := utf8.DecodeRuneInString(found); size == len(found) {
				return c
			}
			return none
		case c != '#' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z'):
			return none
		}
		text[n] = byte(c)
	}
	return none
}
