package tools

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// The bounds of the cost of filters.
const (
	maxExamined  = 512 << 20 // bytes of a call, each form of a string as often as there are expressions
	formCost     = 64        // bytes that a form counts beside its own: most are short
	longExamined = 256 << 10 // bytes of arguments from which on a call waits for one of Gate.Examiners
)

// MaxExaminers bounds the calls of a daemon with long arguments that are examined at the
// same time, because filters use a whole processor.
const MaxExaminers = 2

// ruleFilters begins the rules of argument filters.
const ruleFilters = "argument_filters"

// filtered matches filters against every string of args, names of fields included, and
// of the envelope: the string as it is, and after one base64 or URL decoding. It returns
// the rule that refuses, or "". It returns an error if it cannot examine all strings.
func filtered(ctx context.Context, examiners *limit.Slots, filters []scope.Filter, args *arguments, said []any) (string, *Error) {
	x := examination{ctx: ctx, left: maxExamined}
	for _, f := range filters {
		for _, re := range f.Regexps {
			x.filters = append(x.filters, filter{re, ruleFilters + ": " + f.Pattern + ": " + re.String()})
		}
	}
	if len(x.filters) == 0 {
		return "", nil
	}
	if len(args.canonical) >= longExamined {
		done, err := examiners.Take(ctx)
		if err != nil {
			return "", cancelled(ctx)
		}
		defer done()
	}
	if !x.value(args.value) {
		x.value(said)
	}
	return x.rule, x.err
}

func cancelled(ctx context.Context) *Error {
	return &Error{Code: Internal, Message: "the call was cancelled", cause: ctx.Err()}
}

type filter struct {
	re   *regexp.Regexp
	rule string
}

// examination is the examination of one call's strings. Its methods report whether it is
// over, with a rule or an error.
type examination struct {
	ctx     context.Context
	filters []filter
	left    int // of maxExamined
	rule    string
	err     *Error
}

func (x *examination) value(v any) bool {
	switch v := v.(type) {
	case string:
		return x.text(v)
	case []any:
		for _, e := range v {
			if x.value(e) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if x.text(k) || x.value(e) {
				return true
			}
		}
	}
	return false
}

// form examines one form of a string; an empty one matches nothing.
func (x *examination) form(s string) bool {
	if s == "" {
		return false
	}
	for _, f := range x.filters {
		x.left -= len(s) + formCost
		switch {
		case x.ctx.Err() != nil:
			x.err = cancelled(x.ctx)
		case x.left < 0:
			x.err = Errorf(TooLarge, "what the arguments may be decoded to is more than %d MiB to examine", maxExamined>>20)
			x.err.by = scope.Decision{Kind: scope.KindFilter, Rule: ruleFilters}
		case f.re.MatchString(s):
			x.rule = f.rule
		default:
			continue
		}
		return true
	}
	return false
}

// text examines a string as it is, and its decodings.
func (x *examination) text(s string) bool {
	if x.form(s) {
		return true
	}
	if strings.ContainsAny(s, "%+") { // a form's plus is a blank, a path's plus is itself
		if x.form(unescape(s)) || x.form(unescape(strings.ReplaceAll(s, "+", " "))) {
			return true
		}
	}
	for run := range strings.FieldsFuncSeq(s, notBase64) {
		if x.base64(run) {
			return true
		}
		if strings.Contains(strings.Trim(run, "="), "=") { // x=... may be no base64, but what is behind it
			for piece := range strings.SplitSeq(run, "=") {
				if x.base64(piece) {
					return true
				}
			}
		}
	}
	joined := strings.Join(strings.Fields(s), "") // wrapped lines
	return joined != s && x.form(fromBase64(joined))
}

// minBase64 is the length of the shortest text that is decoded as base64: "c3U=" is su.
const minBase64 = 4

// notBase64 reports characters that cannot be in base64 (RFC 4648, either alphabet).
// Padding can be anywhere: base64 -d reads several texts that follow each other.
func notBase64(r rune) bool {
	switch {
	case 'A' <= r && r <= 'Z', 'a' <= r && r <= 'z', '0' <= r && r <= '9', strings.ContainsRune("+/-_=", r):
		return false
	}
	return true
}

// base64 examines the decodings of a run of characters. Text before the base64 may look
// like a part of it.
func (x *examination) base64(run string) bool {
	for i := 0; i < 4 && len(run)-i >= minBase64; i++ {
		if x.form(fromBase64(run[i:])) {
			return true
		}
	}
	return false
}

// unescape decodes well-formed URL escapes and leaves the rest.
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

// oneAlphabet replaces the URL alphabet of base64 by the standard one.
var oneAlphabet = strings.NewReplacer("-", "+", "_", "/")

// fromBase64 decodes s piece by piece, without a malformed end. The result need not be
// text: a check for text would let one other byte hide all the rest.
func fromBase64(s string) string {
	var all []byte
	for piece := range strings.SplitSeq(oneAlphabet.Replace(s), "=") {
		if len(piece)%4 == 1 {
			piece = piece[:len(piece)-1]
		}
		var err error
		if all, err = base64.RawStdEncoding.AppendDecode(all, []byte(piece)); err != nil {
			return ""
		}
	}
	return string(all)
}
