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

// The bytes that a decoder reads for a text of n bytes: encodings of encodings that end in no character are read again and again. What
// programs write needs 20 for each byte.
const (
	freeWork = 64 << 10
	byteWork = 128

	entityWork = 32 // of a name that is looked up
)

func workFor(n int) *int {
	work := freeWork + byteWork*n
	return &work
}

// maxName limits an entity, in bytes. The longest name of HTML has 33 with its marks.
const maxName = 40

const (
	none   rune = -1
	single rune = 1 << 24 // marks a byte that is a part of a character
	quoted rune = 1 << 25 // marks a letter behind a backslash, which may stand for a control character (RFC 8259, section 7)
)

// controls are what letters behind a backslash stand for.
var controls = map[rune]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// decoder reads the characters of data from at on, each with all its encodings.
type decoder struct {
	data  []byte
	at    int
	limit int  // of the character under way
	depth int  // of the encodings under way
	short bool // data has ended: what follows may change what was read
	work  *int // bytes that may still be read
}

// Decode returns a text without its encodings, as far as they can be read.
func Decode(text string) string {
	plain, _ := decode(text)
	return string(plain)
}

// decode returns the characters of a whole text; not ok: what follows the first ones takes too much work, and is as it was.
func decode(text string) (plain []byte, ok bool) {
	for d := (decoder{data: []byte(text), work: workFor(len(text))}); ; {
		begin := d.at
		d.limit = d.at + maxChar
		c := d.char()
		switch {
		case *d.work < 0:
			return append(plain, text[begin:]...), false
		case c == none && d.at == len(text):
			return plain, true
		}
		plain = add(plain, c)
	}
}

// reads reports whether c and the next characters are those of a text.
func (d *decoder) reads(c rune, plain []byte) bool {
	for {
		switch {
		case c == '+' && plain[0] == ' ': // in a form
			c = ' '
		case c&^0xff == quoted && controls[c&^quoted] == plain[0]:
			c = rune(plain[0])
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
	return utf8.AppendRune(text, c&^quoted)
}

// byte returns the next byte; none at the end.
func (d *decoder) byte() rune {
	*d.work--
	switch {
	case d.at == d.limit || *d.work < 0:
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
func (d *decoder) next(layers int) rune {
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
		case c == '\\' && layer < layers:
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
			default:
				if _, ok := controls[c]; ok && d.depth == 1 {
					c |= quoted
				}
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
			*d.work -= entityWork
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
