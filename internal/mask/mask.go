// Package mask finds known texts, such as credentials, in data that has them encoded: each character as
// JSON, a URL, HTML or UTF-16 has it, or by several of these in turn. It decodes the data, compares, and reports
// the bytes as they were, so that all that is no such text stays byte for byte.
package mask

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Min is the length of the shortest text that a Mask has, in bytes. A shorter one would match by chance.
const Min = 8

// A Mask is a set of texts. It is immutable and safe for concurrent use.
type Mask struct {
	texts   []text
	longest int          // of the texts as they are, in bytes
	codes   []byte       // that stand for other bytes, or for none
	begins  [256]bool    // bytes at which a text may begin
	pairs   [1024]uint64 // a bit for each two bytes with which a text may begin
}

// text is a text as it is, and decoded: a text may itself look like an encoding. plain is nil if it has less than Min bytes.
type text struct {
	raw, plain []byte
	folded     string // plain, in lower case
}

// New returns a mask of the texts that have Min bytes or more.
func New(texts ...string) *Mask {
	m := &Mask{codes: []byte{'%', '\\', '&', 0}}
	seen := map[string]bool{}
	for _, raw := range texts {
		if len(raw) < Min || seen[raw] {
			continue
		}
		seen[raw] = true
		plain, _ := decode(raw)
		t := text{raw: []byte(raw), folded: strings.ToLower(string(plain))}
		if m.begins[raw[0]] = true; len(plain) >= Min {
			t.plain = plain
			m.begins[plain[0]] = true
		}
		if bytes.IndexByte(plain, ' ') >= 0 && !slices.Contains(m.codes, '+') { // a form has it so
			m.codes = append(m.codes, '+')
		}
		m.longest = max(m.longest, len(raw))
		m.texts = append(m.texts, t)
	}
	for _, c := range m.codes {
		m.begins[c] = m.begins[c] || c != 0
	}
	for _, t := range m.texts {
		m.pair(t.raw[0], t.raw[1])
		for _, c := range m.codes {
			if t.plain != nil {
				m.pair(t.plain[0], t.plain[1])
				m.pair(t.plain[0], c)
			}
		}
	}
	for c := range m.begins {
		for _, code := range m.codes {
			if code != '\\' || m.begins[c] || strings.ContainsRune("ux\x00", rune(c)) { // most of them quote what begins no text
				m.pair(code, byte(c))
			}
		}
	}
	return m
}

// onlyEncodes reports whether a byte is no character of a text.
func (m *Mask) onlyEncodes(c byte) bool {
	of := func(t text) bool { return bytes.IndexByte(t.raw, c) >= 0 || bytes.IndexByte(t.plain, c) >= 0 }
	return bytes.IndexByte(m.codes, c) >= 0 && !slices.ContainsFunc(m.texts, of)
}

// pair adds two bytes with which a text may begin.
func (m *Mask) pair(first, second byte) {
	pair := uint16(first)<<8 | uint16(second)
	m.pairs[pair>>6] |= 1 << (pair & 63)
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
func (m *Mask) Empty() bool { return len(m.texts) == 0 }

// In reports whether data has one of the texts.
func (m *Mask) In(data string) (found bool) {
	m.scan([]byte(data), 0, true, func(int) { found = true })
	return found
}

// InFolded reports whether data has one of the texts in upper or lower case.
func (m *Mask) InFolded(data string) bool {
	plain, ok := decode(data)
	folded := strings.ToLower(string(plain))
	return !m.Empty() && !ok || slices.ContainsFunc(m.texts, func(t text) bool { return strings.Contains(folded, t.folded) })
}

// Stars returns data with an asterisk for each byte of the texts.
func (m *Mask) Stars(data string) string {
	stars := []byte(data)
	m.scan(stars, 0, true, func(i int) { stars[i] = '*' })
	return string(stars)
}

// Replace returns data with "***" for each of the texts.
func (m *Mask) Replace(data string) string { return m.replace(data, true) }

// ReplaceCut is Replace for data whose end was cut off: it also removes the beginning of a text at the end.
func (m *Mask) ReplaceCut(data string) string { return m.replace(data, false) }

func (m *Mask) replace(data string, whole bool) string {
	var b strings.Builder
	kept := 0 // where what has no text begins
	n, _ := m.scan([]byte(data), 0, whole, func(i int) {
		if i > kept || i == 0 {
			b.WriteString(data[kept:i] + "***")
		}
		kept = i + 1
	})
	return b.String() + data[kept:n]
}

// scan calls found for each byte of data that belongs to a text, in order; found may change that byte. The first hit bytes
// belong to one that began before. It returns how many bytes it has scanned: what is behind them may be the beginning
// of a text, unless data is the last, and must be scanned again with what follows, with the hit that it returns. If data takes too much
// work, all that follows belongs to a text.
func (m *Mask) scan(data []byte, hit int, last bool, found func(int)) (n, after int) {
	work := workFor(len(data))
	for n = m.skip(data, hit); n < len(data); n++ {
		if n >= hit {
			if n = m.candidate(data, n); n == len(data) {
				break
			}
		}
		if m.begins[data[n]] && hit < endless/2 {
			end, more := m.match(data, n, work)
			if *work < 0 {
				end, more = endless, false
			}
			if more && !last {
				break
			}
			hit = max(hit, end)
		}
		if n < hit {
			found(n)
		}
	}
	return n, max(0, hit-n)
}

// endless is the end of what belongs to a text where a text may be anywhere.
const endless = math.MaxInt

// skip returns where the search begins: before the first text as it is, and before the first byte that encodes.
func (m *Mask) skip(data []byte, hit int) int {
	if m.Empty() {
		return len(data)
	}
	if hit > 0 {
		return 0
	}
	for _, c := range m.codes {
		if i := bytes.IndexByte(data, c); i >= 0 {
			data = data[:i]
		}
	}
	begin := max(0, len(data)-m.longest+1)
	for _, t := range m.texts {
		if i := bytes.Index(data[:min(len(data), begin+len(t.raw)-1)], t.raw); i >= 0 {
			begin = i
		}
	}
	return begin
}

// candidate returns the first place from n on at which a text may begin; n is in data.
func (m *Mask) candidate(data []byte, n int) int {
	pair := uint16(data[n])
	for i, c := range data[n+1:] {
		if pair = pair<<8 | uint16(c); m.pairs[pair>>6&1023]>>(pair&63)&1 != 0 {
			return n + i
		}
	}
	if end := len(data) - 1; m.begins[data[end]] {
		return end
	}
	return len(data)
}

// match returns the end of a text that begins at data[from:], 0 if none does; more reports that it depends on what follows.
func (m *Mask) match(data []byte, from int, work *int) (end int, more bool) {
	here := data[from:]
	first := decoder{data: data, at: from, limit: from + maxChar, work: work}
	c := first.char()
	for _, t := range m.texts {
		if here[0] == t.raw[0] {
			n := min(len(here), len(t.raw))
			same := bytes.Equal(here[:n], t.raw[:n])
			if same && n == len(t.raw) {
				end = max(end, from+n)
			}
			more = more || same && n < len(t.raw)
		}
		if more = more || first.short; t.plain == nil || c != rune(t.plain[0]) && c < utf8.RuneSelf && c != '+' {
			continue
		}
		d := first
		if d.reads(c, t.plain) {
			end = max(end, d.at)
		}
		more = more || d.short
	}
	return end, more
}
