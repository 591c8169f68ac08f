package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/header"
)

// The places where a new stream begins in the log.
const (
	FromNow   = "now"
	FromStart = "start"
)

// Stream gives the events of the log to a receiver, as they are recorded. Syslog or OTLP is its address; of the stream
// of a fleet NATS is.
type Stream struct {
	Name string

	Syslog string // tcp://HOST:PORT, tls://HOST:PORT, udp://HOST:PORT or unix://PATH

	NATS        string // nats://HOST:PORT or tls://HOST:PORT: see Fleet.Stream
	Subject     string // the subject of an event has its agent at its end
	Stream      string // of JetStream, which stores the subject
	Node        string // whose process serves the fleet
	Definitions bool   // the node takes those of operators
	User        string // "": the credential is a token

	OTLP    string            // http://HOST:PORT or https://HOST:PORT, and a path before /v1/logs
	Traces  bool              // also /v1/traces
	Headers map[string]string // of each request
	Header  string            // for the credential; "": Authorization
	Prefix  string            // before the credential

	Credential *credential.Source // nil: none
	From       string             // FromNow or FromStart
	Late       time.Duration      // how long an event may wait before an alarm
}

// The default and the least value of Late.
const (
	defaultLate = 5 * time.Minute
	minLate     = 10 * time.Second
)

func (s *Stream) fields() map[string]fields.Field {
	s.From, s.Late = FromNow, defaultLate
	return map[string]fields.Field{
		"name": fields.Text(&s.Name), "syslog": fields.Text(&s.Syslog),
		"otlp": fields.Text(&s.OTLP), "traces": fields.Switch(&s.Traces),
		"headers": named(&s.Headers, checkHeader, func(out *string, _ string, value *yaml.Node) error { return fields.Text(out)(value) }),
		"header":  fields.Text(&s.Header), "prefix": fields.Text(&s.Prefix), "credential": fields.Credential(&s.Credential),
		"from": fields.OneOf(&s.From, FromNow, FromStart), "late": fields.Duration(&s.Late),
	}
}

func (s *Stream) name() string { return s.Name }

func (s *Stream) check() error {
	given := 0
	for _, address := range []string{s.Syslog, s.NATS, s.OTLP} {
		if address != "" {
			given++
		}
	}
	otlp := s.Header + s.Prefix
	u, err := s.URL()
	switch {
	case s.Late < minLate:
		return fmt.Errorf("late: %v is too short to tell a late receiver from a process that starts: write %v or more", s.Late, minLate)
	case given != 1:
		return errors.New("write syslog or otlp")
	case err != nil:
		return err
	case s.OTLP == "" && (otlp != "" || s.Traces || s.Headers != nil):
		return errors.New("traces, headers, header and prefix are of otlp: remove them")
	case s.Syslog != "" && s.Credential != nil:
		return errors.New("credential: syslog has none: remove it")
	case s.User != "" && s.Credential == nil:
		return errors.New("user: has no credential: write where the password is")
	case s.Credential == nil && otlp != "":
		return errors.New("header and prefix are for a credential: write one")
	case s.Credential != nil && u.Scheme != "tls" && u.Scheme != "https" && !credential.Loopback(u.Hostname()):
		return errors.New("the credential would be readable on the way: write tls:// or https://")
	}
	return header.Check(s.Header, s.Prefix)
}

// checkHeader checks the name of a header that is no secret.
func checkHeader(name string) error {
	if name == "" {
		return errors.New("a header has no name: write one")
	}
	return header.Check(name, "")
}

// URL returns the address of the receiver.
func (s Stream) URL() (*url.URL, error) {
	text := cmp.Or(s.Syslog, s.NATS, s.OTLP)
	kind, schemes := "syslog", []string{"tcp", "tls", "udp", "unix"}
	switch {
	case s.NATS != "":
		kind, schemes = "nats", []string{"nats", "tls"}
	case s.OTLP != "":
		kind, schemes = "otlp", []string{"https", "http"}
	}
	u, err := url.Parse(text)
	if err != nil || !slices.Contains(schemes, u.Scheme) || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%s: %q is no address: write %s://HOST:PORT", kind, text, schemes[0])
	}
	switch {
	case u.Scheme == "unix":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("%s: %q is no address: write unix:///dev/log", kind, text)
		}
	case u.Hostname() == "" || s.OTLP == "" && u.Path != "":
		return nil, fmt.Errorf("%s: %q is no address: write %s://HOST:PORT", kind, text, schemes[0])
	}
	return u, nil
}

// ports are the default ports by scheme: RFC 6587 and its registration, RFC 5425, RFC 5426, and the servers' own.
var ports = map[string]string{"tcp": "601", "tls": "6514", "udp": "514", "nats": "4222", "http": "4318", "https": "4318"}

// Address returns the network and the address to dial.
func (s Stream) Address() (network, address string) {
	u, err := s.URL()
	switch {
	case err != nil:
		return "", ""
	case u.Scheme == "unix":
		return "unixgram", u.Path
	}
	network = "tcp"
	if u.Scheme == "udp" {
		network = "udp"
	}
	port := ports[u.Scheme]
	if s.NATS != "" {
		port = ports["nats"]
	}
	return network, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
}
