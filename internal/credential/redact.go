package credential

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"net/url"
	"strings"
)

// minRedact is the shortest secret that is redacted. A shorter one would match by chance.
const minRedact = 8 // bytes

// Redact replaces the secret in text by "***", as it is and in the common encodings of
// services that repeat a request: JSON, HTML, percent, hexadecimal, base64 and UTF-16. It
// cannot find a secret in pieces or in another encoding. It leaves text alone for a secret
// of fewer than 8 bytes.
func (s Secret) Redact(text string) string {
	for _, form := range s.forms() {
		text = strings.ReplaceAll(text, form, "***")
	}
	return text
}

// RedactCut is Redact for a text whose end was cut off: it also removes the beginning of a
// secret at the end.
func (s Secret) RedactCut(text string) string {
	text = s.Redact(text)
	longest := 0
	for _, form := range s.forms() {
		for n := min(len(form), len(text)); n > longest; n-- {
			if strings.HasSuffix(text, form[:n]) {
				longest = n
			}
		}
	}
	return text[:len(text)-longest]
}

// forms returns the encodings of the secret. For HTTP's Basic scheme the secret is the
// base64 of USER:PASSWORD, and a service may repeat what it decoded.
func (s Secret) forms() []string {
	all := formsOf(s.text)
	if plain, err := base64.StdEncoding.DecodeString(s.text); err == nil {
		if _, password, ok := strings.Cut(string(plain), ":"); ok {
			all = append(append(all, formsOf(string(plain))...), formsOf(password)...)
		}
	}
	return all
}

func formsOf(secret string) []string {
	if len(secret) < minRedact {
		return nil
	}
	quoted, _ := json.Marshal(secret)
	hexed := hex.EncodeToString([]byte(secret))
	all := []string{
		secret, string(quoted[1 : len(quoted)-1]), html.EscapeString(secret), url.QueryEscape(secret), url.PathEscape(secret),
		hexed, strings.ToUpper(hexed), strings.Join(strings.Split(secret, ""), "\x00"),
	}
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
