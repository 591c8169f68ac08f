package tools

import (
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// maxDecodings is how often a string is decoded again before it is given up.
const maxDecodings = 3

// filtered holds a tool's argument filters against every string in v, names of
// fields included, as it is and after base64 and URL decoding. It returns the
// rule that refuses, or "".
func filtered(filters []scope.Filter, tool string, v any) string {
	for _, f := range filters {
		if !scope.MatchTool(f.Pattern, tool) {
			continue
		}
		for _, re := range f.Regexps {
			if anyString(v, func(s string) bool { return matches(re, s, maxDecodings) }) {
				return "argument_filters: " + f.Pattern + ": " + re.String()
			}
		}
	}
	return ""
}

// anyString reports whether f holds for a string of v.
func anyString(v any, f func(string) bool) bool {
	switch v := v.(type) {
	case string:
		return f(v)
	case []any:
		for _, e := range v {
			if anyString(e, f) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if f(k) || anyString(e, f) {
				return true
			}
		}
	}
	return false
}

// base64Run is what may be base64 within other text (RFC 4648, either alphabet).
var base64Run = regexp.MustCompile(`[A-Za-z0-9+/_-]{8,}={0,2}`)

func matches(re *regexp.Regexp, s string, decodings int) bool {
	if re.MatchString(s) {
		return true
	}
	if decodings == 0 {
		return false
	}
	if strings.ContainsAny(s, "%+") { // of a form a plus is a blank, of a path it is itself
		for _, d := range []string{unescape(s), unescape(strings.ReplaceAll(s, "+", " "))} {
			if d != s && matches(re, d, decodings-1) {
				return true
			}
		}
	}
	for _, run := range base64Run.FindAllString(s, -1) {
		if d := fromBase64(run); d != "" && matches(re, d, decodings-1) {
			return true
		}
		for i := 1; i < 4 && i < len(run); i++ { // what stands before it may look like more of it
			if d := fromBase64(run[i:]); d != "" && re.MatchString(d) {
				return true
			}
		}
	}
	if d := fromBase64(strings.Join(strings.Fields(s), "")); d != "" && matches(re, d, decodings-1) { // wrapped lines
		return true
	}
	return false
}

// unescape decodes what is well formed of a URL's escapes and leaves the rest.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if d, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.Write(d)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// fromBase64 returns what s decodes to, but for an end that is none. It need not
// be text: one byte that is not would hide all the others.
func fromBase64(s string) string {
	s = strings.TrimRight(s, "=")
	if len(s)%4 == 1 {
		s = s[:len(s)-1]
	}
	if len(s) < 8 {
		return ""
	}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if d, err := enc.DecodeString(s); err == nil {
			return string(d)
		}
	}
	return ""
}
