package receivers

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/export"
	"github.com/scopefs/scopefs/internal/credential"
)

// OTLP sends events as log records by OTLP/HTTP: opentelemetry.io/docs/specs/otlp.
type OTLP struct {
	URL     string // of the logs
	Client  *http.Client
	Headers map[string]string
	Header  string // for the secret; "": Authorization
	Prefix  string // before the secret
	Secret  func(context.Context) (credential.Secret, error)
	Source  export.Source
	Refused func(text string) // says what the receiver will not take
}

// maxAnswer limits a response, in bytes.
const maxAnswer = 64 << 10

// errTooLarge is the error of a request that the receiver does not read.
var errTooLarge = errors.New("the receiver takes no request of this size")

// Send sends events in one request, or in smaller ones if the receiver wants that.
func (o *OTLP) Send(ctx context.Context, events []audit.Event) error {
	err := o.post(ctx, events)
	if half := len(events) / 2; half > 0 && errors.Is(err, errTooLarge) {
		if err = o.Send(ctx, events[:half]); err == nil {
			err = o.Send(ctx, events[half:])
		}
	}
	return err
}

func (o *OTLP) post(ctx context.Context, events []audit.Event) error {
	request, err := o.request(ctx, events)
	if err != nil {
		return err
	}
	response, err := o.Client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%s: %w", response.Status, errTooLarge)
	case response.StatusCode/100 != 2:
		return fmt.Errorf("%s answers %s", o.URL, response.Status)
	}
	part := plogotlp.NewExportResponse()
	if part.UnmarshalProto(answer) != nil { // a receiver of 2xx has taken them, whatever it says
		return nil
	}
	if refused := part.PartialSuccess(); refused.RejectedLogRecords() > 0 {
		o.Refused(fmt.Sprintf("the receiver refused %d of the events %d to %d: %.100q",
			refused.RejectedLogRecords(), events[0].Seq, events[len(events)-1].Seq, refused.ErrorMessage()))
	}
	return nil
}

func (o *OTLP) request(ctx context.Context, events []audit.Event) (*http.Request, error) {
	text, err := (&plog.ProtoMarshaler{}).MarshalLogs(export.Logs(events, o.Source))
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	pack := gzip.NewWriter(&body)
	_, err = pack.Write(text)
	if err = errors.Join(err, pack.Close()); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.URL, &body)
	if err != nil {
		return nil, err
	}
	for name, value := range o.Headers {
		r.Header.Set(name, value)
	}
	if o.Secret != nil {
		secret, err := o.Secret(ctx)
		if err != nil {
			return nil, fmt.Errorf("credential: %w", err)
		}
		r.Header.Set(cmp.Or(o.Header, "Authorization"), o.Prefix+secret.Reveal())
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	r.Header.Set("Content-Encoding", "gzip")
	return r, nil
}

// Close closes idle connections.
func (o *OTLP) Close() error {
	o.Client.CloseIdleConnections()
	return nil
}
