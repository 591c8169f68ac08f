package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/egress"
)

// A Kind says how a channel's server takes a notification.
type Kind string

// The kinds of channels.
const (
	Slack   Kind = "slack"   // an incoming webhook of Slack, or of a program that takes its format
	Discord Kind = "discord" // a webhook of Discord
	Ntfy    Kind = "ntfy"    // a topic of an ntfy server
	Matrix  Kind = "matrix"  // a room of a Matrix server
	Email   Kind = "email"   // an SMTP server
	Webhook Kind = "webhook" // a POST of a JSON object
)

// A Channel is a place that agents may send notifications to.
type Channel struct {
	Kind       Kind
	URL        *url.URL                   // of the server; nil: the credential is the URL
	Room       string                     // of Matrix: !ID:SERVER
	From       string                     // of an e-mail
	To         []string                   // of an e-mail
	User       string                     // at the SMTP server; "": no login
	Credential *credential.Source         // a URL, a token or a password; nil: none
	Header     string                     // of a webhook, for the credential; "" is Authorization
	Prefix     string                     // of a webhook, before the credential; such as "Bearer "
	Addresses  []netip.Prefix             // that are allowed though they are not public
	Lookup     egress.Dialer              // see Addresses; its Lookup is for tests
	Timeout    time.Duration              // of a delivery with all its attempts; 0 is 30 s
	Rate       int                        // notifications of an agent in a minute; 0 is 10
	Agents     func(scope.Principal) bool // whether an agent may use it; nil: every one
	Mailer     Mailer                     // sends the e-mails; nil: it cannot
}

// Check reports what is wrong with a channel, as "key: what: remedy".
func (c Channel) Check() error {
	if c.Credential != nil {
		if err := c.Credential.Check(); err != nil {
			return fmt.Errorf("credential: %w", err)
		}
	}
	switch c.Kind {
	case Slack, Discord:
		if c.URL != nil || c.Credential == nil {
			return errors.New("url: it holds a secret: write a credential whose text is the URL")
		}
	case Webhook:
		if c.URL == nil && c.Credential == nil {
			return errors.New("url: there is none: write one, or a credential whose text is the URL")
		}
	case Ntfy, Matrix, Email:
		if c.URL == nil {
			return errors.New("url: there is none: write one")
		}
	default:
		return fmt.Errorf("kind: %q is unknown: want slack, discord, ntfy, matrix, email or webhook", c.Kind)
	}
	if c.URL != nil {
		if err := c.checkURL(c.URL); err != nil {
			return fmt.Errorf("url: %w", err)
		}
	}
	if c.Kind == Matrix && (c.Credential == nil || !strings.HasPrefix(c.Room, "!")) {
		return errors.New("room: wants the id of a room (!ID:SERVER) and a credential: write both")
	}
	if c.Kind == Email {
		return c.checkMail()
	}
	return nil
}

// checkURL reports what is wrong with a URL. No error contains it: it may be a secret.
func (c Channel) checkURL(u *url.URL) error {
	plain, safe := "http", "https"
	if c.Kind == Email {
		plain, safe = "smtp", "smtps"
	}
	switch {
	case u.Hostname() == "" || u.Scheme != plain && u.Scheme != safe:
		return fmt.Errorf("is no address: write %s://HOST", safe)
	case u.User != nil:
		return errors.New("has a user: write a credential")
	case u.Fragment != "":
		return errors.New("has a fragment: remove it")
	case c.Kind != Email && u.Scheme == plain && c.Credential != nil && !credential.Loopback(u.Hostname()):
		return errors.New("is http, and the credential would be readable on the way: write https")
	case c.Kind == Ntfy && topic(u) == "":
		return errors.New("names no topic: write https://HOST/TOPIC")
	}
	return nil
}

func (c Channel) checkMail() error {
	if len(c.To) == 0 {
		return errors.New("to: there is no recipient: write one")
	}
	for _, address := range append(slices.Clone(c.To), c.From) {
		if a, err := mail.ParseAddress(address); err != nil || a.Name != "" {
			return fmt.Errorf("from, to: %q is no address: write NAME@HOST", address)
		}
	}
	if (c.User == "") != (c.Credential == nil) {
		return errors.New("user: a login wants a user and a credential: write both or none")
	}
	return nil
}

// Dial connects to the server of the channel and, where it speaks TLS from the
// start, checks its certificate. It sends no notification and no credential.
func (c Channel) Dial(ctx context.Context) error {
	secret, err := c.secret(ctx)
	if err != nil {
		return err
	}
	u, err := c.target(secret)
	if err != nil {
		return err
	}
	conn, err := c.connect(ctx, u)
	if err != nil {
		return errors.New(Reason(ctx, err))
	}
	return conn.Close()
}

// secret reads the credential. Without one it returns the zero Secret.
func (c Channel) secret(ctx context.Context) (credential.Secret, error) {
	if c.Credential == nil {
		return credential.Secret{}, nil
	}
	return c.Credential.Read(ctx)
}

// target returns the URL of the channel. No error contains it.
func (c Channel) target(secret credential.Secret) (*url.URL, error) {
	if c.URL != nil {
		return c.URL, nil
	}
	u, err := url.Parse(secret.Reveal())
	if err != nil {
		return nil, errors.New("the credential is no URL")
	}
	if err := c.checkURL(u); err != nil {
		return nil, fmt.Errorf("the URL in the credential %w", err)
	}
	return u, nil
}

// connect opens a connection for a URL by the egress rules, with TLS for https and
// smtps. It is closed when ctx ends.
func (c Channel) connect(ctx context.Context, u *url.URL) (net.Conn, error) {
	conn, err := c.Dialer().DialContext(ctx, "tcp", Address(u))
	if err != nil {
		return nil, err
	}
	return Secure(ctx, u, conn)
}

// Address returns the host and port of a URL.
func Address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "smtp": "587", "smtps": "465"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// Secure bounds what is read of a connection for a URL, and adds TLS for https and smtps. The
// connection is closed when ctx ends.
func Secure(ctx context.Context, u *url.URL, conn net.Conn) (net.Conn, error) {
	conn = newReplies(ctx, conn)
	if u.Scheme == "http" || u.Scheme == "smtp" {
		return conn, nil
	}
	safe := tls.Client(conn, &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12})
	if err := safe.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return safe, nil
}

// Dialer returns what connects to the channel's server.
func (c Channel) Dialer() *egress.Dialer {
	dialer := c.Lookup
	dialer.Pinned = c.Addresses
	return &dialer
}
