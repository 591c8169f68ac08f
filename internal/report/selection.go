package report

import (
	"context"
	"fmt"
	"iter"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/scopefs/scopefs/audit"
)

// Selection selects events of the log: those that fit all of its fields. The zero value selects all events.
type Selection struct {
	audit.Filter
	Tool string // only calls of this tool, and approvals of them
	Path string // only file operations on a path that matches this pattern
	Host string // only connections to a host that matches this pattern

	Beside []string // the directories of further logs, whose events are merged by time
}

// Check returns an error for a field that selects nothing.
func (s Selection) Check() error {
	for flag, pattern := range map[string]string{"--path": s.Path, "--host": s.Host} {
		if !doublestar.ValidatePattern(pattern) {
			return fmt.Errorf("%s %q: no pattern: want one such as 'src/**' or '*.example.com'", flag, pattern)
		}
	}
	if known := []audit.Verdict{"", audit.Allow, audit.Deny, audit.Violation}; !slices.Contains(known, s.Verdict) {
		return fmt.Errorf("--verdict %q: want allow, deny or violation", s.Verdict)
	}
	return nil
}

// events returns the selected events of the log in a directory.
func (s Selection) events(ctx context.Context, dir string, follow bool) iter.Seq2[audit.Event, error] {
	if s.Op == "" {
		s.Op = s.Tool
	}
	all := logs(ctx, append([]string{dir}, s.Beside...), s.Filter, follow)
	if s.Tool+s.Path+s.Host == "" {
		return all
	}
	return func(yield func(audit.Event, error) bool) {
		for e, err := range all {
			if (err != nil || s.fits(e)) && !yield(e, err) {
				return
			}
		}
	}
}

func (s Selection) fits(e audit.Event) bool {
	ofCall := e.Event == audit.KindCall || e.Event == audit.KindApproval
	return (s.Tool == "" || ofCall && e.Op == audit.Escape(s.Tool)) &&
		(s.Path == "" || e.Event == audit.KindFile && (matches(s.Path, e.Path) || matches(s.Path, e.Target))) &&
		(s.Host == "" || e.Event == audit.KindNetwork && matches(s.Host, hostOf(e)))
}

// matches reports whether text, as in the log, matches a pattern.
func matches(pattern, text string) bool {
	original, err := audit.Unescape(text)
	return err == nil && text != "" && doublestar.MatchUnvalidated(pattern, original)
}

// hostOf returns the host of a connection (host:port) or a request (METHOD URL).
func hostOf(e audit.Event) string {
	if _, address, ok := strings.Cut(e.Target, " "); ok {
		if u, err := url.Parse(address); err == nil {
			return u.Hostname()
		}
	}
	if host, _, err := net.SplitHostPort(e.Target); err == nil {
		return host
	}
	return e.Target
}

// Since returns the time of --since; "" is the zero time.
func Since(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q: want a duration such as 10m, or a time such as 2006-01-02T15:04:05Z", text)
}
