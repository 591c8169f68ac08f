package daemon

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/audit/trace"
	"github.com/scopefs/scopefs/integration/harness"
)

// tracesd is a receiver of traces by OTLP/HTTP. It takes logs without a look.
type tracesd struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string][]*spans.Span // by name
}

func newTracesd(t *testing.T) *tracesd {
	d := &tracesd{spans: map[string][]*spans.Span{}}
	d.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := gzip.NewReader(r.Body)
		if !assert.NoError(t, err) {
			return
		}
		text, err := io.ReadAll(body)
		assert.NoError(t, err)
		if r.URL.Path != "/otlp/v1/traces" {
			return
		}
		assert.Equal(t, "acme", r.Header.Get("X-Tenant"))
		assert.Equal(t, "Bearer s3cret", r.Header.Get("Authorization"))
		var all spans.TracesData
		assert.NoError(t, proto.Unmarshal(text, &all)) // the form of ExportTraceServiceRequest
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, one := range all.ResourceSpans {
			assert.True(t, slices.ContainsFunc(one.Resource.Attributes, func(a *common.KeyValue) bool {
				return a.Key == "service.instance.id" && a.Value.GetStringValue() == "web-1"
			}))
			for _, in := range one.ScopeSpans {
				assert.Equal(t, "https://opentelemetry.io/schemas/1.41.0", in.SchemaUrl)
				for _, span := range in.Spans {
					d.spans[span.Name] = append(d.spans[span.Name], span)
				}
			}
		}
	}))
	t.Cleanup(d.Close)
	return d
}

// named returns a span of a trace; nil: there is none yet. Spans come in the order in which they end.
func (d *tracesd) named(name string, of trace.ID) *spans.Span {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, span := range d.spans[name] {
		if [16]byte(span.TraceId) == of {
			return span
		}
	}
	return nil
}

// TestTraces: a session is a trace with spans of its calls, denials and delegated calls; a client's trace goes on in it.
func TestTraces(t *testing.T) {
	const client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	t.Setenv("STREAM_SECRET", "s3cret")
	d := newTracesd(t)
	h := harness.LayOut(t, map[string]string{
		"a": "tools: ['*']\nmembers: [b]\nview: {paths: {secret: hide}}", "b": "view: {paths: {hidden: hide}}",
	})
	h.Scripted(fmt.Sprintf("fleet: {nats: 'nats://127.0.0.1:1', name: web-1}\nlog: {streams: [{name: otel, otlp: '%s/otlp', traces: true, headers: {X-Tenant: acme}, prefix: 'Bearer ', credential: {env: STREAM_SECRET}, from: start}]}\n", d.URL))
	h.Start()
	u := h.Connect("a")
	u.Call("bash", map[string]any{"command": "cat secret; true"})
	own := trace.Of(h.Last("a", "bash"))
	assert.Regexp(t, `scopefs_build_info\{version="[^"]+",node="web-1"\} 1`, h.Must("metrics"))
	r, err := u.Session.CallTool(h.Soon(), &mcp.CallToolParams{Meta: mcp.Meta{"traceparent": client}, Name: "delegate",
		Arguments: map[string]any{"member": "b", "task": "scopefs call stat path=hidden; true"}})
	require.NoError(t, err)
	require.False(t, r.IsError, harness.Said(r))
	handed := trace.Of(h.Last("a", "delegate"))
	assert.NoError(t, u.Session.Close())

	for _, c := range []struct {
		name   string
		trace  trace.ID
		parent string // "": none
	}{
		{"execute_tool bash", own.ID, fmt.Sprintf("%x", trace.OfSession("a", h.Last("a", "bash").Session).Span)},
		{"file lookup", own.ID, fmt.Sprintf("%x", own.Span)},
		{"execute_tool delegate", trace.Parse(client, "").ID, client[36:52]},
		{"execute_tool stat", handed.ID, fmt.Sprintf("%x", handed.Span)},
		{"invoke_agent b", handed.ID, fmt.Sprintf("%x", handed.Span)},
		{"invoke_agent a", own.ID, ""},
	} {
		h.Eventually(c.name, func() bool { return d.named(c.name, c.trace) != nil })
		span := d.named(c.name, c.trace)
		assert.Equal(t, c.parent, hex.EncodeToString(span.ParentSpanId), c.name)
		assert.LessOrEqual(t, span.StartTimeUnixNano, span.EndTimeUnixNano, c.name)
	}
	assert.Equal(t, fmt.Sprintf("%x", own.Span), hex.EncodeToString(d.named("execute_tool bash", own.ID).SpanId), "the daemon and the stream agree")
	assert.False(t, h.Recorded("", audit.Event{Event: audit.KindAudit, Outcome: "stream late"}))
}
