package export

import (
	"io"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
)

// Logs returns events as log records of OpenTelemetry. A session is a trace, a call a span.
func Logs(events []audit.Event, from Source) plog.Logs {
	all := plog.NewLogs()
	resource := all.ResourceLogs().AppendEmpty()
	attributes := resource.Resource().Attributes()
	attributes.PutStr("service.name", "scopefs")
	attributes.PutStr("service.version", from.Version)
	attributes.PutStr("host.name", from.Host)
	if from.Node != "" {
		attributes.PutStr("service.instance.id", from.Node)
	}
	scope := resource.ScopeLogs().AppendEmpty()
	scope.Scope().SetName("scopefs")
	records := scope.LogRecords()
	records.EnsureCapacity(len(events))
	for _, e := range events {
		fill(records.AppendEmpty(), e)
	}
	return all
}

func fill(r plog.LogRecord, e audit.Event) {
	r.SetTimestamp(pcommon.NewTimestampFromTime(e.Time))
	r.SetObservedTimestamp(pcommon.NewTimestampFromTime(e.Time))
	severity := plog.SeverityNumberInfo
	switch e.Verdict {
	case audit.Deny:
		severity = plog.SeverityNumberWarn
	case audit.Violation:
		severity = plog.SeverityNumberError
	}
	r.SetSeverityNumber(severity)
	r.SetSeverityText(map[plog.SeverityNumber]string{
		plog.SeverityNumberInfo: "INFO", plog.SeverityNumberWarn: "WARN", plog.SeverityNumberError: "ERROR",
	}[severity])
	r.SetEventName("scopefs." + e.Event)
	r.Body().SetStr(string(e.Raw))
	for _, c := range columns {
		if value := c.of(e); value != "" && c.name != "time" {
			r.Attributes().PutStr("scopefs."+c.name, value)
		}
	}
	if in := trace.Of(e); e.Session != "" {
		r.SetTraceID(pcommon.TraceID(in.ID))
		r.SetSpanID(pcommon.SpanID(in.Span))
	}
}

// otlpLines writes each event as a line of OTLP's JSON with one log record, as OpenTelemetry's file exporter does:
// opentelemetry.io/docs/specs/otel/protocol/file-exporter.
type otlpLines struct {
	out  io.Writer
	from Source
	json plog.JSONMarshaler
}

func (w *otlpLines) Write(e audit.Event) error {
	text, err := w.json.MarshalLogs(Logs([]audit.Event{e}, w.from))
	if err == nil {
		_, err = w.out.Write(append(text, '\n'))
	}
	return err
}

func (w *otlpLines) Flush() error { return nil }
