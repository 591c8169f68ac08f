package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/tree"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/receivers"
	"github.com/scopefs/scopefs/internal/anchor"
	"github.com/scopefs/scopefs/internal/streams"
)

// Anchor sends a head of the log to a receiver of syslog, as one message. The receiver has it when it would have the events of
// a stream: see [receivers.Syslog.Send].
func Anchor(ctx context.Context, r anchor.Request) error {
	if r.Syslog == "" {
		return errors.New("not an anchor of this program")
	}
	to := r.Receiver()
	u, err := to.URL()
	if err != nil {
		return err
	}
	if u.Scheme == "unix" {
		real, err := filepath.EvalSymlinks(u.Path)
		if err != nil {
			return err
		}
		if err := anchor.Outside(real, r.Private); err != nil {
			return fmt.Errorf("%s: %w", u.Path, err)
		}
	}
	s := receivers.Syslog{
		Dial: func(ctx context.Context) (net.Conn, error) { return streams.Dial(ctx, to) }, TLS: secured(u), Host: r.Host,
	}
	defer s.Close()
	text := fmt.Sprintf("head of %d lines of %s: %s", r.Size, r.Origin, tree.AsLine(r.Head))
	if err := s.Send(ctx, []audit.Event{{Time: time.Now(), Event: "head", Raw: []byte(text)}}); err != nil {
		return fmt.Errorf("%s: %w", r.Syslog, err)
	}
	return nil
}
