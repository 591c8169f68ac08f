package egress

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/mask"
	"github.com/scopefs/scopefs/scope"
)

// A Secret is a credential of a host, which the sandbox does not have. Programs
// there have a placeholder. The proxy puts the value in its place, in the header
// Header and in Authorization, Basic included, of requests that a rule with the
// secret allows. Where Header has no placeholder, the proxy sets it by Format, so
// that no request goes out under another credential; an Authorization without
// the placeholder is removed. Requests in plain HTTP get no value, except at a
// loopback address that the rule has.
//
// The placeholder in the fields, the path, the query or the body of a request to
// another host is a violation; messages of WebSocket to a host are not looked
// into. In responses to requests with the value, the value
// becomes asterisks: in fields, bodies and WebSocket messages, as it is and with
// any of its characters in the encodings of package mask, if it has 8 bytes or more. A response that is compressed otherwise
// than by gzip is refused, and ranges are not requested: neither could be read.
type Secret struct {
	Placeholder string   // see NewPlaceholder
	Header      string   // "": Authorization
	Format      string   // with %s for the value, such as "Bearer %s"; "": the value alone
	Without     []string // other fields for credentials, which are removed
	File        bool     // programs have the placeholder in a file; else in a variable

	// Read returns the value; see credential.Source. The proxy keeps it for a
	// minute, or until the host answers with status 401.
	Read func(context.Context) (credential.Secret, error)

	// Source names where Read reads. A value is kept for its source: after a change of
	// the rules another host may have the same variable with another credential.
	Source string
}

// NewPlaceholder returns a placeholder that nothing else contains.
func NewPlaceholder() string { return "scopefs-secret-" + rand.Text() }

// Placeholder returns the placeholder for a name. It stays the same as long as the CA keeps
// its key, and nobody can compute it without that key. A nil CA returns a new one.
func (c *CA) Placeholder(name string) string {
	if c == nil {
		return NewPlaceholder()
	}
	key, err := c.key.Bytes()
	if err != nil {
		return NewPlaceholder()
	}
	sum := hmac.New(sha256.New, key)
	sum.Write([]byte(name))
	return "scopefs-secret-" + base32.StdEncoding.EncodeToString(sum.Sum(nil))[:26]
}

// secretLife is how long a value is kept.
const secretLife = time.Minute

// keptName is the name of a secret, and its source.
type keptName struct{ name, source string }

// keptSecret is a value that is being read, or that was read. Requests that need it wait for one reading.
type keptSecret struct {
	done chan struct{} // closed when value, err and read are set
	stop func()        // ends the reading

	value credential.Secret
	err   error
	read  time.Time

	waiting int // requests; framed by Proxy.secretLock
}

// ended reports whether the reading has ended.
func (k *keptSecret) ended() bool {
	select {
	case <-k.done:
		return true
	default:
		return false
	}
}

// fresh reports whether a request may use the value, or wait for it.
func (k *keptSecret) fresh() bool {
	return !k.ended() || k.err == nil && time.Since(k.read) < secretLife
}

// value returns the value of a secret. It reads the secret if no value is kept, and waits for that, which delays no
// request that needs another secret. A reading that no request waits for ends.
func (p *Proxy) value(ctx context.Context, name string, s Secret) (string, error) {
	key := keptName{name, s.Source}
	p.secretLock.Lock()
	k := p.kept[key]
	begins := k == nil || !k.fresh()
	var reading context.Context
	if begins {
		k = &keptSecret{done: make(chan struct{})}
		reading, k.stop = context.WithCancel(context.WithoutCancel(ctx))
		p.kept[key] = k
	}
	k.waiting++
	p.secretLock.Unlock()
	defer p.leave(k)
	if begins && !p.begin(func() {
		k.value, k.err = s.Read(reading)
		k.read = time.Now()
		close(k.done)
	}) {
		k.err = net.ErrClosed
		close(k.done)
	}
	select {
	case <-k.done:
		return k.value.Reveal(), k.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// leave ends a reading that no request waits for.
func (p *Proxy) leave(k *keptSecret) {
	p.secretLock.Lock()
	defer p.secretLock.Unlock()
	if k.waiting--; k.waiting == 0 {
		k.stop()
		maps.DeleteFunc(p.kept, func(_ keptName, other *keptSecret) bool { return other == k && !k.ended() })
	}
}

func (p *Proxy) forget(name string) {
	p.secretLock.Lock()
	defer p.secretLock.Unlock()
	maps.DeleteFunc(p.kept, func(key keptName, _ *keptSecret) bool { return key.name == name })
}

// equip puts the credential of a request in its place.
func (p *Proxy) equip(r *http.Request, a *access, all map[string]Secret) error {
	s, ok := all[a.secret]
	if !ok {
		return &refusal{Message: "the credential of " + a.host + " is not there", status: http.StatusBadGateway}
	}
	if a.scheme != "https" && !a.local {
		r := violates(scope.KindSecret, "credential", "%s has a credential, which is not sent in plain HTTP", a.host)
		r.Hint, r.verdict = "use https", audit.Deny
		return r
	}
	value, err := p.value(r.Context(), a.secret, s)
	var own *refusal
	if errors.As(err, &own) {
		return own
	}
	if err != nil {
		return &refusal{Message: "the operator's credential for " + a.host + " cannot be read", status: http.StatusBadGateway, cause: err, keyless: true}
	}
	sent := s.apply(r.Header, value)
	a.mask = mask.New(append(sent, value)...)
	r.Header.Set("Accept-Encoding", "identity")
	for _, name := range []string{"Range", "If-Range", "Sec-Websocket-Extensions"} {
		r.Header.Del(name)
	}
	return nil
}

// apply sets the fields with the value, and returns texts in them that hide it.
func (s Secret) apply(h http.Header, value string) (hidden []string) {
	for _, name := range s.Without {
		h.Del(name)
	}
	named := http.CanonicalHeaderKey(cmp.Or(s.Header, "Authorization"))
	for _, name := range slices.Compact([]string{named, "Authorization"}) {
		fields := h[name]
		h.Del(name)
		for _, field := range fields {
			if put, ok := s.put(field, value); ok {
				h.Set(name, put)
				hidden = append(hidden, strings.TrimPrefix(put, basic))
				break
			}
		}
	}
	if h.Get(named) == "" {
		h.Set(named, strings.Replace(cmp.Or(s.Format, "%s"), "%s", value, 1))
	}
	return hidden
}

const basic = "Basic "

// put replaces the placeholder in a field; ok is false if it has none.
func (s Secret) put(field, value string) (put string, ok bool) {
	if login, ok := decodeBasic(field); ok && strings.Contains(login, s.Placeholder) {
		return basic + base64.StdEncoding.EncodeToString([]byte(strings.ReplaceAll(login, s.Placeholder, value))), true
	}
	return strings.ReplaceAll(field, s.Placeholder, value), strings.Contains(field, s.Placeholder)
}

// decodeBasic returns USER:PASSWORD of a field (RFC 7617).
func decodeBasic(field string) (login string, ok bool) {
	if len(field) < len(basic) || !strings.EqualFold(field[:len(basic)], basic) {
		return "", false
	}
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(field[len(basic):]))
	return string(text), err == nil
}

// leak returns the refusal of a request with the placeholder of a credential for
// another host. It looks at the body while that passes. The reverse proxy sends no
// trailers.
func leak(r *http.Request, a *access, all map[string]Secret) *refusal {
	var others []string
	for name, s := range all {
		if name != a.secret {
			others = append(others, s.Placeholder)
		}
	}
	m := mask.New(others...)
	if m.Empty() {
		return nil
	}
	wrong := violates(scope.KindSecret, "credential", "the request to %s has the placeholder of another host's credential", a.host)
	if m.In(r.Method) || m.In(r.URL.RequestURI()) || inHeader(m, r.Header) || inHeader(m, r.Trailer) {
		return wrong
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &struct {
			io.Reader
			io.Closer
		}{mask.NewReader(r.Body, m, func() error {
			a.stopped.Store(wrong)
			return wrong
		}), r.Body}
	}
	return nil
}

func inHeader(m *mask.Mask, h http.Header) bool {
	for name, fields := range h {
		if m.InFolded(name) {
			return true
		}
		for _, field := range fields {
			login, _ := decodeBasic(field)
			if m.In(field) || m.In(login) {
				return true
			}
		}
	}
	return false
}

// redactHeader masks the value in fields. net/http changes the case of their names.
func redactHeader(m *mask.Mask, h http.Header) {
	for name, values := range h {
		if m.InFolded(name) {
			delete(h, name)
		}
		for i := range values {
			values[i] = m.Stars(values[i])
		}
	}
}

// redact masks the value in a response.
func redact(res *http.Response, m *mask.Mask) error {
	redactHeader(m, res.Header)
	redactHeader(m, res.Trailer) // its names
	if res.StatusCode == http.StatusPartialContent {
		return &refusal{Message: "the host has sent a part that was not asked for: a credential may lie across its edge", status: http.StatusBadGateway}
	}
	if !hasBody(res) {
		return nil
	}
	body := io.Reader(res.Body)
	switch coding := strings.ToLower(strings.Join(res.Header["Content-Encoding"], ", ")); coding {
	case "", "identity":
	case "gzip":
		body = &lazyGzip{from: res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	default:
		return &refusal{Message: fmt.Sprintf("the proxy cannot look for a credential in a response with the encoding %.40q", coding), status: http.StatusBadGateway}
	}
	masked := &maskedBody{Closer: res.Body, Reader: mask.NewReader(body, m, nil), end: func() { redactHeader(m, res.Trailer) }}
	if w, ok := res.Body.(io.Writer); ok {
		res.Body = struct {
			*maskedBody
			io.Writer
		}{masked, w}
		return nil
	}
	res.Body = masked
	return nil
}

func hasBody(res *http.Response) bool {
	return res.Request.Method != http.MethodHead && res.StatusCode != http.StatusNoContent && res.StatusCode != http.StatusNotModified
}

// maskedBody is a body whose trailer comes with its end.
type maskedBody struct {
	*mask.Reader
	io.Closer
	end func()
}

func (b *maskedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		b.end()
	}
	return n, err
}

// lazyGzip reads the head of a gzip stream when it is read itself.
type lazyGzip struct {
	from io.Reader
	gzip *gzip.Reader
}

func (z *lazyGzip) Read(p []byte) (int, error) {
	if z.gzip == nil {
		r, err := gzip.NewReader(z.from)
		if err != nil {
			return 0, err
		}
		z.gzip = r
	}
	return z.gzip.Read(p)
}
