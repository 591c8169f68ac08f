package pages

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
)

// keptFor is how long the samples of charts are kept.
const keptFor = time.Hour

// sample is what the daemon had counted at a time.
type sample struct {
	at     time.Time
	totals api.Totals
	used   float64 // of the fullest disk, 0 to 1
}

// keep adds a sample, at most one in ten seconds. The caller holds mu.
func (l *live) keep(top api.Top) {
	if n := len(l.samples); n > 0 && top.Time.Sub(l.samples[n-1].at) < idleEvery-time.Second {
		return
	}
	s := sample{at: top.Time, totals: top.Totals}
	for _, d := range top.Disks {
		if d.Size > 0 {
			s.used = max(s.used, 1-float64(d.Free)/float64(d.Size))
		}
	}
	l.samples = append(l.samples, s)
	for len(l.samples) > 0 && top.Time.Sub(l.samples[0].at) > keptFor {
		l.samples = l.samples[1:]
	}
}

// A curve is the values of a chart, with the times between which each holds.
type curve struct {
	Name, Unit string
	Bad        bool
	at         []time.Time
	values     []float64
}

// curves returns the charts of the samples. A daemon that started anew counts from zero.
func curves(samples []sample) []curve {
	calls, denials := curve{Name: "Calls", Unit: "per minute"}, curve{Name: "Denials", Unit: "per minute", Bad: true}
	took, disk := curve{Name: "Time of a call", Unit: "ms, mean"}, curve{Name: "Disk", Unit: "% used"}
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		minutes := b.at.Sub(a.at).Minutes()
		if minutes <= 0 || b.totals.Events < a.totals.Events {
			continue
		}
		add := func(c *curve, v float64) { c.at, c.values = append(c.at, b.at), append(c.values, v) }
		add(&calls, float64(b.totals.Calls-a.totals.Calls)/minutes)
		add(&denials, float64(b.totals.Denials-a.totals.Denials)/minutes)
		add(&disk, 100*b.used)
		if n := b.totals.Ended - a.totals.Ended; n > 0 {
			add(&took, 1000*(b.totals.Took-a.totals.Took)/float64(n))
		}
	}
	return []curve{calls, denials, took, disk}
}

// Most returns the largest value.
func (c curve) Most() (most float64) {
	for _, v := range c.values {
		most = max(most, v)
	}
	return most
}

// Last returns the newest value in words.
func (c curve) Last() string {
	if len(c.values) == 0 {
		return "none yet"
	}
	return fmt.Sprintf("%.4g %s", c.values[len(c.values)-1], c.Unit)
}

// The size of a chart, in units of its view box.
const chartWide, chartHigh, chartLeft = 600, 140, 48

// chart draws a curve over the last hour. It writes numbers and constants alone.
func chart(c curve) template.HTML {
	var b strings.Builder
	top := max(c.Most(), 1)
	fmt.Fprintf(&b, `<svg class="chart" viewBox="0 0 %d %d" role="img" aria-label="%s"><title>%s</title>`, chartWide, chartHigh+20,
		template.HTMLEscapeString(c.Name), template.HTMLEscapeString(c.Name+": "+c.Last()))
	for i := range 3 {
		y := 10 + (chartHigh-10)*i/2
		fmt.Fprintf(&b, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/><text x="%d" y="%d" text-anchor="end">%.3g</text>`,
			chartLeft, y, chartWide, y, chartLeft-5, y+4, top*float64(2-i)/2)
	}
	for i := range 4 {
		fmt.Fprintf(&b, `<text x="%d" y="%d">−%d min</text>`, chartLeft+(chartWide-chartLeft)*i/4, chartHigh+15, 60-15*i)
	}
	if len(c.values) > 0 {
		now := c.at[len(c.at)-1]
		class := ""
		if c.Bad {
			class = ` class="bad"`
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="currentColor" stroke-width="2"%s points="`, class)
		for i, v := range c.values {
			x := float64(chartWide) - float64(chartWide-chartLeft)*now.Sub(c.at[i]).Seconds()/keptFor.Seconds()
			fmt.Fprintf(&b, "%.1f,%.1f ", x, 10+float64(chartHigh-10)*(1-v/top))
		}
		b.WriteString(`"/>`)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// charts is the page of the last hour.
func (s *Site) charts(ctx context.Context, _ *http.Request) (page, error) {
	if _, _, err := s.live.top(ctx); err != nil {
		return page{}, err
	}
	s.live.mu.Lock()
	samples := s.live.samples
	all := curves(samples)
	s.live.mu.Unlock()
	data := struct {
		Curves []curve
		Since  time.Time
	}{Curves: all}
	if len(samples) > 0 {
		data.Since = samples[0].at
	}
	return page{Name: "charts", Title: "The last hour", Follow: "samples", Data: data}, nil
}
