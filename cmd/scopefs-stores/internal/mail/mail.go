// Package mail has the driver of e-mail channels: it hands a letter to an SMTP server. Package
// tools/notify has the tool, and says what a channel is.
package mail

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"time"

	"github.com/wneessen/go-mail"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/tools/notify"
)

// A Dial connects to the server of a channel.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Send makes one attempt to send a letter by SMTP; nil says that it was delivered. smtps is TLS from
// the start; smtp wants STARTTLS, unless the server is on a loopback address.
func Send(ctx context.Context, l notify.Letter, dial Dial) *notify.Failure {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	text, err := message(l)
	if err != nil {
		return &notify.Failure{Why: "the message cannot be written"}
	}
	client, err := mailer(ctx, l, dial)
	if err != nil {
		return &notify.Failure{Why: "the SMTP client cannot be made"}
	}
	session, err := client.DialToSMTPClientWithContext(ctx)
	if err != nil {
		return refused(ctx, err)
	}
	defer func() { _ = client.CloseWithSMTPClient(session) }() // QUIT: the notification is delivered or not by then
	err = client.SendWithSMTPClient(session, text)
	failed, ok := errors.AsType[*mail.SendError](err)
	switch {
	case err == nil || text.IsDelivered():
		return nil
	case !ok:
		return &notify.Failure{Why: notify.Reason(ctx, err), Unknown: true}
	case failed.ErrorCode() == 0: // no reply, or none of SMTP
		lost := failed.Reason == mail.ErrSMTPDataClose
		return &notify.Failure{Why: failed.Reason.String() + ": " + notify.Reason(ctx, err), Again: !lost, Unknown: lost}
	}
	return &notify.Failure{Why: fmt.Sprintf("%s: reply %d", failed.Reason, failed.ErrorCode()), Again: failed.IsTemp()}
}

// message returns the e-mail of a letter. A repeated one has the same id.
func message(l notify.Letter) (*mail.Msg, error) {
	m := mail.NewMsg()
	if err := m.From(l.From); err != nil {
		return nil, err
	}
	if err := m.To(l.To...); err != nil {
		return nil, err
	}
	m.Subject(l.Subject)
	m.SetDate()
	m.SetMessageIDWithValue(l.ID + "@scopefs.invalid")
	m.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no automatic answers
	m.SetBodyString(mail.TypeTextPlain, l.Content)
	return m, nil
}

func mailer(ctx context.Context, l notify.Letter, dial Dial) (*mail.Client, error) {
	policy := mail.TLSMandatory
	if l.URL.Scheme == "smtps" || credential.Loopback(l.URL.Hostname()) {
		policy = mail.TLSOpportunistic
	}
	end, _ := ctx.Deadline()
	options := []mail.Option{
		mail.WithTLSPolicy(policy), mail.WithTimeout(max(time.Until(end), time.Millisecond)), mail.WithoutNoop(),
		mail.WithDialContextFunc(func(context.Context, string, string) (net.Conn, error) {
			conn, err := dial(ctx, "tcp", notify.Address(l.URL))
			if err != nil {
				return nil, err
			}
			return notify.Secure(ctx, l.URL, conn)
		}),
	}
	if l.User != "" {
		options = append(options, mail.WithUsername(l.User), mail.WithPassword(l.Password),
			mail.WithOpportunisticSMTPAuth(mail.SMTPAuthSCRAMSHA256, mail.SMTPAuthPlain, mail.SMTPAuthLogin, mail.SMTPAuthCramMD5))
	}
	return mail.NewClient(l.URL.Hostname(), options...)
}

// refused is the failure of a session that did not reach the notification. A reply
// of the server is told by its code alone: its text may repeat the credential.
func refused(ctx context.Context, err error) *notify.Failure {
	if reply, ok := errors.AsType[*textproto.Error](err); ok {
		return &notify.Failure{Why: fmt.Sprintf("greeting, STARTTLS or login: reply %d", reply.Code), Again: reply.Code/100 == 4}
	}
	return &notify.Failure{Why: "greeting, STARTTLS or login: " + notify.Reason(ctx, err), Again: notify.Transient(err)}
}
