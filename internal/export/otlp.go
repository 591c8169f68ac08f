package export

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// The severities of OpenTelemetry's log data model.
const (
	otlpInfo  = 9
	otlpWarn  = 13
	otlpError = 17
)

// otlp returns an event as a request of OTLP with one log record, in the form of OpenTelemetry's file exporter: a line of
// the protocol's JSON (opentelemetry.io/docs/specs/otel/protocol/file-exporter). A session is a trace, a call a span.
func otlp(e audit.Event, from Source) any {
	number, text := otlpInfo, "INFO"
	switch e.Verdict {
	case audit.Deny:
		number, text = otlpWarn, "WARN"
	case audit.Violation:
		number, text = otlpError, "ERROR"
	}
	attributes := []any{}
	for _, c := range columns {
		if value := c.of(e); value != "" && c.name != "time" {
			attributes = append(attributes, attribute("scopefs."+c.name, value))
		}
	}
	record := object{
		"timeUnixNano": nanos(e.Time), "observedTimeUnixNano": nanos(e.Time), "severityNumber": number, "severityText": text,
		"body": object{"stringValue": string(e.Raw)}, "attributes": attributes, "eventName": "scopefs." + e.Event,
	}
	if e.Session != "" {
		record["traceId"] = identity(16, e.Agent, e.Session)
	}
	if e.Session != "" && e.Call != "" {
		record["spanId"] = identity(8, e.Call)
	}
	return object{"resourceLogs": []any{object{
		"resource": object{"attributes": []any{
			attribute("service.name", "scopefs"), attribute("service.version", from.Version), attribute("host.name", from.Host),
		}},
		"scopeLogs": []any{object{"scope": object{"name": "scopefs"}, "logRecords": []any{record}}},
	}}}
}

func nanos(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func attribute(key, value string) object {
	return object{"key": key, "value": object{"stringValue": value}}
}

// identity returns n bytes that follow from words, in hexadecimal.
func identity(n int, words ...string) string {
	h := sha256.New()
	for _, word := range words {
		h.Write([]byte(word + "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil)[:n])
}
