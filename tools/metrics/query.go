package metrics

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// The bounds of a query. queryArgs has the others.
const (
	defaultRange = time.Hour
	defaultRows  = 100
	maxRows      = 1000
	maxSeries    = 100
	maxIntervals = 10_000 // of a time range
)

// Select is an InfluxQL statement that reads one measurement.
type Select struct {
	text   string
	fields int
	group  []string // tags
	limit  int      // rows of a series; the statement selects one more
}

// String returns the statement. A server of InfluxDB 3 has no SLIMIT.
func (q Select) String(slimit bool) string {
	text := fmt.Sprintf("%s LIMIT %d", q.text, q.limit+1)
	if slimit {
		text += fmt.Sprintf(" SLIMIT %d", maxSeries+1)
	}
	return text
}

// compile returns the statement of a query.
func (in queryArgs) compile(now time.Time) (q Select, err error) {
	start, end, err := in.span(now)
	if err != nil {
		return q, err
	}
	columns, err := in.selected()
	if err != nil {
		return q, err
	}
	where, err := in.where()
	if err != nil {
		return q, err
	}
	group, err := in.grouped(end.Sub(start))
	if err != nil {
		return q, err
	}
	if err := checkName("measurement", in.Measurement.Key()); err != nil {
		return q, err
	}
	q = Select{fields: len(in.Fields), group: in.GroupBy, limit: min(cmp.Or(max(in.Limit, 0), defaultRows), maxRows)}
	q.text = "SELECT " + columns + " FROM " + identifier(in.Measurement.Key()) +
		" WHERE time >= " + instant(start) + " AND time < " + instant(end) + where + group
	if in.NewestFirst {
		q.text += " ORDER BY time DESC"
	}
	return q, nil
}

// aggregates are the functions of InfluxQL that a query may call.
var aggregates = []string{"count", "sum", "mean", "median", "min", "max", "first", "last", "spread", "stddev"}

// selected returns the columns: the fields, named c0, c1 and so on in the answer.
func (in queryArgs) selected() (string, error) {
	if len(in.Fields) == 0 {
		return "", tools.Errorf(tools.Invalid, "fields: there are none")
	}
	var columns []string
	for i, f := range in.Fields {
		if err := checkName("fields", f.Name); err != nil {
			return "", err
		}
		if (f.Aggregate == "") != (in.Fields[0].Aggregate == "") {
			return "", tools.Errorf(tools.Invalid, "fields: some have an aggregate and others do not")
		}
		column := identifier(f.Name)
		if f.Aggregate != "" {
			if !slices.Contains(aggregates, f.Aggregate) {
				return "", tools.Errorf(tools.Invalid, "fields: there is no aggregate %.64q", f.Aggregate)
			}
			column = f.Aggregate + "(" + column + ")"
		}
		columns = append(columns, fmt.Sprintf("%s AS c%d", column, i))
	}
	return strings.Join(columns, ", "), nil
}

// where returns the conditions on tags.
func (in queryArgs) where() (text string, err error) {
	if len(in.Tags) > maxTags {
		return "", tools.Errorf(tools.Invalid, "tags: there are %d, of at most %d", len(in.Tags), maxTags)
	}
	for _, name := range slices.Sorted(maps.Keys(in.Tags)) {
		if err := checkName("tags", name); err != nil {
			return "", err
		}
		if err := checkValue("tags: "+tools.Quote(name), in.Tags[name]); err != nil {
			return "", err
		}
		text += " AND " + identifier(name) + " = " + literal(in.Tags[name])
	}
	return text, nil
}

// grouped returns the clause GROUP BY of a query over a time range.
func (in queryArgs) grouped(span time.Duration) (string, error) {
	var by []string
	for _, name := range in.GroupBy {
		if err := checkName("group_by", name); err != nil {
			return "", err
		}
		by = append(by, identifier(name))
	}
	fill := ""
	if in.Every != "" {
		every, err := time.ParseDuration(in.Every)
		switch {
		case err != nil || every < time.Second || every%time.Second != 0:
			return "", tools.Errorf(tools.Invalid, "every: %.64q is no interval: write whole seconds, such as 30s or 5m", in.Every)
		case in.Fields[0].Aggregate == "":
			return "", tools.Errorf(tools.Invalid, "every: the fields have no aggregate")
		case span/every > maxIntervals:
			return "", tools.Errorf(tools.TooLarge, "the time range has more than %d intervals", maxIntervals).
				Suggest("give a longer interval as every, or a shorter time range")
		}
		by, fill = append(by, fmt.Sprintf("time(%ds)", every/time.Second)), " fill(none)"
	}
	if len(by) == 0 {
		return "", nil
	}
	return " GROUP BY " + strings.Join(by, ", ") + fill, nil
}

// The times that a query may name. InfluxDB keeps times as nanoseconds in 64 bits.
var (
	firstTime = time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC)
	lastTime  = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)
)

// span returns the time range of a query.
func (in queryArgs) span(now time.Time) (start, end time.Time, err error) {
	if start, err = moment("start", in.Start, now, defaultRange); err != nil {
		return start, end, err
	}
	if end, err = moment("end", in.End, now, 0); err != nil {
		return start, end, err
	}
	if !start.Before(end) {
		return start, end, tools.Errorf(tools.Invalid, "start: %s is not before end, %s", start.Format(time.RFC3339), end.Format(time.RFC3339))
	}
	return start, end, nil
}

// moment reads a time, or a duration before now.
func moment(what, text string, now time.Time, ago time.Duration) (time.Time, error) {
	at := now.Add(-ago)
	if d, err := time.ParseDuration(text); err == nil {
		at = now.Add(-d)
	} else if text != "" {
		if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return at, tools.Errorf(tools.Invalid,
				"%s: %.64q is no time: write one like 2006-01-02T15:04:05Z, or a duration before now such as 90m", what, text)
		}
	}
	if at.Before(firstTime) || at.After(lastTime) {
		return at, tools.Errorf(tools.Invalid, "%s: %.64q is out of range: want the years 1678 to 2261", what, text)
	}
	return at, nil
}

// instant returns a time as InfluxQL writes it.
func instant(at time.Time) string {
	return "'" + at.UTC().Format("2006-01-02T15:04:05.000000000Z") + "'"
}

// identifier quotes a name for InfluxQL. Within double quotes nothing is a keyword,
// a regular expression or a wildcard.
func identifier(name string) string { return `"` + inIdentifier.Replace(name) + `"` }

// literal quotes a text for InfluxQL.
func literal(text string) string { return "'" + inLiteral.Replace(text) + "'" }

var (
	inIdentifier = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	inLiteral    = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `'`, `\'`)
)
