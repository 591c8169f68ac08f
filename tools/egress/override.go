package egress

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/mask"
)

// Overrides reports whether some servers take a parameter of a query or of a body for the method.
func Overrides(query, contentType, body string) bool {
	found := func(f finder) bool { return f.find([]byte(body)) }
	return inQuery(query) || slices.ContainsFunc(finders([]string{contentType}), found)
}

func inQuery(query string) bool { return query != "" && new(formNames).find([]byte(query)) }

// overrides reports whether a name is that of a parameter for the method, as Rack, Rails, Symfony, Laravel, Spring and
// WordPress have it, or ASP.NET. PHP reads blanks, dots and a bracket as underscores, and leaves out blanks before a
// name, and what follows a zero.
func overrides(name string) bool {
	name, _, _ = strings.Cut(name, "%00")
	name = strings.TrimLeft(mask.Decode(name), "+ ")
	if i := strings.IndexByte(name, '['); i > 0 {
		name = name[:i]
	}
	name = strings.NewReplacer(" ", "_", "+", "_", ".", "_", "[", "_", "-", "_").Replace(name)
	return strings.EqualFold(name, "_method") || strings.EqualFold(name, "x_http_method_override")
}

// maxName limits the name of a parameter, in bytes; maxPart the head of a part.
const (
	maxName = 256
	maxPart = 8 << 10
)

// A finder looks for a parameter for the method in a body, which comes in pieces.
type finder interface {
	find(data []byte) bool
}

// finders returns what looks at a body of these types. Rack reads one without a type as a form.
func finders(contentTypes []string) (all []finder) {
	kind := strings.ToLower(strings.Join(contentTypes, ","))
	if kind == "" || strings.Contains(kind, "urlencoded") {
		all = append(all, &formNames{})
	}
	if strings.Contains(kind, "multipart") {
		all = append(all, &partNames{})
	}
	if strings.Contains(kind, "json") {
		all = append(all, &memberNames{})
	}
	return all
}

// formNames finds a name in a form, or in a query.
type formNames struct {
	name  []byte
	value bool // a value is under way, or a name that is too long
}

func (f *formNames) find(data []byte) bool {
	for _, c := range data {
		switch {
		case c == '&' || c == ';' || c == '=':
			if !f.value && overrides(string(f.name)) {
				return true
			}
			f.name, f.value = f.name[:0], c == '='
		case f.value:
		case len(f.name) == maxName:
			f.value = true
		default:
			if f.name = append(f.name, c); c == ' ' || c == '+' || c == '0' && string(f.name) == "%20" {
				f.name = bytes.TrimLeft(bytes.TrimSuffix(f.name, []byte("%20")), "+ ")
			}
		}
	}
	return false
}

// memberNames finds a member of an object in JSON.
type memberNames struct {
	depth           int
	within, escaped bool   // of a string
	text            []byte // the string, or the last one
	ended           bool   // nothing but blanks has followed the last one
}

func (m *memberNames) find(data []byte) bool {
	for _, c := range data {
		switch {
		case m.within && c == '"' && !m.escaped:
			m.within, m.ended = false, true
		case m.within:
			m.escaped = c == '\\' && !m.escaped
			if len(m.text) < maxName {
				m.text = append(m.text, c)
			}
		case c == '"':
			m.within, m.text = true, m.text[:0]
		case c == ':' && m.ended && m.depth == 1 && overrides(string(m.text)):
			return true
		case c == '{' || c == '[':
			m.depth++
		case c == '}' || c == ']':
			m.depth--
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			m.ended = false
		}
	}
	return false
}

// partNames finds the name of a part (RFC 7578, section 4.2).
type partNames struct {
	line []byte // as far as it is read, with those that it goes on from (RFC 5322, section 2.2.3)
	end  bool   // the line has ended
}

const disposition = "content-disposition"

func (p *partNames) find(data []byte) bool {
	for len(data) > 0 {
		if p.end && data[0] != ' ' && data[0] != '\t' {
			if p.named() {
				return true
			}
			p.line = p.line[:0]
		}
		n := bytes.IndexByte(data, '\n') + 1
		if p.end = n > 0; !p.end {
			n = len(data)
		}
		p.line = append(p.line, data[:min(n, maxPart-len(p.line))]...)
		data = data[n:]
	}
	return false
}

// named reports whether the line names the part so. One that nothing can read is one that a server may read.
func (p *partNames) named() bool {
	if len(p.line) < len(disposition) || !strings.EqualFold(string(p.line[:len(disposition)]), disposition) {
		return false
	}
	_, value, _ := strings.Cut(strings.NewReplacer("\r", "", "\n", "").Replace(string(p.line)), ":")
	_, fields, err := mime.ParseMediaType(value)
	return len(p.line) == maxPart || overrides(strings.Trim(fields["name"], "'")) ||
		err != nil && strings.Contains(strings.ToLower(mask.Decode(value)), "method")
}

// watched is a body that is looked at while it passes.
type watched struct {
	io.ReadCloser
	finders []finder
	found   func() error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if slices.ContainsFunc(w.finders, func(f finder) bool { return f.find(p[:n]) }) {
		return 0, w.found()
	}
	return n, err
}

// watchMethod ends a request at a parameter of its body that some servers take for its method, if the rules do not allow
// every method.
func (a *access) watchMethod(r *http.Request) {
	if !a.divided || r.Body == nil {
		return
	}
	r.Body = &watched{r.Body, finders(r.Header["Content-Type"]), func() error {
		wrong := denied(a.target(), renamed(a.decision.Rule, "a parameter of the body such as _method"))
		wrong.Hint, wrong.remedy = wrong.remedy, ""
		a.stopped.Store(wrong)
		return wrong
	}}
}
