package notify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools/egress"
)

// post sends a message by HTTP. The status is all that it reads of the answer.
func (c *sender) post(ctx context.Context, u *url.URL, m message, secret credential.Secret) *Failure {
	method, target, body := c.request(u, m)
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return &Failure{Why: err.Error()}
	}
	var sent atomic.Bool // the transport may write while Do returns for ctx
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	req, err := http.NewRequestWithContext(ctx, method, target.String(), &text)
	if err != nil {
		return &Failure{Why: "the request cannot be written"} // the error has the URL
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "scopefs")
	if c.URL != nil && c.Credential != nil {
		name, prefix := "Authorization", "Bearer "
		if c.Kind == Webhook {
			name, prefix = cmp.Or(c.Header, name), c.Prefix
		}
		req.Header.Set(name, prefix+secret.Reveal())
	}
	client := c.client()
	defer client.CloseIdleConnections() // ends a TLS handshake without a waiting call
	res, err := client.Do(req)
	if err != nil {
		return &Failure{Why: Reason(ctx, err), Again: !sent.Load() && Transient(err), Unknown: sent.Load()}
	}
	defer res.Body.Close()
	return status(res)
}

// client returns a client for one request. A connection is not used Again: what is
// left of an answer cannot reach the next request, and a request is never sent
// twice.
func (c *sender) client() *http.Client {
	transport := egress.NewTransport(c.Dialer().DialContext, egress.ClientLimits{Header: 64 << 10})
	transport.DisableKeepAlives, transport.TLSHandshakeTimeout = true, 0 // the request's context bounds it
	return egress.NewClient(transport)
}

// request returns what a kind of channel takes. No kind interprets the text: it is
// not markup, fetches no link and mentions nobody.
func (c *sender) request(u *url.URL, m message) (method string, target *url.URL, body any) {
	text := m.heading() + "\n" + m.content
	switch c.Kind {
	case Slack: // https://docs.slack.dev/messaging/formatting-message-text#escaping
		escaped := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
		return http.MethodPost, u, map[string]any{"text": escaped, "mrkdwn": false, "unfurl_links": false, "unfurl_media": false}
	case Discord: // https://discord.com/developers/docs/resources/message#allowed-mentions-object
		const suppressEmbeds = 1 << 2
		return http.MethodPost, u, map[string]any{"content": discordText.Replace(text),
			"allowed_mentions": map[string]any{"parse": []string{}}, "flags": suppressEmbeds}
	case Ntfy: // https://docs.ntfy.sh/publish/#publish-as-json
		root := *u
		root.Path, root.RawPath = strings.TrimSuffix(u.Path, topic(u)), ""
		return http.MethodPost, &root, map[string]any{"topic": topic(u), "title": m.heading(), "message": m.content}
	case Matrix: // https://spec.matrix.org/v1.11/client-server-api/#put_matrixclientv3roomsroomidsendeventtypetxnid
		return http.MethodPut, u.JoinPath("_matrix/client/v3/rooms", url.PathEscape(c.Room), "send/m.room.message", m.id),
			map[string]any{"msgtype": "m.notice", "body": text, "m.mentions": struct{}{}}
	}
	return http.MethodPost, u, map[string]any{"agent": m.agent, "title": m.title, "content": m.content}
}

// discordText escapes the markup of Discord. A masked link, for instance, shows another
// address than its target.
var discordText = func() *strings.Replacer {
	var pairs []string
	for _, c := range "\\*_~`|>#-+[]()<:@" {
		pairs = append(pairs, string(c), `\`+string(c))
	}
	return strings.NewReplacer(pairs...)
}()

// topic returns the topic of an ntfy URL, its last component.
func topic(u *url.URL) string {
	if strings.HasSuffix(u.Path, "/") {
		return ""
	}
	return strings.TrimPrefix(path.Base("/"+u.Path), "/")
}

// status returns why a response is no delivery, or nil.
func status(res *http.Response) *Failure {
	f := &Failure{Why: "status " + strconv.Itoa(res.StatusCode)}
	switch code := res.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code >= 300 && code < 400:
		f.Why += ": redirects are not followed"
	case code == http.StatusTooManyRequests || code >= 500:
		f.Again, f.After = true, retryAfter(res.Header.Get("Retry-After"))
	}
	return f
}

// retryAfter reads the header Retry-After: seconds, also with a fraction, or a time
// (RFC 9110, section 10.2.3). It returns an hour at most, and 0 for anything else.
func retryAfter(text string) time.Duration {
	const most = time.Hour
	if seconds, err := strconv.ParseFloat(text, 64); err == nil && seconds > 0 {
		return time.Duration(min(seconds, most.Seconds()) * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), 0), most)
	}
	return 0
}

// Reason describes an error of a connection. It returns only texts that neither the
// server nor the URL's path can be in.
func Reason(ctx context.Context, err error) string {
	var op *net.OpError
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var host x509.HostnameError
	switch {
	case ctx.Err() != nil:
		return "no answer in time"
	case errors.Is(err, egress.ErrAddress):
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return err.Error()
	case errors.As(err, &dns):
		return "the server's name is not resolved: " + dns.Err // the name may be a part of the secret
	case errors.As(err, &op):
		return op.Error()
	case errors.As(err, &host), errors.As(err, &cert):
		return "the server's certificate is not valid for its name"
	}
	return "the connection ended, or the answer is malformed"
}

// Transient reports whether a connection that failed may work later.
func Transient(err error) bool {
	_, op := errors.AsType[*net.OpError](err)
	_, dns := errors.AsType[*net.DNSError](err)
	return op || dns || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
