package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// The bounds of a write. writeArgs bounds the points.
const (
	maxLines  = 1 << 20 // bytes of the line protocol
	maxTags   = 20
	maxFields = 50
	maxText   = 16 << 10       // bytes of a field
	maxFuture = 24 * time.Hour // how far a point may be ahead of the daemon's clock
)

// point is a point of a time series.
type point struct {
	Measurement tools.Resource    `json:"measurement"`
	Tags        map[string]string `json:"tags,omitempty" jsonschema:"indexed text: at most 20, of 256 bytes each"`
	Fields      map[string]any    `json:"fields" jsonschema:"numbers, texts and booleans: at most 50; a number is a 64-bit float"`
	Time        string            `json:"time,omitempty" limit:"len=64" jsonschema:"RFC 3339; default now"`
}

// encode returns the lines of points. A point that no server takes as it is makes
// it fail, so that none is written.
func encode(points []point, now time.Time, retention time.Duration) (lines []byte, err error) {
	for i, p := range points {
		if lines, err = p.append(lines, now, retention); err != nil {
			if e, ok := err.(*tools.Error); ok && len(points) > 1 {
				e.Message = fmt.Sprintf("points[%d]: %s", i, e.Message)
			}
			return nil, err
		}
		if len(lines) > maxLines {
			return nil, tools.Errorf(tools.TooLarge, "the points have more than %d bytes", maxLines).
				Suggest("write them in several calls")
		}
	}
	return lines, nil
}

func (p point) append(b []byte, now time.Time, retention time.Duration) ([]byte, error) {
	if err := checkName("measurement", p.Measurement.Key()); err != nil {
		return nil, err
	}
	at, err := p.at(now, retention)
	if err != nil {
		return nil, err
	}
	b = append(b, lineName.Replace(p.Measurement.Key())...)
	if b, err = p.appendTags(b); err != nil {
		return nil, err
	}
	if b, err = p.appendFields(b); err != nil {
		return nil, err
	}
	return fmt.Appendf(b, " %d\n", at.UnixNano()), nil
}

func (p point) at(now time.Time, retention time.Duration) (time.Time, error) {
	if p.Time == "" {
		return now, nil
	}
	at, err := time.Parse(time.RFC3339Nano, p.Time)
	if err != nil {
		return at, tools.Errorf(tools.Invalid, "time: %.64q is no time: write one like 2006-01-02T15:04:05Z", p.Time)
	}
	if at.Before(now.Add(-retention)) || at.After(now.Add(maxFuture)) {
		return at, tools.Errorf(tools.Invalid, "time: %s is out of range", at.Format(time.RFC3339)).
			Suggest(fmt.Sprintf("a point is at most %v old, and at most %v ahead", retention, maxFuture))
	}
	return at, nil
}

func (p point) appendTags(b []byte) ([]byte, error) {
	if len(p.Tags) > maxTags {
		return nil, tools.Errorf(tools.Invalid, "tags: there are %d, of at most %d", len(p.Tags), maxTags)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Tags)) {
		if err := checkName("tags", name); err != nil {
			return nil, err
		}
		if err := checkValue("tags: "+tools.Quote(name), p.Tags[name]); err != nil {
			return nil, err
		}
		if _, both := p.Fields[name]; both {
			return nil, tools.Errorf(tools.Invalid, "tags: %.64q is the name of a field, too", name)
		}
		b = fmt.Appendf(b, ",%s=%s", lineKey.Replace(name), lineKey.Replace(p.Tags[name]))
	}
	return b, nil
}

func (p point) appendFields(b []byte) ([]byte, error) {
	if len(p.Fields) == 0 || len(p.Fields) > maxFields {
		return nil, tools.Errorf(tools.Invalid, "fields: there are %d: want 1 to %d", len(p.Fields), maxFields)
	}
	separator := ' '
	for _, name := range slices.Sorted(maps.Keys(p.Fields)) {
		if err := checkName("fields", name); err != nil {
			return nil, err
		}
		b = fmt.Appendf(b, "%c%s=", separator, lineKey.Replace(name))
		var err error
		if b, err = appendValue(b, name, p.Fields[name]); err != nil {
			return nil, err
		}
		separator = ','
	}
	return b, nil
}

// appendValue appends the value of a field.
func appendValue(b []byte, name string, value any) ([]byte, error) {
	switch v := value.(type) {
	case float64: // JSON has neither NaN nor infinity
		return strconv.AppendFloat(b, v, 'g', -1, 64), nil
	case bool:
		return strconv.AppendBool(b, v), nil
	case string:
		if len(v) > maxText || strings.Contains(v, "\x00") {
			return nil, tools.Errorf(tools.Invalid, "fields: %.64q: want a text of at most %d bytes, without NUL", name, maxText)
		}
		return fmt.Appendf(b, `"%s"`, lineText.Replace(v)), nil
	}
	return nil, tools.Errorf(tools.Invalid, "fields: %.64q: want a number, a text or a boolean", name)
}

// What the line protocol escapes. A backslash before any other character is itself.
var (
	lineName = strings.NewReplacer(",", `\,`, " ", `\ `)
	lineKey  = strings.NewReplacer(",", `\,`, " ", `\ `, "=", `\=`)
	lineText = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
)
