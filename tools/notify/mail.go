package notify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"time"

	"github.com/wneessen/go-mail"

	"github.com/scopefs/scopefs/internal/credential"
)

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

// mail sends a message by SMTP. smtps is TLS from the start; smtp wants STARTTLS,
// unless the server is on a loopback address.
func (c *sender) mail(ctx context.Context, u *url.URL, m message, secret credential.Secret) *failure {
	letter, err := c.letter(m)
	if err != nil {
		return &failure{why: "the message cannot be written"}
	}
	client, err := c.mailer(ctx, u, secret)
	if err != nil {
		return &failure{why: "the SMTP client cannot be made"}
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return refused(ctx, err)
	}
	defer func() { _ = client.CloseWithSMTPClient(session) }() // QUIT: the notification is delivered or not by then
	err = client.SendWithSMTPClient(session, letter)
	failed, ok := errors.AsType[*mail.SendError](err)
	switch {
	case err == nil || letter.IsDelivered():
		return nil
	case !ok:
		return &failure{why: reason(ctx, err), unknown: true}
	case failed.ErrorCode() == 0: // no reply, or none of SMTP
		lost := failed.Reason == mail.ErrSMTPDataClose
		return &failure{why: failed.Reason.String() + ": " + reason(ctx, err), again: !lost, unknown: lost}
	}
	return &failure{why: fmt.Sprintf("%s: reply %d", failed.Reason, failed.ErrorCode()), again: failed.IsTemp()}
}

// letter returns the e-mail of a message. A repeated one has the same id.
func (c *sender) letter(m message) (*mail.Msg, error) {
	letter := mail.NewMsg()
	if err := letter.From(c.From); err != nil {
		return nil, err
	}
	if err := letter.To(c.To...); err != nil {
		return nil, err
	}
	letter.Subject(m.heading())
	letter.SetDate()
	letter.SetMessageIDWithValue(m.id + "@scopefs.invalid")
	letter.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no automatic answers
	letter.SetBodyString(mail.TypeTextPlain, m.content)
	return letter, nil
}

func (c *sender) mailer(ctx context.Context, u *url.URL, secret credential.Secret) (*mail.Client, error) {
	policy := mail.TLSMandatory
	if u.Scheme == "smtps" || loopback(u.Hostname()) {
		policy = mail.TLSOpportunistic
	}
	end, _ := ctx.Deadline()
	options := []mail.Option{
		mail.WithTLSPolicy(policy), mail.WithTimeout(max(time.Until(end), time.Millisecond)), mail.WithoutNoop(),
		mail.WithDialContextFunc(func(context.Context, string, string) (net.Conn, error) { return c.connect(ctx, u) }),
	}
	if c.User != "" {
		options = append(options, mail.WithUsername(c.User), mail.WithPassword(secret.Reveal()),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthPlain, mail.SMTPAuthLogin, mail.SMTPAuthCramMD5))
	}
	return mail.NewClient(u.Hostname(), options...)
}

// refused is the failure of a session that did not reach the notification. A reply
// of the server is told by its code alone: its text may repeat the credential.
func refused(ctx context.Context, err error) *failure {
	if reply, ok := errors.AsType[*textproto.Error](err); ok {
		return &failure{why: fmt.Sprintf("greeting, STARTTLS or login: reply %d", reply.Code), again: reply.Code/100 == 4}
	}
	return &failure{why: "greeting, STARTTLS or login: " + reason(ctx, err), again: transient(err)}
}
