package scoped

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reference is what a call sees, by the words of the protocol: nothing if it may not
// have all that it gets, otherwise an array for each scope.
func reference(messages []map[string]json.RawMessage, texts []string, fixed, offered, bound, asked []string, instance string) map[string]string {
	gets := asked
	if fixed != nil {
		gets = fixed
	}
	in := func(list []string) func(string) bool { return func(s string) bool { return !slices.Contains(list, s) } }
	if fixed != nil && asked != nil && (slices.ContainsFunc(asked, in(fixed)) || len(asked) != len(fixed)) || fixed == nil && slices.ContainsFunc(gets, in(offered)) || slices.ContainsFunc(gets, in(bound)) {
		return nil
	}
	files := map[string]string{}
	for _, scope := range gets {
		var list []string
		for i, m := range messages {
			if string(m["type"]) == `"`+scope+`"` && (m["_instance"] == nil || string(m["_instance"]) == `"`+instance+`"`) {
				list = append(list, texts[i])
			}
		}
		files[scope] = "[" + strings.Join(list, ",") + "]"
	}
	return files
}

var scopes = []string{"state", "input", "log", "summarizeArticle", "a"}

// some returns a random selection of the scopes, in random order.
func some(r *rand.Rand) []string {
	list := []string{}
	for _, i := range r.Perm(len(scopes)) {
		if r.IntN(2) == 0 {
			list = append(list, scopes[i])
		}
	}
	return list
}

// randomMessage returns compact JSON, with values that a careless reader changes.
func randomMessage(r *rand.Rand) string {
	values := []string{`12345678901234567890`, `1.0`, `-0`, `1e400`, `"<&>"`, `"\u003c\u2028"`, `"\ud83d\ude00①"`, `{"_instance":"②","type":"log"}`, `[[],{"_scopes":["state"]}]`, `null`, `"]},{\"type\":\"state\""`}
	members := []string{fmt.Sprintf(`"type":%q`, scopes[r.IntN(len(scopes))])}
	if r.IntN(2) == 0 {
		members = append(members, fmt.Sprintf(`"_instance":%q`, []string{"①", "②", "x"}[r.IntN(3)]))
	}
	for i := range r.IntN(4) {
		members = append(members, fmt.Sprintf(`"%c%d":%s`, "a_<"[r.IntN(3)], i, values[r.IntN(len(values))]))
	}
	r.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return "{" + strings.Join(members, ",") + "}"
}

// TestReference requires that Select gives each call what reference says, byte for
// byte, and that what is handed on is the same without instances.
func TestReference(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for n := range 4_000 {
		var texts []string
		var messages []map[string]json.RawMessage
		for range r.IntN(8) {
			texts = append(texts, randomMessage(r))
			var m map[string]json.RawMessage
			require.NoError(t, json.Unmarshal([]byte(texts[len(texts)-1]), &m))
			messages = append(messages, m)
		}
		fixed, offered, bound, asked, instance := some(r), some(r), scopes, some(r), []string{"", "①", "②", "y"}[r.IntN(4)]
		spec := object("const", fixed)
		if fixed == nil || r.IntN(2) == 0 {
			fixed, spec = nil, object("items", map[string]any{"enum": offered})
		}
		if r.IntN(2) == 0 {
			bound = some(r)
		}
		members := []string{`"x":{"_scopes":["log"]}`}
		if asked = asked[:r.IntN(len(asked)+1)]; r.IntN(4) == 0 {
			asked = slices.Clone(fixed)
		}
		if asked != nil {
			members = append(members, `"_scopes":`+jsonOf(asked))
		}
		if instance != "" {
			members = append(members, `"_instance":`+jsonOf(instance))
		}
		got, err := selection(t, "[ "+strings.Join(texts, " ,\n")+" ]", spec, "{"+strings.Join(members, ",")+"}", func(s string) bool { return slices.Contains(bound, s) })
		want := reference(messages, texts, fixed, offered, bound, asked, instance)
		if want == nil {
			require.NotNil(t, err, "seed %d, case %d", seed, n)
			require.True(t, got.Empty())
			continue
		}
		require.Nil(t, err, "seed %d, case %d", seed, n)
		files := map[string]string{}
		for name, file := range got.Files() {
			files[name] = string(file)
		}
		require.Equal(t, want, files, "seed %d, case %d", seed, n)
		handed, err := Parse(got.Environment().JSON())
		require.Nil(t, err)
		require.Equal(t, len(got.messages), handed.Len())
		for i, m := range handed.messages {
			require.Empty(t, m.instance, "seed %d, case %d", seed, n)
			require.Equal(t, got.messages[i].scope, m.scope)
		}
	}
}

func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

func object(name string, v any) string { return jsonOf(map[string]any{name: v}) }

// decode is json.Unmarshal that keeps numbers.
func decode(text []byte, v any) error {
	if !json.Valid(text) {
		return errors.New("no JSON")
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return dec.Decode(v)
}

// FuzzCut requires that Cut never panics, that it takes every member that begins
// with an underscore from the parameters and nothing else, and that encoding/json
// finds no other envelope.
func FuzzCut(f *testing.F) {
	for _, text := range []string{`{}`, `{"_scopes":["a","b"],"x":{"_scopes":[1]}}`, `{"\u005fscopes":["a"]}`, `{"_instance":"①","_instance":"②"}`, `{"a":"\"_scopes\":[","_module":true}`, `[{"_scopes":[]}]`, "{\"_\xff\":1}", `{"_scopes":[[{}]],"":0}`, `null`, ``} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, params, err := Cut(text)
		if err != nil {
			return
		}
		var all, left map[string]any
		if decode(text, &all) != nil {
			require.Equal(t, text, []byte(params)) // the reader of the parameters refuses it
			return
		}
		require.NoError(t, decode(params, &left))
		taken := 0
		for name := range all {
			if strings.HasPrefix(name, "_") {
				delete(all, name)
				taken++
			}
		}
		require.Equal(t, all, left)
		if said := strings.Count(jsonOf(e), `"_`); taken > 0 {
			require.GreaterOrEqual(t, said, taken)
		}
	})
}

// FuzzParse requires that Parse never panics, and that what it has read it reads again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{`[]`, people, `[{"type":"a","a":{"b":[1,{"c":"\""}]}}]`, `[{"type":"a","type":"a"}]`, `{}`, `[[`, "[{\"type\":\"a\xff\"}]", `[{"type":"\u0061","\u005finstance":"x"}]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		env, err := Parse(text)
		if err != nil {
			require.Contains(t, []Code{Invalid, TooLarge}, err.Code)
			return
		}
		again, err := Parse(env.JSON())
		require.Nil(t, err)
		require.Equal(t, env.JSON(), again.JSON())
		var want, got any
		require.NoError(t, decode(text, &want))
		require.NoError(t, decode(env.JSON(), &got))
		require.Equal(t, want, got)
		all, err := Select(env, Spec{Any: true}, nil, Envelope{Scopes: []string{"a"}})
		require.Nil(t, err)
		_, err = Parse(all.Environment().JSON())
		require.Nil(t, err)
	})
}
