package egress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
)

// A refusal says why a connection or a request is not made. The client gets it as
// JSON, with what the client can do; the operator gets the change of the rules.
type refusal struct {
	Message string `json:"error"`
	Rule    string `json:"rule,omitempty"`
	Hint    string `json:"hint,omitempty"`
	remedy  string

	ApprovalID string `json:"approval_id,omitempty"` // of what waits for the operator, or was denied

	status  int           // of HTTP
	verdict audit.Verdict // for the log; "" is a failure of what was allowed
	kind    scope.Kind
	cause   error // for the log alone
	unmade  bool  // the host has no address, or no connection to it can be made
	keyless bool  // the operator's credential cannot be read: cause is for the operator, too
}

func (r *refusal) Error() string { return r.Message }

func (r *refusal) Unwrap() error { return r.cause }

// denied returns the refusal of what a decision does not allow.
func denied(what string, d scope.Decision) *refusal {
	return &refusal{Message: what + " is not allowed", Rule: d.Rule, remedy: d.Remedy, status: http.StatusForbidden, verdict: audit.Deny, kind: d.Kind}
}

// violates returns the refusal of an attempt to get around the rules.
func violates(kind scope.Kind, rule, format string, args ...any) *refusal {
	return &refusal{Message: fmt.Sprintf(format, args...), Rule: rule, status: http.StatusForbidden, verdict: audit.Violation, kind: kind}
}

// tooMany returns the refusal of what is over a bound of the proxy.
func tooMany(what string) *refusal {
	return &refusal{Message: "too many " + what + " at a time", Rule: what, status: http.StatusTooManyRequests, verdict: audit.Deny, kind: scope.KindRate}
}

func malformed(format string, args ...any) *refusal {
	r := violates(scope.KindProtocol, "protocol", format, args...)
	r.status = http.StatusBadRequest
	return r
}

// failed returns the refusal for an error of a connection that was allowed.
func failed(host string, err error) *refusal {
	var own *refusal
	if errors.As(err, &own) {
		return own
	}
	r := &refusal{status: http.StatusBadGateway, cause: err, unmade: unmade(err)}
	var dns *net.DNSError
	var cert *tls.CertificateVerificationError
	var timeout net.Error
	var record tls.RecordHeaderError
	var alert *net.OpError
	var up *upstreamError
	switch {
	case errors.Is(err, errNames):
		r = violates(scope.KindAddress, "network.upstream", "%s is an address, and connections go out by a proxy that gets names alone", host)
		r.remedy, r.cause = fmt.Sprintf("use its name, or write {host: %[1]s, address: %[1]s} in network.allow: that goes there directly", host), err
	case errors.As(err, &up):
		r.Message, r.unmade = fmt.Sprintf("%s is not reached: %v", host, up), true
	case errors.Is(err, ErrAddress):
		r = violates(scope.KindAddress, "public addresses", "%s has an address that is not public, or is this host's own", host)
		r.remedy, r.cause = fmt.Sprintf("scopefs allow %s --address IP: %v", host, err), err
	case errors.As(err, &dns):
		r.Message, r.remedy = host+" cannot be resolved", "check the name, and the name servers of this host"
	case errors.As(err, &cert):
		r.Message = fmt.Sprintf("the certificate of %s is not valid: %v", host, cert.Err)
	case errors.As(err, &record) || errors.As(err, &alert) && alert.Op == "remote error": // crypto/tls exports no type for an alert
		r.Message = host + " does not speak TLS 1.2 or later"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		r.Message, r.status = host+" does not answer in time", http.StatusGatewayTimeout
	default:
		r.Message = host + " cannot be reached"
	}
	return r
}

// unmade reports whether err is of a connection that cannot be made, and not of a client
// that has gone meanwhile.
func unmade(err error) bool {
	var dns *net.DNSError
	var dial *net.OpError
	return !errors.Is(err, context.Canceled) && (errors.As(err, &dns) || errors.As(err, &dial) && dial.Op == "dial")
}

// hint sets what the client of a denied access can do. It names no key of a definition: those are the operator's.
func (t *tenancy) hint(a *access, r *refusal) {
	switch {
	case r.Hint != "":
	case r.kind == scope.KindAddress:
		r.Hint = askOperator
	case r.verdict != audit.Deny:
	case r.kind == scope.KindHost && a.decision.Others:
		r.Hint = t.asks(a)
	case r.kind == scope.KindHost:
		r.Hint = "it is a rule of your operator: do without this host, or ask"
	case r.kind == scope.KindRequest, r.kind == scope.KindNothing:
		r.Hint = askOperator
	}
}

const askOperator = "ask your operator"

// asks returns askOperator, with the command by which the operator allows the host of an access.
func (t *tenancy) asks(a *access) string {
	allow := t.of.Load().Allow
	if allow == nil {
		return askOperator
	}
	return askOperator + ": " + allow(a.host, a.port)
}

func (r *refusal) body() []byte {
	text, _ := json.Marshal(r) // cannot fail: it has strings alone
	return append(text, '\n')
}

// write answers the HTTP request of an access.
func (r *refusal) write(w http.ResponseWriter, a *access) error {
	body := r.body()
	if a.proto == 1 && (a.method == http.MethodConnect || a.upgrade) {
		w.Header().Set("Connection", "close") // framedConn reads no more requests
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(r.status)
	_, err := w.Write(body)
	return err
}

// raw is the answer to CONNECT. Clients do not show its body, and many show the
// reason phrase, which therefore has the rule that is missing.
func (r *refusal) raw() []byte {
	body := r.body()
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", r.status, r.reason(), len(body), body)
}

// reason is the refusal as a reason phrase (RFC 9112, section 4): printable ASCII, at
// most maxReason bytes.
func (r *refusal) reason() string {
	text := r.Message
	if r.Hint != "" {
		text += ": " + r.Hint
	}
	return oneLine(text)
}

func oneLine(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text[:min(len(text), maxReason)])
}

const maxReason = 300
