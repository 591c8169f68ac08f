package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/credential"
)

// Options configure a Sender.
type Options struct {
	URL     string // of the traces
	Client  *http.Client
	Headers map[string]string
	Header  string                                           // for the secret; "": Authorization
	Prefix  string                                           // before the secret
	Secret  func(context.Context) (credential.Secret, error) // nil: none
	Source  Source
	Refused func(text string) // says what the receiver will not take
}

// Sender sends spans by OTLP/HTTP.
type Sender struct {
	opt      Options
	exporter *otlptrace.Exporter
	answer   int // the status of the last response; 0: none

	spans   *Spans
	seen    uint64             // the number of the last event that spans has
	waiting []sdk.ReadOnlySpan // of the events, and not with the receiver
}

// maxSpans limits the spans of a request. Their events are some 700 bytes each.
const maxSpans = 1000

// New returns a Sender. The caller must close it.
func New(opt Options) (*Sender, error) {
	s := &Sender{opt: opt, spans: NewSpans(opt.Source)}
	client := *opt.Client
	client.Transport = s
	var err error
	s.exporter, err = otlptrace.New(context.Background(), otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(opt.URL), otlptracehttp.WithHeaders(opt.Headers), otlptracehttp.WithHTTPClient(&client),
		// the stream does that
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: false}),
	))
	return s, err
}

// RoundTrip adds the secret to a request of the exporter.
func (s *Sender) RoundTrip(r *http.Request) (*http.Response, error) {
	s.answer = 0
	if s.opt.Secret != nil {
		secret, err := s.opt.Secret(r.Context())
		if err != nil {
			return nil, fmt.Errorf("credential: %w", err)
		}
		r = r.Clone(r.Context())
		r.Header.Set(cmp.Or(s.opt.Header, "Authorization"), s.opt.Prefix+secret.Reveal())
	}
	response, err := s.opt.Client.Transport.RoundTrip(r)
	if err == nil {
		s.answer = response.StatusCode
	}
	return response, err
}

// Send sends the spans that end with events. After an error it may be called with the same events.
func (s *Sender) Send(ctx context.Context, events []audit.Event) error {
	for _, e := range events {
		if e.Seq > s.seen {
			s.waiting, s.seen = append(s.waiting, s.spans.Add(e)...), e.Seq
		}
	}
	for size := maxSpans; len(s.waiting) > 0; {
		size = min(size, len(s.waiting))
		err := s.exporter.ExportSpans(ctx, s.waiting[:size])
		switch {
		case err != nil && s.answer == http.StatusRequestEntityTooLarge && size > 1:
			size /= 2
			continue
		case err != nil && s.answer/100 == 2: // a partial success, which has an error as its only sign
			s.opt.Refused(fmt.Sprintf("the receiver of traces: %.200s", err))
		case err != nil:
			return err
		}
		s.waiting = s.waiting[size:]
	}
	s.waiting = nil
	return nil
}

// Close closes idle connections.
func (s *Sender) Close() error {
	s.opt.Client.CloseIdleConnections()
	return errors.Join(s.exporter.Shutdown(context.Background()))
}
