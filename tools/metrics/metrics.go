// Package metrics provides the tools metrics_write and metrics_query: time series
// on an InfluxDB server (1.x, 2.x or 3.x), with a database for each agent. A
// bucket of InfluxDB 2 is a database here.
//
// The door divides the server by [share.Buckets]: the database of an agent is the
// agent's whole part, "{id}_". A measurement is a key in it. An input of an agent names
// no other database than a bucket that the operator has granted to it, and further ones
// of its own, "{id}_{name}", of the names that the operator has given.
//
// An agent gives structured input only: points to write, and for a query a
// measurement, fields, tags and a time range. This package writes the line protocol
// and the InfluxQL. A name is checked, then escaped or quoted; see checkName.
package metrics

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
)

// A Store holds a database for each agent. Methods may be called by several
// goroutines. Each returns within the store's time limit. Errors are a
// *[tools.Error].
type Store interface {
	// Write writes lines of the line protocol. It creates the database if the store
	// can and the database does not exist. After an error, some points may have been
	// written.
	Write(ctx context.Context, database string, lines []byte) error

	// Query runs one SELECT and returns its series, none if the database does not
	// exist. A series has a column for the time, and then one for each field. There
	// are at most maxSeries series; more reports that there were others.
	Query(ctx context.Context, database string, q Select) (all []Series, more bool, err error)
}

// Series are the rows of one combination of tags, in the order of the query.
type Series struct {
	Tags map[string]string `json:"tags,omitempty" jsonschema:"the tags of group_by; an empty value means that the points do not have the tag"`
	Rows [][]any           `json:"rows" jsonschema:"each with a value for each column" limit:"items=1000"`
}

// Buckets are those that a call may name. No agent may use an unlisted one.
type Buckets struct {
	Shared map[string]func(scope.Principal) bool // databases of several agents, and who may use each
	Own    []string                              // letters and digits: each agent has one of each name for itself
}

// New returns the tools metrics_write and metrics_query on a store. Points may be
// as old as retention.
func New(store Store, retention time.Duration, buckets Buckets) ([]tools.Tool, error) {
	s := service{store, retention, buckets}
	// An answer of 2 MiB takes up to some 100 MiB while it is read.
	turns := tools.NewTurns(8, 4)
	write, err1 := tools.NewScoped(share.Buckets, "metrics_write",
		"Write points of time series. A point with the measurement, tags and time of another replaces its fields. A field keeps the type of its first value.",
		tools.Hints{Title: "Write metrics", Writes: true, Acts: true, Destructive: true, Waits: true, Turns: turns}, s.write)
	query, err2 := tools.NewScoped(share.Buckets, "metrics_query",
		"Read fields of a measurement over a time range: the points themselves, or aggregates of them by tag and by interval.",
		tools.Hints{Title: "Query metrics", Idempotent: true, Waits: true, Turns: turns}, s.query)
	write, err1 = tools.Judged(write, err1, func(env tools.Env, in writeArgs) error { return s.judge(env, in.Bucket) })
	query, err2 = tools.Judged(query, err2, func(env tools.Env, in queryArgs) error { return s.judge(env, in.Bucket) })
	return []tools.Tool{write, query}, errors.Join(err1, err2)
}

type service struct {
	store     Store
	retention time.Duration
	buckets   Buckets
}

// judge decides whether the agent, and those that bound the call, may use a bucket.
func (s service) judge(env tools.Env, name string) error {
	who := s.buckets.Shared[name]
	if name == "" || slices.Contains(s.buckets.Own, name) || env.All(who) {
		return nil
	}
	d := env.Ungranted("stores.metrics.buckets", name, who != nil)
	return tools.Refused(d, tools.Denied, "there is no bucket %.64q here", name).
		Suggest(strings.Join(append([]string{"leave out bucket for your own"}, s.buckets.Own...), ", or name "))
}

// database returns the database of a call: a bucket that was granted, or one of the agent's own.
func (s service) database(bucket string, own tools.Resource) (string, error) {
	if bucket != "" && !slices.Contains(s.buckets.Own, bucket) {
		return bucket, nil
	}
	part, err := own.Part()
	return part + bucket, err
}

// writeArgs are the arguments of metrics_write.
type writeArgs struct {
	Bucket string  `json:"bucket,omitempty" limit:"len=128" jsonschema:"one that you were granted; absent: your own"`
	Points []point `json:"points" limit:"items=1000"`
}

// Subject names the first measurement.
func (in writeArgs) Subject() (rel, target string) {
	if len(in.Points) > 0 {
		target = in.Points[0].Measurement.Key()
	}
	return "", target
}

// written is the result of metrics_write.
type written struct {
	Points int `json:"points" jsonschema:"how many were written"`
}

func (s service) write(ctx context.Context, _ tools.Env, in writeArgs) (out written, err error) {
	if len(in.Points) == 0 {
		return out, tools.Errorf(tools.Invalid, "points: there are none")
	}
	lines, err := encode(in.Points, time.Now(), s.retention)
	if err != nil {
		return out, err
	}
	name, err := s.database(in.Bucket, in.Points[0].Measurement)
	if err != nil {
		return out, err
	}
	return written{len(in.Points)}, s.store.Write(ctx, name, lines)
}

// queryArgs are the arguments of metrics_query.
type queryArgs struct {
	Bucket      string            `json:"bucket,omitempty" limit:"len=128" jsonschema:"one that you were granted; absent: your own"`
	Measurement tools.Resource    `json:"measurement"`
	Fields      []field           `json:"fields" limit:"items=20" jsonschema:"either all with an aggregate or none"`
	Start       string            `json:"start,omitempty" limit:"len=64" jsonschema:"the first time: RFC 3339, or a duration before now such as 90m or 24h; default 1h"`
	End         string            `json:"end,omitempty" limit:"len=64" jsonschema:"the time after the last one, written as start is; default now"`
	Tags        map[string]string `json:"tags,omitempty" jsonschema:"only points with these tags"`
	GroupBy     []string          `json:"group_by,omitempty" limit:"items=10" jsonschema:"tags: a series for each combination of their values"`
	Every       string            `json:"every,omitempty" limit:"len=64" jsonschema:"a row for each interval, such as 30s, 5m or 24h; with aggregates only"`
	NewestFirst bool              `json:"newest_first,omitempty"`
	Limit       int               `json:"limit,omitempty" limit:"min=1,max=1000" jsonschema:"rows of each series; default 100"`
}

// field is a column of a query.
type field struct {
	Name      string `json:"name" limit:"len=256"`
	Aggregate string `json:"aggregate,omitempty" limit:"enum=count|sum|mean|median|min|max|first|last|spread|stddev"`
}

// Subject names the measurement.
func (in queryArgs) Subject() (rel, target string) { return "", in.Measurement.Key() }

// found is the result of metrics_query.
type found struct {
	Columns   []string `json:"columns" jsonschema:"of a row: the time, then the fields"`
	Series    []Series `json:"series" limit:"items=100"`
	Truncated bool     `json:"truncated,omitempty" jsonschema:"a series has more rows than limit, or there are more series than 100"`
}

func (s service) query(ctx context.Context, _ tools.Env, in queryArgs) (out found, err error) {
	q, err := in.compile(time.Now())
	if err != nil {
		return out, err
	}
	name, err := s.database(in.Bucket, in.Measurement)
	if err != nil {
		return out, err
	}
	out = found{Columns: in.columns(), Series: []Series{}}
	all, more, err := s.store.Query(ctx, name, q)
	if err != nil {
		return out, err
	}
	out.Truncated = more
	for _, one := range all {
		if len(one.Rows) > q.limit {
			one.Rows, out.Truncated = one.Rows[:q.limit], true
		}
		out.Series = append(out.Series, one)
	}
	return out, nil
}

// columns returns the names of a row's columns.
func (in queryArgs) columns() []string {
	names := []string{"time"}
	for _, f := range in.Fields {
		name := f.Name
		if f.Aggregate != "" {
			name = f.Aggregate + "(" + name + ")"
		}
		names = append(names, name)
	}
	return names
}
