// Package http lets agents send requests to HTTP services that the operator
// names. The agent gives the service's name, a method, a path, a query and a
// body; scopefs adds the address and the credential.
//
// A request goes to the service's own scheme, host and port and to a path below
// the service's URL, whatever the agent writes. Redirects are results, not
// followed. Addresses are resolved and checked by package egress. The credential
// is in no result: where a service repeats it, the result has "***".
package http

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/network"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
)

// A Service is an HTTP service that agents may use.
type Service struct {
	URL        *url.URL                   // http or https; its path is the root of all requests
	Methods    []string                   // upper case; none is GET and HEAD
	Paths      []string                   // doublestar patterns of paths below URL; none is all
	Addresses  []netip.Prefix             // that are allowed though they are not public
	Credential *credential.Source         // nil: none
	Header     string                     // for the credential; "" is Authorization
	Prefix     string                     // before the credential, such as "Bearer "
	Lookup     egress.Dialer              // see Addresses; its Lookup is for tests
	Timeout    time.Duration              // of a request; 0 is 30 s
	Agents     func(scope.Principal) bool // whether an agent may use it; nil: every one
}

// Check reports what is wrong with a service, as "key: what: remedy".
func (s Service) Check() error {
	switch {
	case s.URL == nil || s.URL.Host == "" || s.URL.Scheme != "https" && s.URL.Scheme != "http":
		return errors.New("url: is no address: write https://HOST/PATH")
	case s.URL.User != nil:
		return errors.New("url: has a user: write a credential")
	case s.URL.RawQuery != "" || s.URL.Fragment != "":
		return errors.New("url: has a query or a fragment: remove it")
	case s.URL.Scheme == "http" && s.Credential != nil && !credential.Loopback(s.URL.Hostname()):
		return errors.New("url: is http, and the credential would be readable on the way: write https")
	}
	if _, err := network.ParseHost(s.URL.Hostname()); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	for _, m := range s.Methods {
		if !slices.Contains(methods, m) {
			return fmt.Errorf("methods: %q is unknown: want some of %s", m, strings.Join(methods, ", "))
		}
	}
	for _, p := range s.Paths {
		if p == "" || strings.HasPrefix(p, "/") || !doublestar.ValidatePattern(p) {
			return fmt.Errorf("paths: %q is no pattern: write one relative to the url, such as dashboards/**", p)
		}
	}
	if s.Credential != nil {
		if err := s.Credential.Check(); err != nil {
			return fmt.Errorf("credential: %w", err)
		}
	}
	return nil
}

// Dial reads the credential, connects to the service and, for https, checks its
// certificate. It sends no request and no credential.
func (s Service) Dial(ctx context.Context) error {
	if s.Credential != nil {
		if _, err := s.Credential.Read(ctx); err != nil {
			return fmt.Errorf("credential: %w", err)
		}
	}
	dialer := s.Lookup
	dialer.Pinned = s.Addresses
	port := cmp.Or(s.URL.Port(), map[string]string{"http": "80", "https": "443"}[s.URL.Scheme])
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(s.URL.Hostname(), port))
	if err != nil {
		return err
	}
	defer conn.Close()
	if s.URL.Scheme == "https" {
		return tls.Client(conn, &tls.Config{ServerName: s.URL.Hostname()}).HandshakeContext(ctx)
	}
	return nil
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}

// The bounds of a request and its response.
const (
	maxQuery    = 8 << 10 // bytes, encoded
	maxResponse = 1 << 20 // bytes of a body; the rest is cut off
	maxHeaders  = 64 << 10
	defaultTime = 30 * time.Second
	maxAtOnce   = 16 // requests; of one agent, half of them
)

// New returns the tool http_request for the services of these names.
func New(services map[string]Service) ([]tools.Tool, error) {
	s := set{}
	for name, service := range services {
		if err := service.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s[name] = newEndpoint(service)
	}
	t, err := tools.New("http_request", "Send a request to one of the HTTP services that the operator has named: "+
		strings.Join(slices.Sorted(maps.Keys(s)), ", ")+
		". The address and the credential are added. Redirects are not followed.",
		tools.Hints{Title: "HTTP request", Acts: true, Destructive: true, OpenWorld: true, Waits: true,
			Turns: tools.NewTurns(maxAtOnce, maxAtOnce/2)}, s.request)
	t, err = tools.Judged(t, err, s.judge)
	return []tools.Tool{t}, err
}

type set map[string]*endpoint

// endpoint is a service and what sends its requests.
type endpoint struct {
	Service
	http *http.Client
}

func newEndpoint(s Service) *endpoint {
	dialer := s.Lookup
	dialer.Pinned = s.Addresses
	return &endpoint{s,
		egress.NewClient(egress.NewTransport(dialer.DialContext,
			egress.ClientLimits{Header: maxHeaders, Response: cmp.Or(s.Timeout, defaultTime)}))}
}

// requestArgs are the arguments of http_request.
type requestArgs struct {
	Service     string            `json:"service" limit:"len=64"`
	Method      string            `json:"method,omitempty" limit:"enum=GET|HEAD|POST|PUT|PATCH|DELETE" jsonschema:"GET if absent"`
	Path        string            `json:"path,omitempty" limit:"len=2048" jsonschema:"below the service's address; written as it is, without percent encoding"`
	Query       map[string]string `json:"query,omitempty"`
	Body        string            `json:"body,omitempty" limit:"len=1048576"`
	ContentType string            `json:"content_type,omitempty" limit:"len=128" jsonschema:"of the body; application/json if absent"`
	Accept      string            `json:"accept,omitempty" limit:"len=256"`
}

// Subject names the request in the log: service, method and path. A service that is no
// name is in quotes, so that [Arguments] reads it back.
func (a requestArgs) Subject() (rel, target string) {
	service := a.Service
	if strings.ContainsAny(service, ` "`) {
		service = strconv.Quote(strings.ReplaceAll(service, " ", "_"))
	}
	return "", service + " " + cmp.Or(a.Method, "GET") + " " + a.Path
}

// Arguments returns the arguments of http_request that the log has the subject of.
func Arguments(target string) any {
	service, rest, _ := strings.Cut(target, " ")
	method, path, _ := strings.Cut(rest, " ")
	return requestArgs{Service: service, Method: method, Path: path}
}

// response is the result of http_request.
type response struct {
	Status      int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
	Location    string `json:"location,omitempty" jsonschema:"of a redirect, which is not followed"`
	RetryAfter  string `json:"retry_after,omitempty"`
	Body        string `json:"body"`
	Truncated   bool   `json:"truncated,omitempty" jsonschema:"the body is longer than 1 MiB"`
}

// judge decides about a request by the settings of its service.
func (s set) judge(env tools.Env, in requestArgs) error {
	_, _, err := s.find(env, in)
	return err
}

// find returns the service of a request that is allowed, and the request's URL.
func (s set) find(env tools.Env, in requestArgs) (*endpoint, *url.URL, error) {
	to := s[in.Service]
	if to == nil || !to.allows(env) {
		d := scope.Decision{Kind: scope.KindGrant, Rule: "stores.services", Remedy: "name the service in stores.services"}
		if to != nil {
			d = granted("agents", in.Service, string(env.Agent))
			d.Remedy = env.AddTo(d.Rule)
		}
		e := tools.Refused(d, tools.Denied, "there is no service %.64q here", in.Service)
		var names []string
		for name, to := range s {
			if to.allows(env) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		e.Hint = "services: " + strings.Join(names, ", ")
		return nil, nil, e
	}
	target, err := to.target(in)
	return to, target, err
}

// granted returns the decision of a service whose list does not hold a value.
func granted(list, service, value string) scope.Decision {
	rule := "stores.services." + service + "." + list
	return scope.Decision{Kind: scope.KindGrant, Rule: rule, Remedy: "add " + value + " to " + rule}
}

func (s set) request(ctx context.Context, env tools.Env, in requestArgs) (out response, err error) {
	to, target, err := s.find(env, in)
	if err != nil {
		return out, err
	}
	for name, value := range map[string]string{"content_type": in.ContentType, "accept": in.Accept} {
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			return out, tools.Errorf(tools.Invalid, "%s: holds a character that is not printable ASCII", name)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(to.Timeout, defaultTime))
	defer cancel()
	method := cmp.Or(in.Method, http.MethodGet)
	var body io.Reader = http.NoBody
	if in.Body != "" {
		body = strings.NewReader(in.Body)
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return out, tools.Errorf(tools.Invalid, "the request cannot be written")
	}
	req.Header.Set("User-Agent", "scopefs")
	if in.Body != "" {
		req.Header.Set("Content-Type", cmp.Or(in.ContentType, "application/json"))
	}
	if in.Accept != "" {
		req.Header.Set("Accept", in.Accept)
	}
	var secret credential.Secret
	if to.Credential != nil {
		if secret, err = to.Credential.Read(ctx); err != nil {
			return out, unavailable("the operator's credential for %s cannot be read", in.Service).Because(err)
		}
		req.Header.Set(cmp.Or(to.Header, "Authorization"), to.Prefix+secret.Reveal())
	}
	res, err := to.http.Do(req)
	if err != nil {
		return out, to.failure(ctx, in.Service, err, secret)
	}
	defer res.Body.Close()
	text, err := bounded.Read(res.Body, maxResponse)
	long := errors.Is(err, bounded.ErrTooLong)
	if err != nil && !long {
		return out, to.failure(ctx, in.Service, err, secret)
	}
	out = response{Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"),
		Location: res.Header.Get("Location"), RetryAfter: res.Header.Get("Retry-After")}
	if out.Truncated = long; long {
		text = bounded.Whole(text)
	}
	if !utf8.Valid(text) {
		return out, tools.Errorf(tools.Invalid, "the response is no text (%s, %d bytes)", secret.Redact(out.ContentType), len(text))
	}
	for _, field := range []*string{&out.ContentType, &out.Location, &out.RetryAfter} {
		*field = secret.Redact(*field)
	}
	if out.Body = secret.Redact(string(text)); out.Truncated {
		out.Body = secret.RedactCut(string(text))
	}
	return out, nil
}

// allows reports whether all agents that bound a call may use the service.
func (to *endpoint) allows(env tools.Env) bool {
	return to.Agents == nil || env.All(to.Agents)
}

// target returns the URL of a request. Its path is below the service's.
func (to *endpoint) target(in requestArgs) (*url.URL, error) {
	allowed := to.Methods
	if len(allowed) == 0 {
		allowed = methods[:2]
	}
	if m := cmp.Or(in.Method, http.MethodGet); !slices.Contains(allowed, m) {
		return nil, tools.Refused(granted("methods", in.Service, m), tools.Denied, "%s allows no %s", in.Service, m).
			Suggest("methods: " + strings.Join(allowed, ", "))
	}
	rel, query := strings.TrimPrefix(in.Path, "/"), url.Values{}
	for k, v := range in.Query {
		query.Set(k, v)
	}
	if len(allowed) < len(methods) && egress.Overrides(query.Encode(), cmp.Or(in.ContentType, "application/json"), in.Body) {
		return nil, tools.Refused(granted("methods", in.Service, "every method"), tools.Denied,
			"%s allows no parameter such as _method, in which some servers read another method", in.Service).
			Suggest("leave it out")
	}
	readings, clear := network.PathReadings("/" + rel)
	switch {
	case strings.ContainsFunc(rel, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' || r == utf8.RuneError }):
		return nil, tools.Errorf(tools.Invalid, "path: holds a control character or a backslash")
	case network.Encoded(rel):
		return nil, tools.Errorf(tools.Invalid, "path: is percent-encoded: write the characters themselves")
	case !clear:
		e := tools.Errorf(tools.OutsideScope, "path: leads out of the service")
		return nil, e.Violates("http: the path leads out of the service's url")
	}
	if len(to.Paths) > 0 && slices.ContainsFunc(readings, func(path string) bool {
		return !slices.ContainsFunc(to.Paths, func(p string) bool { return doublestar.MatchUnvalidated(p, strings.Trim(path, "/")) })
	}) {
		return nil, tools.Refused(granted("paths", in.Service, scope.QuotePattern(rel)), tools.Denied, "%s allows no such path", in.Service).
			Suggest("paths: " + strings.Join(to.Paths, ", "))
	}
	u := *to.URL
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+rel, ""
	if u.RawQuery = query.Encode(); len(u.RawQuery) > maxQuery {
		return nil, tools.Errorf(tools.TooLarge, "the query has more than %d bytes", maxQuery)
	}
	return &u, nil
}

func unavailable(format string, args ...any) *tools.Error {
	return tools.Errorf(tools.Unavailable, format, args...).
		Suggest("try again later, or ask the operator: scopefs audit has the reason")
}

// failure is the error of a request that got no response. The cause goes to the
// log, without the credential.
func (to *endpoint) failure(ctx context.Context, service string, err error, secret credential.Secret) *tools.Error {
	why := "it cannot be reached"
	var timeout net.Error
	switch {
	case errors.Is(err, egress.ErrAddress):
		why = "its address is not allowed"
	case ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout():
		why = "it does not answer in time"
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // url.Error repeats the address and the query
	}
	return unavailable("%s: %s", service, why).Because(errors.New(secret.Redact(err.Error())))
}
