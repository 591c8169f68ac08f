package metrics

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
)

// TestInflux runs what needs a server that works, on one server.
func TestInflux(t *testing.T) {
	t.Parallel()
	server := startInfluxd(t, t.TempDir())
	for name, test := range map[string]func(*testing.T, *influxd){
		"queries": queries, "neighbours": neighbours, "names": names, "random": random, "refused": refused, "times": times, "rights": rights, "cardinality": cardinality,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, server)
		})
	}
}

// queries: points come back as they were written, and aggregates are of what was
// asked for.
func queries(t *testing.T, s *influxd) {
	c := newClient(t, s.settings(t, admin, 0), "queries", "")
	assert.Equal(t, found{Columns: []string{"time", "v"}, Series: []Series{}}, c.query(t, args{"measurement": "cpu", "fields": []args{{"name": "v"}}}), "nothing was written")

	start := time.Now().UTC().Add(-10 * time.Minute).Truncate(2 * time.Minute)
	at := func(minutes int) string {
		return start.Add(time.Duration(minutes) * time.Minute).Format(time.RFC3339Nano)
	}
	var points []args
	for i := range 6 {
		host := []string{"one", "two"}[i%2]
		points = append(points, args{"measurement": "cpu", "tags": args{"host": host}, "time": at(i), "fields": args{"v": float64(i) + 0.5, "ok": i%2 == 0, "text": fmt.Sprintf("line %d\n\"quoted\\\"", i)}})
	}
	require.NoError(t, c.write(t, points...))
	require.NoError(t, c.write(t, args{"measurement": "cpu", "fields": args{"v": 100}}))

	out := c.query(t, args{"measurement": "cpu", "fields": []args{{"name": "v"}, {"name": "ok"}, {"name": "text"}}, "tags": args{"host": "one"}})
	assert.Equal(t, []string{"time", "v", "ok", "text"}, out.Columns)
	assert.Equal(t, [][]any{{at(0), 0.5, true, "line 0\n\"quoted\\\""}, {at(2), 2.5, true, "line 2\n\"quoted\\\""}, {at(4), 4.5, true, "line 4\n\"quoted\\\""}}, out.Series[0].Rows)

	out = c.query(t, args{"measurement": "cpu", "group_by": []string{"host"}, "fields": []args{{"name": "v", "aggregate": "mean"}, {"name": "v", "aggregate": "max"}, {"name": "ok", "aggregate": "count"}}})
	assert.Equal(t, []string{"time", "mean(v)", "max(v)", "count(ok)"}, out.Columns)
	require.Len(t, out.Series, 3)
	assert.Equal(t, map[string]string{"host": ""}, out.Series[0].Tags)
	assert.Equal(t, []any{100.0, 100.0, nil}, out.Series[0].Rows[0][1:])
	assert.Equal(t, map[string]string{"host": "two"}, out.Series[2].Tags)
	assert.Equal(t, []any{3.5, 5.5, 3.0}, out.Series[2].Rows[0][1:])

	out = c.query(t, args{"measurement": "cpu", "every": "2m", "start": at(0), "end": at(6), "newest_first": true, "fields": []args{{"name": "v", "aggregate": "sum"}}})
	assert.Equal(t, [][]any{{at(4), 10.0}, {at(2), 6.0}, {at(0), 2.0}}, out.Series[0].Rows)

	out = c.query(t, args{"measurement": "cpu", "limit": 2, "newest_first": true, "fields": []args{{"name": "v"}}})
	assert.True(t, out.Truncated)
	assert.Len(t, out.Series[0].Rows, 2)
	assert.Equal(t, 100.0, out.Series[0].Rows[0][1])
	for _, aggregate := range aggregates {
		out = c.query(t, args{"measurement": "cpu", "fields": []args{{"name": "v", "aggregate": aggregate}}})
		assert.Len(t, out.Series, 1, aggregate)
	}
}

// neighbours: two agents write the same measurement and never meet, also if one id
// begins with the other.
func neighbours(t *testing.T, s *influxd) {
	ids := []string{"n", "n-", "nb"}
	for i, id := range ids {
		require.NoError(t, newClient(t, s.settings(t, admin, 0), id, "").write(t, args{"measurement": "cpu", "tags": args{"of": id}, "fields": args{"v": i}}))
	}
	for i, id := range ids {
		c := newClient(t, s.settings(t, admin, 0), id, "")
		out := c.query(t, args{"measurement": "cpu", "fields": []args{{"name": "v"}}, "group_by": []string{"of"}})
		require.Len(t, out.Series, 1)
		assert.Equal(t, map[string]string{"of": id}, out.Series[0].Tags)
		assert.Equal(t, float64(i), out.Series[0].Rows[0][1])
		for _, measurement := range []string{`n_".autogen."cpu`, `nb_"."autogen"."cpu`, `nb_..cpu`, `"nb_"..cpu`, "/.*/", "*", "cpu, nb_..cpu"} {
			assert.Empty(t, c.query(t, args{"measurement": measurement, "fields": []args{{"name": "v"}}}).Series, measurement)
		}
		assert.Empty(t, c.query(t, args{"measurement": "cpu", "fields": []args{{"name": "*"}}}).Series)
	}
	assert.Contains(t, s.Query(t, "SHOW DATABASES"), `["n-_"]`)
	reader := newClient(t, s.settings(t, admin, 0), "n", "view: {access: read}")
	assert.Equal(t, tools.Denied, code(reader.write(t, args{"measurement": "cpu", "fields": args{"v": 1}})))
	assert.Len(t, reader.query(t, args{"measurement": "cpu", "fields": []args{{"name": "v"}}}).Series, 1)
}

// hostile are names that want to be syntax. Those that the line protocol cannot
// carry are false.
var hostile = map[string]bool{
	`"`: true, `'`: true, `a"b`: true, `"a"`: true, `";DROP DATABASE "canary_"`: true, `'; DROP DATABASE canary_ --`: true, `a' OR 'a'='a`: true,
	`x" FROM "canary_"."autogen"."m"; --`: true, `a,b`: true, ` a`: true, `a `: true, `a=b`: true, `=`: true, `,`: true, ` `: true, `a,host=b c=1`: true, `a v=1 1`: true,
	"/.*/": true, "*": true, "(": true, "mean(v)": true, "a::tag": true, "$x": true, "SELECT": true, "FROM": true, "now()": false, "Now()": false, "now() ": true, "1": true, "1i": true, "-": true, "tïme": true, "日本": true,
	"#": false, "#a": false, "a#": true, "time": false, "TIME": false, "_field": false, "_": false, "": false,
	"a\nb": false, "a\r\nm v=1": false, "a\tb": false, "a\x00b": false, "a\x7f": false, "\u0085": false, `a\`: false, `\`: false, `a\,b`: false, `\"`: false, `a\nb`: false,
	strings.Repeat("n", maxName): true, strings.Repeat("n", maxName+1): false, strings.Repeat("é", maxName/2+1): false,
}

// names: a hostile name is a name, wherever it stands, or is refused before it is
// sent.
func names(t *testing.T, s *influxd) {
	canary := newClient(t, s.settings(t, admin, 0), "canary", "")
	require.NoError(t, canary.write(t, args{"measurement": "m", "fields": args{"v": 1}}))
	c := newClient(t, s.settings(t, admin, 0), "names", "")
	require.NoError(t, c.write(t, args{"measurement": "other", "tags": args{"host": "x"}, "fields": args{"v": 1}}))
	for name, ok := range hostile {
		t.Run(fmt.Sprintf("%.20q", name), func(t *testing.T) {
			want := map[bool]tools.Code{true: "", false: tools.Invalid}[ok]
			value := want
			if checkValue("", name) == nil { // the value of a tag may be more
				value = ""
			}
			where := func(in args) args {
				for k, v := range map[string]any{"measurement": "m", "fields": []args{{"name": "v"}}} {
					if in[k] == nil {
						in[k] = v
					}
				}
				return in
			}
			for place, try := range map[string]struct {
				point, query args
				want         tools.Code
			}{
				"measurement": {args{"measurement": name, "fields": args{"v": 7}}, args{"measurement": name}, want},
				"field":       {args{"measurement": "f " + t.Name()[len(t.Name())-1:], "fields": args{name: 7}}, args{"measurement": "f " + t.Name()[len(t.Name())-1:], "fields": []args{{"name": name}}}, want},
				"tag":         {args{"measurement": "t", "tags": args{name: "x"}, "fields": args{"V": 7}}, args{"measurement": "t", "fields": []args{{"name": "V"}}, "tags": args{name: "x"}, "group_by": []string{name}}, want},
				"value":       {args{"measurement": "v", "tags": args{"host": name}, "fields": args{"v": 7}}, args{"measurement": "v", "tags": args{"host": name}, "group_by": []string{"host"}}, value},
			} {
				err := c.write(t, try.point)
				require.Equal(t, try.want, code(err), "%s: %v", place, err)
				err = c.call(t, "metrics_query", where(try.query), nil)
				require.Equal(t, try.want, code(err), "%s: %v", place, err)
				if err != nil {
					continue
				}
				out := c.query(t, where(try.query))
				require.Len(t, out.Series, 1, place)
				require.Len(t, out.Series[0].Rows, 1, place)
				assert.Equal(t, 7.0, out.Series[0].Rows[0][1], place)
				for tag, value := range out.Series[0].Tags {
					if place == "tag" {
						assert.Equal(t, []string{name, "x"}, []string{tag, value})
					} else {
						assert.Equal(t, []string{"host", name}, []string{tag, value})
					}
				}
			}
		})
	}
	assert.Len(t, canary.query(t, args{"measurement": "m", "fields": []args{{"name": "v"}}}).Series, 1)
	assert.NotContains(t, s.Query(t, "SHOW DATABASES"), "DROP")
}

// random: names of random special characters are carried as they are.
func random(t *testing.T, s *influxd) {
	c := newClient(t, s.settings(t, admin, 0), "random", "")
	alphabet := []rune(`",'= ;#/*()$:.-a1é`)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	word := func() string {
		text := []rune{'m'}
		for range 1 + r.IntN(8) {
			text = append(text, alphabet[r.IntN(len(alphabet))])
		}
		return string(text)
	}
	var points, ask []args
	for i := range 150 {
		m, tag, value, name, text := fmt.Sprint(i, word()), "t"+word(), word(), word(), word()+`\`+word()
		points = append(points, args{"measurement": m, "tags": args{tag: value}, "fields": args{name: text, "i": i}})
		ask = append(ask, args{"measurement": m, "tags": args{tag: value}, "fields": []args{{"name": name}, {"name": "i"}}})
	}
	require.NoError(t, c.write(t, points...), "seed %d", seed)
	for i, in := range ask {
		out := c.query(t, in)
		require.Len(t, out.Series, 1, "seed %d: %v", seed, in)
		require.Len(t, out.Series[0].Rows, 1)
		name := in["fields"].([]args)[0]["name"].(string)
		assert.Equal(t, []any{points[i]["fields"].(args)[name], float64(i)}, out.Series[0].Rows[0][1:], "seed %d", seed)
	}
}

// refused: what is malformed is refused, and by a word of the tool's.
func refused(t *testing.T, s *influxd) {
	c := newClient(t, s.settings(t, admin, 0), "refused", "")
	point := func(change args) args {
		p := args{"measurement": "m", "fields": args{"v": 1}}
		for k, v := range change {
			p[k] = v
		}
		return p
	}
	many := args{}
	for i := range maxFields + 1 {
		many[fmt.Sprintf("f%d", i)] = "1"
	}
	for name, p := range map[string]args{
		"no fields": point(args{"fields": args{}}), "null": point(args{"fields": args{"v": nil}}), "list": point(args{"fields": args{"v": []int{1}}}),
		"object": point(args{"fields": args{"v": args{"x": 1}}}), "NUL": point(args{"fields": args{"v": "a\x00"}}), "long": point(args{"fields": args{"v": strings.Repeat("x", maxText+1)}}),
		"many fields": point(args{"fields": many}), "many tags": point(args{"tags": many}), "both": point(args{"tags": args{"v": "x"}}), "empty tag": point(args{"tags": args{"t": ""}}),
		"unknown": point(args{"database": "nb_"}), "no measurement": {"fields": args{"v": 1}},
	} {
		assert.Equal(t, tools.Invalid, code(c.write(t, p)), name)
	}
	for _, number := range []string{"1e400", "-1e400", "NaN", "Infinity", "0x10", "01"} {
		_, err := c.Set.Call(t.Context(), tools.Call{Tool: "metrics_write", Args: []byte(`{"points": [{"measurement": "m", "fields": {"v": ` + number + `}}]}`)})
		assert.Equal(t, tools.Invalid, code(err), number)
	}
	for name, want := range map[string]tools.Code{"odd\xff": tools.Invalid, "odd\xed\xa0\x80": tools.Invalid, `odd\ud800`: ""} { // the door reads a lone surrogate as U+FFFD
		_, err := c.Set.Call(t.Context(), tools.Call{Tool: "metrics_write", Args: []byte(`{"points": [{"measurement": "` + name + `", "fields": {"v": 1}}]}`)})
		assert.Equal(t, want, code(err), "%q", name)
	}
	assert.NotContains(t, s.Query(t, `SHOW MEASUREMENTS ON "refused_"`), "\xff")
	for number, want := range map[string]float64{"9223372036854775808": 1 << 63, "1e308": 1e308, "5e-324": 5e-324, "-0": 0, "123456789012345678901234567890": 123456789012345678901234567890} {
		_, err := c.Set.Call(t.Context(), tools.Call{Tool: "metrics_write", Args: []byte(`{"points": [{"measurement": "` + number + `", "fields": {"v": ` + number + `}}]}`)})
		require.NoError(t, err, number)
		assert.InEpsilon(t, 1+want, 1+c.query(t, args{"measurement": number, "fields": []args{{"name": "v"}}}).Series[0].Rows[0][1].(float64), 1e-12, number)
	}
	assert.Equal(t, tools.Invalid, code(c.write(t)), "no points")
	err := c.write(t, point(nil), point(args{"measurement": "a\nb"}))
	assert.ErrorContains(t, err, "points[1]")
	assert.Empty(t, c.query(t, args{"measurement": "m", "fields": []args{{"name": "v"}}}).Series, "none is written")
	big := make([]args, 100)
	for i := range big {
		big[i] = point(args{"fields": args{"v": strings.Repeat("x", maxText)}})
	}
	assert.Equal(t, tools.TooLarge, code(c.write(t, big...)))
	assert.Equal(t, tools.Invalid, code(c.write(t, make([]args, 1001)...)))

	query := func(change args) args {
		q := args{"measurement": "m", "fields": []args{{"name": "v"}}}
		for k, v := range change {
			q[k] = v
		}
		return q
	}
	mean := []args{{"name": "v", "aggregate": "mean"}}
	for name, in := range map[string]args{
		"aggregate": query(args{"fields": []args{{"name": "v", "aggregate": "mean(v), max"}}}), "unknown aggregate": query(args{"fields": []args{{"name": "v", "aggregate": "top"}}}),
		"mixed": query(args{"fields": []args{{"name": "v"}, mean[0]}}), "no fields": query(args{"fields": []args{}}), "limit": query(args{"limit": 1001}), "negative": query(args{"limit": -1}),
		"every": query(args{"every": "1m"}), "every of nothing": query(args{"fields": mean, "every": "0s"}), "every fraction": query(args{"fields": mean, "every": "1500ms"}), "every back": query(args{"fields": mean, "every": "-1m"}),
		"every text": query(args{"fields": mean, "every": "1m) --"}), "start": query(args{"start": "now() - 1h"}), "start after end": query(args{"start": "1h", "end": "2h"}), "start far": query(args{"start": "0001-01-01T00:00:00Z"}),
		"end far": query(args{"end": "9999-01-01T00:00:00Z"}), "sql": query(args{"q": "SELECT 1"}), "database": query(args{"database": "nb_"}), "tags": query(args{"tags": many}),
	} {
		assert.Equal(t, tools.Invalid, code(c.call(t, "metrics_query", in, nil)), name)
	}
	assert.Equal(t, tools.TooLarge, code(c.call(t, "metrics_query", query(args{"fields": mean, "every": "1s", "start": "24h"}), nil)))

	require.NoError(t, c.write(t, point(nil)))
	err = c.write(t, point(args{"fields": args{"v": "text"}}))
	assert.Equal(t, tools.Conflict, code(err), "%v", err)
	err = c.call(t, "metrics_query", query(args{"fields": mean, "every": "1s", "start": "2h"}), nil) // beyond the server's limit, below ours
	assert.Equal(t, tools.TooLarge, code(err), "%v", err)
	require.NoError(t, c.write(t, args{"measurement": "s", "fields": args{"v": "text"}}))
	err = c.call(t, "metrics_query", query(args{"measurement": "s", "fields": mean}), nil)
	assert.Equal(t, tools.Invalid, code(err), "%v", err)
}

// times: a point is neither too old nor too far ahead.
func times(t *testing.T, s *influxd) {
	c := newClient(t, s.settings(t, admin, 0), "times", "")
	now := time.Now()
	for text, want := range map[string]tools.Code{
		now.Format(time.RFC3339): "", now.Add(-300 * 24 * time.Hour).Format(time.RFC3339): "", now.Add(23 * time.Hour).Format(time.RFC3339): "", now.UTC().Format(time.RFC3339Nano): "",
		now.Add(-year - time.Hour).Format(time.RFC3339): tools.Invalid, now.Add(25 * time.Hour).Format(time.RFC3339): tools.Invalid,
		"1677-09-21T00:12:43Z": tools.Invalid, "2262-04-12T00:00:00Z": tools.Invalid, "9999-12-31T23:59:59Z": tools.Invalid, "0000-01-01T00:00:00Z": tools.Invalid,
		"now": tools.Invalid, "1": tools.Invalid, "2026-01-01": tools.Invalid, "2026-01-01T00:00:00Z\nm v=1": tools.Invalid,
	} {
		err := c.write(t, args{"measurement": "m", "time": text, "fields": args{"v": 1}})
		assert.Equal(t, want, code(err), "%s: %v", text, err)
	}
	assert.Contains(t, s.Query(t, `SHOW RETENTION POLICIES ON "times_"`), `"8760h0m0s"`)
}

// rights: a user who may not create a database is told what to ask for, and one
// with a wrong password writes nothing; no error has the password.
func rights(t *testing.T, s *influxd) {
	point := args{"measurement": "m", "fields": args{"v": 1}}
	c := newClient(t, s.settings(t, plain, 0), "rights", "")
	err := c.write(t, point)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, hint(err), `create the database "rights_"`)
	s.Query(t, `CREATE DATABASE "rights_"`)
	err = c.write(t, point)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, hint(err), `may do in the database "rights_"`)
	s.Query(t, `GRANT ALL ON "rights_" TO `+plain)
	require.NoError(t, c.write(t, point))
	assert.Len(t, c.query(t, args{"measurement": "m", "fields": []args{{"name": "v"}}}).Series, 1)

	wrong := s.settings(t, "nobody", 0)
	c = newClient(t, wrong, "rights", "")
	err = c.write(t, point)
	assert.Equal(t, tools.Unavailable, code(err))
	assert.Contains(t, hint(err), "credential")
	store, err := Open(wrong)
	require.NoError(t, err)
	assert.ErrorContains(t, store.Ping(t.Context()), "refuses the credential")
	wrong = s.settings(t, admin, 0)
	wrong.Version, wrong.Org, wrong.User = 2, "o", ""
	store, err = Open(wrong)
	require.NoError(t, err)
	assert.ErrorContains(t, store.Ping(t.Context()), `InfluxDB "1.`)
	c = newClient(t, wrong, "rights", "")
	assert.Contains(t, hint(c.write(t, point)), "not InfluxDB 2")
	assert.NotContains(t, fmt.Sprint(c.Events()), password)
	store, err = Open(s.settings(t, admin, 0))
	require.NoError(t, err)
	assert.NoError(t, store.Ping(t.Context()))
}

// cardinality: the series of a result are bounded, and the server's own bound on
// the values of a tag is an error that says so.
func cardinality(t *testing.T, s *influxd) {
	c := newClient(t, s.settings(t, admin, 0), "cardinality", "")
	points := make([]args, 0, 160)
	for i := range 160 {
		points = append(points, args{"measurement": "m", "tags": args{"a": fmt.Sprint(i / 40), "b": fmt.Sprint(i % 40)}, "fields": args{"v": i}})
	}
	require.NoError(t, c.write(t, points...))
	out := c.query(t, args{"measurement": "m", "fields": []args{{"name": "v"}}, "group_by": []string{"a", "b"}})
	assert.True(t, out.Truncated)
	assert.Len(t, out.Series, maxSeries)
	for i := range points {
		points[i] = args{"measurement": "n", "tags": args{"a": fmt.Sprint(i)}, "fields": args{"v": i}}
	}
	require.NoError(t, c.write(t, points...), "the server counts what was there before the call")
	err := c.write(t, args{"measurement": "n", "tags": args{"a": "new"}, "fields": args{"v": 1}})
	assert.Equal(t, tools.TooLarge, code(err), "%v", err)
	assert.Contains(t, hint(err), "fewer values")
}
