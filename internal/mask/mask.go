// Package mask finds known texts, such as credentials, in data that has them encoded: each character as
// JSON, a URL, HTML or UTF-16 has it, or by several of these in turn. It decodes the data, compares, and reports
// the bytes as they were, so that all that is no such text stays byte for byte.
package mask

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"unicode/utf8"
)

// Min is the length of the shortest text that a Mask has, in bytes. A shorter one would match by chance.
const Min = 8

// A Mask is a set of texts. It is immutable and safe for concurrent use.
type Mask struct {
	raw, plain [][]byte // as they are, and decoded: a text may itself look like an encoding
	encoded    bool     // a text looks like an encoding
	codes      string
	wanted     [utf8.RuneSelf + 1]bool // see decoder
}

// New returns a mask of the texts that have Min bytes or more.
func New(texts ...string) *Mask {
	m := &Mask{codes: codes}
	if slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(Decode(t), " ") }) {
		m.codes = formCodes
	}
	for c := range m.wanted { // what encodings consist of
		m.wanted[c] = isName(rune(c)) || c == ';' || strings.ContainsRune(m.codes, rune(c))
	}
	for _, text := range texts {
		if len(text) < Min || contains(m.raw, text) {
			continue
		}
		m.raw = append(m.raw, []byte(text))
		plain := (&decoder{codes: m.codes}).decode([]byte(text), true)
		if len(plain) < Min || contains(m.plain, string(plain)) {
			continue
		}
		m.plain = append(m.plain, plain)
		// A percent sign before the text takes digits at its beginning for its own.
		for n := 1; n <= 2 && len(plain)-n >= Min && strings.IndexByte("0123456789abcdefABCDEF", plain[n-1]) >= 0; n++ {
			m.plain = append(m.plain, plain[n:])
		}
		m.encoded = m.encoded || string(plain) != text
		for _, c := range plain {
			m.wanted[min(c, utf8.RuneSelf)] = true
		}
	}
	return m
}

func contains(all [][]byte, text string) bool {
	return slices.ContainsFunc(all, func(t []byte) bool { return string(t) == text })
}

// Forms returns a secret as it is and as encodings of it as a whole have it: hexadecimal, and base64 within any text. For
// HTTP's Basic scheme the secret is the base64 of USER:PASSWORD, and a service may repeat what it decoded.
func Forms(secret string) []string {
	all := formsOf(secret)
	if login, err := base64.StdEncoding.DecodeString(secret); err == nil {
		if _, password, ok := strings.Cut(string(login), ":"); ok {
			all = append(append(all, formsOf(string(login))...), formsOf(password)...)
		}
	}
	return all
}

func formsOf(secret string) []string {
	if len(secret) < Min {
		return nil
	}
	digits := hex.EncodeToString([]byte(secret))
	all := []string{secret, digits, strings.ToUpper(digits)}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			all = append(all, within(encoding, secret, shift))
		}
	}
	return all
}

// within returns the characters that the base64 of any text has for a secret whose offset
// in the text is shift modulo 3. Characters that also depend on bytes beside the secret are
// left out.
func within(encoding *base64.Encoding, secret string, shift int) string {
	text := encoding.EncodeToString([]byte(strings.Repeat("\x00", shift) + secret))
	return text[(8*shift+5)/6 : 8*(shift+len(secret))/6]
}

// Empty reports whether the mask has no text.
func (m *Mask) Empty() bool { return len(m.raw) == 0 }

// In reports whether data has one of the texts.
func (m *Mask) In(data string) bool {
	found, _ := m.find(m.decoder(), []byte(data), true)
	return len(found) > 0
}

// InFolded reports whether data has one of the texts in upper or lower case.
func (m *Mask) InFolded(data string) bool {
	folded := bytes.ToLower((&decoder{codes: m.codes}).decode([]byte(data), true))
	return slices.ContainsFunc(m.plain, func(t []byte) bool { return bytes.Contains(folded, bytes.ToLower(t)) })
}

// Stars returns data with an asterisk for each byte of the texts.
func (m *Mask) Stars(data string) string {
	stars := []byte(data)
	found, _ := m.find(m.decoder(), []byte(data), true)
	for _, s := range found {
		s.star(stars)
	}
	return string(stars)
}

// Replace returns data with "***" for each of the texts.
func (m *Mask) Replace(data string) string { return m.replace(data, true) }

// ReplaceCut is Replace for data whose end was cut off: it also removes the beginning of a text at the end.
func (m *Mask) ReplaceCut(data string) string { return m.replace(data, false) }

func (m *Mask) replace(data string, whole bool) string {
	var b strings.Builder
	found, n := m.find(m.decoder(), []byte(data), whole)
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	kept := -1 // where what has no text begins
	for _, s := range found {
		if s.from > kept {
			b.WriteString(data[max(kept, 0):s.from] + "***")
		}
		kept = max(kept, s.to)
	}
	return b.String() + data[max(kept, 0):max(kept, n)]
}

func (m *Mask) decoder() *decoder { return &decoder{codes: m.codes, wanted: &m.wanted} }

// span is where data has a text.
type span struct{ from, to int }

// star replaces the bytes of the span that data has.
func (s span) star(data []byte) {
	for i := s.from; i < min(s.to, len(data)); i++ {
		data[i] = '*'
	}
}

// find returns where data has texts that begin before n: what is behind may be the beginning of a text, unless data is the last, and
// must be searched again with what follows.
func (m *Mask) find(d *decoder, data []byte, last bool) (found []span, n int) {
	n = len(data)
	if m.Empty() {
		return nil, n
	}
	plain := d.decode(data, last)
	search := func(in []byte, texts [][]byte, start func(int) int) {
		for _, text := range texts {
			for at := 0; ; at++ {
				i := bytes.Index(in[at:], text)
				if i < 0 {
					break
				}
				at += i
				found = append(found, span{start(at), start(at + len(text))})
			}
			for k := min(len(text)-1, len(in)); k > 0 && !last; k-- {
				if in[len(in)-k] == text[0] && bytes.HasSuffix(in, text[:k]) {
					if from := start(len(in) - k); len(data)-from <= k*maxChar {
						n = min(n, from)
					}
					break
				}
			}
		}
	}
	search(data, m.raw, func(i int) int { return i })
	if d.n > 0 || m.encoded || len(plain) < len(data) {
		search(plain, m.plain, d.start)
	}
	if !last {
		n = min(n, d.start(len(plain)))
	}
	return slices.DeleteFunc(found, func(s span) bool { return s.from >= n }), n
}

// onlyEncodes reports whether a byte is no character of a text.
func (m *Mask) onlyEncodes(c byte) bool {
	has := func(t []byte) bool { return bytes.IndexByte(t, c) >= 0 }
	return strings.IndexByte(codes, c) >= 0 && !slices.ContainsFunc(m.raw, has) && !slices.ContainsFunc(m.plain, has)
}
