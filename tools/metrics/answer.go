package metrics

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scopefs/scopefs/tools"
)

// answer is the response of a server. Nothing in it is trusted.
type answer struct {
	status  int
	version string // of the server, if it told
	body    body
	odd     error  // the body is no JSON of InfluxDB's
	said    string // the error in the body
}

// body is the body of an answer. Version 2 has its errors in Message.
type body struct {
	Error, Message string
	Results        []struct {
		Error   string
		Partial bool
		Series  []struct {
			Tags    map[string]*string
			Columns []string
			Values  [][]any
			Partial bool
		}
	}
}

func newAnswer(status int, version, text string) answer {
	a := answer{status: status, version: version}
	if text == "" {
		return a
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if a.odd = dec.Decode(&a.body); a.odd == nil && dec.More() {
		a.odd = errors.New("there is more than one value")
	}
	if len(a.body.Results) > 1 {
		a.odd = errors.New("there is more than one result")
	}
	if a.odd == nil {
		a.said = cmp.Or(a.body.Error, a.body.Message)
		for _, r := range a.body.Results {
			a.said = cmp.Or(a.said, r.Error)
		}
	}
	return a
}

// missing reports whether the server says that the database does not exist. A
// server of version 1 has no other sign of it.
func (a answer) missing() bool {
	return a.status == http.StatusNotFound && a.said != "" || a.status == http.StatusOK && strings.HasPrefix(a.said, "database not found")
}

// is reports whether the server is of a version, or does not tell.
func (a answer) is(version int) bool {
	major, _, _ := strings.Cut(strings.TrimPrefix(a.version, "v"), ".")
	n, err := strconv.Atoi(major)
	return err != nil || n == version
}

// refused is the error of an answer that is no success. The server's words reach
// the agent only where they are about what the agent wrote.
func (s *Influx) refused(a answer, database string) *tools.Error {
	cause := fmt.Errorf("status %d, version %.20q: %s", a.status, a.version, cmp.Or(tools.Clip(a.said, 500), fmt.Sprint("no error: ", a.odd)))
	switch {
	case !a.is(s.Version):
		return unavailable(cause, fmt.Sprintf("the server is not InfluxDB %d: the operator must correct the version", s.Version))
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return unavailable(cause, fmt.Sprintf("the operator must check the credential, and what it may do in the database %q", database))
	case a.missing():
		return unavailable(cause, fmt.Sprintf("the operator must create the bucket %q on the server", database))
	case a.status == http.StatusRequestEntityTooLarge:
		return tools.Errorf(tools.TooLarge, "the server takes no request of this size").Because(cause).
			Suggest("write fewer points in a call")
	case a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable:
		return unavailable(cause, "the server is busy: try again later")
	case strings.Contains(a.said, "no space left"):
		return unavailable(cause, "the server's disk is full")
	case a.said != "" && (a.status == http.StatusOK || a.status == http.StatusBadRequest || a.status == http.StatusUnprocessableEntity):
		return refusal(a.said, cause)
	}
	return nonsense(cause)
}

// refusal is the error of points or a statement that the server does not take.
func refusal(said string, cause error) *tools.Error {
	text := tools.Clip(tools.Clean(said), 300)
	e := tools.Errorf(tools.Invalid, "the server refused it: %s", text).Because(cause)
	switch {
	case strings.Contains(text, "type conflict"):
		e.Code, e.Hint = tools.Conflict, "a field keeps the type of its first value: use another name, or another measurement"
	case strings.Contains(text, "max-"): // the name of a setting of the server
		e.Code, e.Hint = tools.TooLarge, "use tags with fewer values, or ask for less"
	}
	return e
}

// nonsense is the error of a server that answers something else than InfluxDB.
func nonsense(cause error) *tools.Error {
	return unavailable(cause, "the server does not answer as InfluxDB does: the operator must check it")
}

// series returns the series of the answer to a statement.
func (a answer) series(q Select) (all []Series, more bool, err error) {
	if a.odd != nil || a.body.Results == nil {
		return nil, false, nonsense(fmt.Errorf("no result: %v", a.odd))
	}
	for _, r := range a.body.Results {
		more = more || r.Partial
		for _, one := range r.Series {
			if more = more || one.Partial; len(all) == maxSeries {
				return all, true, nil
			}
			if !q.names(one.Columns) || slices.ContainsFunc(one.Values, func(row []any) bool { return !q.plain(row) }) {
				return nil, false, nonsense(errors.New("a series has other columns or malformed rows"))
			}
			tags, ok := q.tags(one.Tags)
			if !ok {
				return nil, false, nonsense(errors.New("a series has other tags"))
			}
			all = append(all, Series{tags, one.Values})
		}
	}
	return all, more, nil
}

// tags returns the tags of a series, and whether the query names all of them.
func (q Select) tags(from map[string]*string) (map[string]string, bool) {
	tags := map[string]string{}
	for name, value := range from {
		if !slices.Contains(q.group, name) {
			return nil, false
		}
		if tags[name] = ""; value != nil { // version 3 has null for a point without the tag
			tags[name] = *value
		}
	}
	return tags, true
}

// names reports whether columns are those of the statement.
func (q Select) names(columns []string) bool {
	for i, name := range columns {
		if i == 0 && name != "time" || i > 0 && name != "c"+strconv.Itoa(i-1) {
			return false
		}
	}
	return len(columns) == q.fields+1
}

// plain reports whether a row is one of the statement, and makes its time text.
func (q Select) plain(row []any) bool {
	if len(row) != q.fields+1 {
		return false
	}
	n, ok := row[0].(json.Number)
	ns, err := strconv.ParseInt(string(n), 10, 64)
	if !ok || err != nil {
		return false
	}
	row[0] = time.Unix(0, ns).UTC().Format(time.RFC3339Nano)
	for _, value := range row[1:] {
		switch value.(type) {
		case nil, string, bool, json.Number:
		default:
			return false
		}
	}
	return true
}
