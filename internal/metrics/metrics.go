// Package metrics counts what a daemon records, and writes it in the text format of Prometheus
// (prometheus.io/docs/instrumenting/exposition_formats). Of the labels an agent chooses the op of a call that names no tool.
package metrics

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
)

// maxSeries limits the series of the events of one agent. Later ones count as op other.
const maxSeries = 500

// bounds are the upper bounds of the durations of a histogram, in seconds.
var bounds = [...]float64{.001, .005, .025, .1, .5, 2.5, 10, 60, 600}

// Set counts events. The zero value is empty. Its methods are safe for concurrent use.
type Set struct {
	mu      sync.Mutex
	events  map[eventKey]int64
	series  map[string]int // of events, by agent
	took    map[tookKey]*histogram
	traffic map[trafficKey]int64
	totals  Totals
}

// Totals are the sums of all agents. They grow only.
type Totals struct {
	Events  int64   `json:"events"`
	Calls   int64   `json:"calls"` // that ended, or were refused
	Denials int64   `json:"denials"`
	Ended   int64   `json:"calls_ended"`
	Took    float64 `json:"calls_seconds"` // how long those together took
}

// Totals returns the sums.
func (s *Set) Totals() Totals {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals
}

// add counts an event.
func (t *Totals) add(e audit.Event) {
	t.Events++
	if e.Verdict == audit.Deny || e.Verdict == audit.Violation {
		t.Denials += 1 + e.Unrecorded
	}
	if e.Event == audit.KindCall && e.Outcome != audit.OutcomeBegin {
		t.Calls++
		if e.DurationUS != 0 {
			t.Ended++
			t.Took += (time.Duration(e.DurationUS) * time.Microsecond).Seconds()
		}
	}
}

type (
	eventKey   struct{ agent, event, op, verdict string }
	tookKey    struct{ agent, event string }
	trafficKey struct{ agent, direction string }
)

type histogram struct {
	counts [len(bounds) + 1]int64 // the last is of longer ones
	sum    time.Duration
}

// Count counts an event that is in the log.
func (s *Set) Count(e audit.Event) {
	key := eventKey{e.Agent, e.Event, e.Op, string(e.Verdict)}
	ended := e.DurationUS != 0 && (e.Event == audit.KindCall || e.Event == audit.KindNetwork)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals.add(e)
	if s.events == nil {
		s.events, s.series, s.took, s.traffic = map[eventKey]int64{}, map[string]int{}, map[tookKey]*histogram{}, map[trafficKey]int64{}
	}
	if _, known := s.events[key]; !known {
		if s.series[e.Agent] >= maxSeries {
			key.op = "other"
		} else {
			s.series[e.Agent]++
		}
	}
	s.events[key] += 1 + e.Unrecorded
	if e.Event == audit.KindNetwork && e.Bytes+e.Sent > 0 {
		s.traffic[trafficKey{key.agent, "received"}] += e.Bytes
		s.traffic[trafficKey{key.agent, "sent"}] += e.Sent
	}
	if !ended {
		return
	}
	h := s.took[tookKey{key.agent, e.Event}]
	if h == nil {
		h = &histogram{}
		s.took[tookKey{key.agent, e.Event}] = h
	}
	h.add(time.Duration(e.DurationUS) * time.Microsecond)
}

func (h *histogram) add(d time.Duration) {
	i, _ := slices.BinarySearch(bounds[:], d.Seconds())
	h.counts[i]++
	h.sum += d
}

// Write writes what was counted.
func (s *Set) Write(w *Writer) {
	s.mu.Lock()
	events, traffic := maps.Clone(s.events), maps.Clone(s.traffic)
	took := map[tookKey]histogram{}
	for key, h := range s.took {
		took[key] = *h
	}
	s.mu.Unlock()
	w.Metric("scopefs_events_total", "counter", "Events in the log, with equal denials that it left out.")
	for _, k := range sorted(events, func(a, b eventKey) int {
		return cmp.Or(cmp.Compare(a.agent, b.agent), cmp.Compare(a.event, b.event), cmp.Compare(a.op, b.op), cmp.Compare(a.verdict, b.verdict))
	}) {
		w.Value(float64(events[k]), "agent", k.agent, "event", k.event, "op", k.op, "verdict", k.verdict)
	}
	w.Metric("scopefs_duration_seconds", "histogram", "How long calls, connections and requests took.")
	for _, k := range sorted(took, func(a, b tookKey) int { return cmp.Or(cmp.Compare(a.agent, b.agent), cmp.Compare(a.event, b.event)) }) {
		w.histogram(took[k], "agent", k.agent, "event", k.event)
	}
	w.Metric("scopefs_network_bytes_total", "counter", "Bytes of connections that have ended.")
	for _, k := range sorted(traffic, func(a, b trafficKey) int {
		return cmp.Or(cmp.Compare(a.agent, b.agent), cmp.Compare(a.direction, b.direction))
	}) {
		w.Value(float64(traffic[k]), "agent", k.agent, "direction", k.direction)
	}
}

func sorted[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	return slices.SortedFunc(maps.Keys(m), compare)
}

// Writer writes metrics, until an error.
type Writer struct {
	w    io.Writer
	name string
	err  error
}

// NewWriter returns a writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Err returns the first error.
func (w *Writer) Err() error { return w.err }

func (w *Writer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

// Metric begins a metric: a counter, a gauge or a histogram.
func (w *Writer) Metric(name, kind, help string) {
	w.name = name
	w.printf("# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// Value writes a value of the metric, with labels in pairs.
func (w *Writer) Value(value float64, labels ...string) {
	w.printf("%s%s %s\n", w.name, labelled(labels), strconv.FormatFloat(value, 'g', -1, 64))
}

// Gauge writes a metric of one value.
func (w *Writer) Gauge(name, help string, value float64, labels ...string) {
	w.Metric(name, "gauge", help)
	w.Value(value, labels...)
}

func (w *Writer) histogram(h histogram, labels ...string) {
	total := int64(0)
	for i, n := range h.counts {
		total += n
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		w.printf("%s_bucket%s %d\n", w.name, labelled(append(slices.Clone(labels), "le", bound)), total)
	}
	w.printf("%s_sum%s %g\n%s_count%s %d\n", w.name, labelled(labels), h.sum.Seconds(), w.name, labelled(labels), total)
}

var escaper = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// labelled returns labels in their form. A label without a value is left out: that is the same.
func labelled(pairs []string) string {
	var all []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, pairs[i]+`="`+escaper.Replace(strings.ToValidUTF8(pairs[i+1], "�"))+`"`)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "{" + strings.Join(all, ",") + "}"
}
