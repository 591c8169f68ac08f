package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/egress"
)

// Server is an InfluxDB server. Points are written by the API of its version, and
// read by InfluxQL at /query, which all three versions answer.
type Server struct {
	URL        *url.URL           // http or https; its path is the root of the API
	Version    int                // 1, 2 or 3
	Org        string             // the organisation, for version 2
	User       string             // for version 1; "" is no authentication
	Credential *credential.Source // version 1: the user's password; else a token; nil: none
	Addresses  []netip.Prefix     // that are allowed though they are not public; an address in URL is
	Retention  time.Duration      // of a database that scopefs creates, on version 1
	Timeout    time.Duration      // of a call; 0 is 10 s
}

// Check reports what is wrong with the settings, as "key: what: remedy".
func (s Server) Check() error {
	switch {
	case s.URL == nil || s.URL.Host == "" || s.URL.Scheme != "https" && s.URL.Scheme != "http":
		return errors.New("url: is no address: write https://HOST:PORT")
	case s.URL.User != nil || s.URL.RawQuery != "" || s.URL.Fragment != "":
		return errors.New("url: has a user, a query or a fragment: remove it")
	case s.URL.Scheme == "http" && s.Credential != nil && !credential.Loopback(s.URL.Hostname()):
		return errors.New("url: is http, and the credential would be readable on the way: write https")
	case s.Version < 1 || s.Version > 3:
		return fmt.Errorf("version: %d is unknown: write 1, 2 or 3", s.Version)
	case s.Version == 2 && s.Org == "":
		return errors.New("org: is missing: version 2 wants one")
	case s.User != "" && (s.Version != 1 || s.Credential == nil):
		return errors.New("user: is for version 1, together with a credential")
	case s.Version == 1 && s.Credential != nil && s.User == "":
		return errors.New("user: is missing: version 1 wants one beside the credential")
	case s.Retention < time.Hour:
		return errors.New("retention: is too short: write 1h or more")
	}
	if s.Credential != nil {
		if err := s.Credential.Check(); err != nil {
			return fmt.Errorf("credential: %w", err)
		}
	}
	return nil
}

// The bounds of an answer.
const (
	maxAnswer   = 2 << 20 // bytes
	maxHeaders  = 64 << 10
	defaultTime = 10 * time.Second
)

// Influx is a [Store] on an InfluxDB server.
type Influx struct {
	Server
	http *http.Client
}

// Open returns a store on a server. The server need not run yet.
func Open(s Server) (*Influx, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	dialer := egress.Dialer{Pinned: s.Addresses}
	if ip, err := netip.ParseAddr(s.URL.Hostname()); err == nil {
		dialer.Pinned = append([]netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}, s.Addresses...)
	}
	return &Influx{s, egress.NewClient(egress.NewTransport(dialer.DialContext, egress.ClientLimits{Header: maxHeaders}))}, nil
}

// Close closes idle connections.
func (s *Influx) Close() error {
	s.http.CloseIdleConnections()
	return nil
}

// Write writes lines, and creates the database on a server of version 1. A server of
// version 3 creates it by itself.
func (s *Influx) Write(ctx context.Context, database string, lines []byte) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, defaultTime))
	defer cancel()
	a, err := s.post(ctx, s.writeURL(database), "text/plain; charset=utf-8", string(lines))
	if err == nil && a.status == http.StatusNotFound && s.Version == 1 && a.missing() {
		if err = s.create(ctx, database); err == nil {
			a, err = s.post(ctx, s.writeURL(database), "text/plain; charset=utf-8", string(lines))
		}
	}
	if err != nil {
		return err
	}
	if a.status == http.StatusNoContent {
		return nil
	}
	return s.refused(a, database)
}

func (s *Influx) writeURL(database string) string {
	if s.Version == 1 {
		return s.path("write", url.Values{"db": {database}})
	}
	values := url.Values{"bucket": {database}, "precision": {"ns"}}
	if s.Org != "" {
		values.Set("org", s.Org)
	}
	return s.path("api/v2/write", values)
}

// path returns a URL of the API. An empty values has no query.
func (s *Influx) path(name string, values url.Values) string {
	u := *s.URL
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/")+"/"+name, ""
	u.RawQuery = values.Encode()
	return u.String()
}

// create creates a database. It is no error if the database exists.
func (s *Influx) create(ctx context.Context, database string) error {
	text := fmt.Sprintf("CREATE DATABASE %s WITH DURATION %ds NAME %s", identifier(database), s.Retention/time.Second, identifier("autogen"))
	a, err := s.influxQL(ctx, "", text)
	if err != nil {
		return err
	}
	if a.status == http.StatusOK && a.said == "" && a.odd == nil {
		return nil
	}
	return unavailable(fmt.Errorf("create %q: status %d: %s", database, a.status, tools.Clip(a.said, 500)),
		fmt.Sprintf("the operator must create the database %q on the server, or give the user of scopefs all privileges", database))
}

// Query runs a statement.
func (s *Influx) Query(ctx context.Context, database string, q Select) (all []Series, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, defaultTime))
	defer cancel()
	a, err := s.influxQL(ctx, database, q.String(s.Version != 3))
	if err != nil {
		return nil, false, err
	}
	if a.missing() {
		return nil, false, nil
	}
	if a.status != http.StatusOK || a.said != "" {
		return nil, false, s.refused(a, database)
	}
	return a.series(q)
}

func (s *Influx) influxQL(ctx context.Context, database, text string) (answer, error) {
	values := url.Values{"q": {text}, "epoch": {"ns"}}
	if database != "" {
		values.Set("db", database)
	}
	return s.post(ctx, s.path("query", nil), "application/x-www-form-urlencoded", values.Encode())
}

// Ping checks the server's version, and that it takes the credential. Its error is
// for the operator.
func (s *Influx) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.Timeout, defaultTime))
	defer cancel()
	a, err := s.send(ctx, http.MethodGet, s.path("ping", nil), "", "")
	if err == nil && a.version == "" {
		err = fmt.Errorf("the server is no InfluxDB: it answers /ping with status %d and no version", a.status)
	}
	if err == nil && !a.is(s.Version) {
		err = fmt.Errorf("the server is InfluxDB %.20q, and version is %d in scopefs.yaml", a.version, s.Version)
	}
	if err == nil {
		a, err = s.influxQL(ctx, "", "SHOW DATABASES")
	}
	if err == nil && (a.status == http.StatusUnauthorized || a.status == http.StatusForbidden) {
		err = fmt.Errorf("the server refuses the credential: status %d", a.status)
	}
	return tools.Cause(err)
}

func (s *Influx) post(ctx context.Context, url, kind, body string) (answer, error) {
	return s.send(ctx, http.MethodPost, url, kind, body)
}

// send sends a request and reads its answer.
func (s *Influx) send(ctx context.Context, method, url, kind, body string) (a answer, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return a, unavailable(err, "the operator must check the server's url")
	}
	req.Header.Set("User-Agent", "scopefs")
	req.Header.Set("Accept", "application/json")
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	// Each point has its time, so a request may be sent again on a new connection. An
	// empty value is not sent.
	req.Header["Idempotency-Key"] = nil
	secret, err := s.authorize(ctx, req)
	if err != nil {
		return a, err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return a, s.unreachable(ctx, err, secret)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return a, s.unreachable(ctx, err, secret)
	}
	if len(text) > maxAnswer {
		return a, tools.Errorf(tools.TooLarge, "the answer has more than %d bytes", maxAnswer).
			Suggest("lower limit, name fewer fields or tags, or give a longer interval")
	}
	return newAnswer(res.StatusCode, secret.Redact(res.Header.Get("X-Influxdb-Version")), secret.Redact(string(text))), nil
}

func (s *Influx) authorize(ctx context.Context, req *http.Request) (secret credential.Secret, err error) {
	if s.Credential == nil {
		return secret, nil
	}
	if secret, err = s.Credential.Read(ctx); err != nil {
		return secret, unavailable(err, "the operator must check the credential of the metrics store")
	}
	if s.Version == 1 {
		req.SetBasicAuth(s.User, secret.Reveal())
	} else {
		req.Header.Set("Authorization", "Token "+secret.Reveal())
	}
	return secret, nil
}

// unreachable is the error of a request that got no whole answer. The cause goes to
// the log, without the credential.
func (s *Influx) unreachable(ctx context.Context, err error, secret credential.Secret) error {
	hint := "the server cannot be reached: try again later"
	var timeout net.Error
	switch {
	case errors.Is(err, egress.ErrAddress):
		hint = "the server's address is not allowed: the operator must add it to addresses"
	case ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout():
		hint = "the server does not answer in time: try again later, or ask for less"
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // url.Error repeats the address
	}
	return unavailable(errors.New(secret.Redact(err.Error())), hint)
}

// unavailable is the error of a server that failed. The agent does not see the
// cause; the log has it.
func unavailable(cause error, hint string) *tools.Error {
	return tools.Errorf(tools.Unavailable, "the metrics store failed").Because(cause).Suggest(hint)
}
