package notify

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
)

// A Mailer sends e-mails. It makes one attempt; nil says that the server has taken the letter. The
// error is for the log: the e-mail was not sent, or its fate is unknown.
type Mailer func(context.Context, Letter) (*Failure, error)

// A Letter is an e-mail on its way, with the server that takes it.
type Letter struct {
	Channel          string
	URL              *url.URL
	User, Password   string // at the server; "": no login
	ID               string // the same for each attempt
	From             string
	To               []string
	Subject, Content string
	Timeout          time.Duration // of the attempt
}

// mail sends a message by SMTP.
func (c *sender) mail(ctx context.Context, u *url.URL, m message, secret credential.Secret) *Failure {
	end, ok := ctx.Deadline()
	if !ok {
		end = time.Now().Add(cmp.Or(c.Timeout, defaultTime))
	}
	err := errors.New("there is no mailer")
	var f *Failure
	if c.Mailer != nil {
		f, err = c.Mailer(ctx, Letter{
			Channel: c.name, URL: u, User: c.User, Password: secret.Reveal(), ID: m.id, From: c.From, To: c.To,
			Subject: m.heading(), Content: m.content,
			Timeout: time.Until(end),
		})
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return &Failure{Why: "no answer in time", Unknown: true}
	case err != nil:
		return &Failure{Why: err.Error(), Unknown: true}
	}
	return f
}

// maxReplies bounds what an SMTP server sends on one connection, in bytes, with its
// certificates.
const maxReplies = 256 << 10

// A replies is a connection that ends after maxReplies, and with its context: the
// client reads a line to its end, and extends its deadline with each command.
type replies struct {
	net.Conn
	left int
}

func newReplies(ctx context.Context, conn net.Conn) net.Conn {
	context.AfterFunc(ctx, func() { conn.Close() })
	return &replies{conn, maxReplies}
}

func (r *replies) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := r.Conn.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}
