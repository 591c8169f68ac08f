package scoped

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, c := range map[string]struct {
		text string
		err  string // "": the text is kept
	}{
		"nothing":          {`[]`, ""},
		"messages":         {`[{"type":"state","n":12345678901234567890123,"x":1e999},{"type":"input","_instance":"①","s":"<&>\ud800"}]`, ""},
		"a large number":   {`[{"type":"a","n":` + strings.Repeat("9", 1000) + `}]`, ""},
		"a scope's name":   {`[{"type":"` + strings.Repeat("a", 64) + `"}]`, ""},
		"levels":           {`[{"type":"a","x":` + deep(62) + `}]`, ""},
		"too many levels":  {`[{"type":"a","x":` + deep(63) + `}]`, "too_large: more than 64 levels: /0/x" + strings.Repeat("/0", 62)},
		"levels of a bomb": {`[` + deep(9000) + `]`, "invalid: a message is no object: /0"},
		"no JSON":          {`[{]`, "invalid: no JSON: invalid character ']' looking for beginning of object key string"},
		"two values":       {`[] []`, "invalid: no JSON: invalid character '[' after top-level value"},
		"nothing at all":   {``, "invalid: no JSON: unexpected end of JSON input"},
		"an object":        {`{"type":"state"}`, "invalid: the context is no array of messages: write [{\"type\": SCOPE, ...}]"},
		"a list":           {`[{"type":"a"},["type"]]`, "invalid: a message is no object: /1"},
		"no type":          {`[{"x":1}]`, "invalid: a message has no type: /0/type"},
		"a number":         {`[{"type":1}]`, "invalid: want a string: /0/type"},
		"null":             {`[{"type":"a","_instance":null}]`, "invalid: want a string: /0/_instance"},
		"an empty name":    {`[{"type":""}]`, `invalid: "" is no name of a scope: want a letter, then letters, digits, _ and -, at most 64 bytes: /0/type`},
		"no instance":      {`[{"type":"a","_instance":""}]`, `invalid: "" is no name of an instance: want 1 to 128 bytes without control characters: /0/_instance`},
		"a line":           {`[{"type":"a","_instance":"a\nb"}]`, `invalid: "a\nb" is no name of an instance: want 1 to 128 bytes without control characters: /0/_instance`},
		"a surrogate":      {`[{"type":"a","_instance":"\ud800"}]`, "invalid: \"\uFFFD\" is no name of an instance: want 1 to 128 bytes without control characters: /0/_instance"},
		"a name twice":     {`[{"type":"a","type":"b"}]`, "invalid: the name is there twice: /0/type"},
		"escaped":          {`[{"type":"a","\u0074ype":"b"}]`, "invalid: the name is there twice: /0/type"},
		"twice, deep":      {`[{"type":"a","x":[{"a/b":1,"a/b":2}]}]`, "invalid: the name is there twice: /0/x/0/a~1b"},
		"not UTF-8":        {"[{\"type\":\"a\",\"x\":\"\xff\"}]", "invalid: the JSON is not UTF-8"},
		"many":             {`[{"type":"a"}` + strings.Repeat(`,{"type":"a"}`, 9_999) + `]`, ""},
		"too many":         {`[{"type":"a"}` + strings.Repeat(`,{"type":"a"}`, 10_000) + `]`, "too_large: the context has more than 10000 messages: /10000"},
		"too long":         {`[` + strings.Repeat(" ", 16<<20) + `]`, "too_large: the context has 16777218 bytes, and 16777216 are the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, err := Parse([]byte(c.text))
			if c.err != "" {
				require.NotNil(t, err)
				assert.Equal(t, c.err, err.Error())
				return
			}
			require.Nil(t, err)
			assert.Equal(t, c.text, string(env.JSON()))
		})
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"__proto__", "_scopes", "..", ".", "a/b", "../etc/passwd", "a\x00", "a.json", "é", "1", "-", " a", "a ", strings.Repeat("a", 65)} {
		text, err := json.Marshal([]map[string]string{{"type": bad}})
		require.NoError(t, err)
		_, wrong := Parse(text)
		require.NotNil(t, wrong, "%q", bad)
		assert.Equal(t, Invalid, wrong.Code)
		assert.Equal(t, "/0/type", wrong.Path)
	}
	for _, good := range []string{"a", "state", "articleText", "A-1_b", "constructor", "a__proto__"} {
		assert.True(t, IsName(good), good)
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, call, params string
		err                string
	}{
		"none":            {`{"a": 1}`, `{}`, `{"a": 1}`, ""},
		"no arguments":    {``, `{}`, ``, ""},
		"all":             {`{"_tool":"t","x":{"_scopes":["secret"]},"_scopes":["b","a"],"_instance":"①","y":[ 1, 2 ],"_activity":"f","_delegate":"d","_module":true}`, `{"_tool":"t","_scopes":["b","a"],"_instance":"①","_activity":"f","_delegate":"d","_module":true}`, `{"x":{"_scopes":["secret"]},"y":[1,2]}`, ""},
		"escaped":         {`{"\u005fscopes":["a"],"x":"}],\""}`, `{"_scopes":["a"]}`, `{"x":"}],\""}`, ""},
		"nothing":         {`{"_scopes":[]}`, `{"_scopes":[]}`, `{}`, ""},
		"nested alone":    {`{"a":{"_scopes":["x"],"_scopes":["y"]}}`, `{}`, `{"a":{"_scopes":["x"],"_scopes":["y"]}}`, ""},
		"unknown":         {`{"__proto__":{"_scopes":["a"]}}`, "", "", "invalid: the protocol has no such member: it has _tool, _scopes, _instance, _activity, _delegate and _module: /__proto__"},
		"an underscore":   {`{"_":1}`, "", "", "invalid: the protocol has no such member: it has _tool, _scopes, _instance, _activity, _delegate and _module: /_"},
		"twice":           {`{"_scopes":["a"],"_scopes":["b"]}`, "", "", "invalid: the name is there twice: /_scopes"},
		"twice, empty":    {`{"_scopes":[],"_scopes":["b"]}`, "", "", "invalid: the name is there twice: /_scopes"},
		"twice, escaped":  {`{"_instance":"a","\u005finstance":"a"}`, "", "", "invalid: the name is there twice: /_instance"},
		"a string":        {`{"_scopes":"input"}`, "", "", "invalid: want an array of names: /_scopes"},
		"null":            {`{"_scopes":null}`, "", "", "invalid: want an array of names: /_scopes"},
		"a number in it":  {`{"_scopes":["a",1]}`, "", "", "invalid: want a string: /_scopes/1"},
		"a duplicate":     {`{"_scopes":["a","b","a"]}`, "", "", "invalid: a is there twice: /_scopes/2"},
		"a path":          {`{"_scopes":["../state"]}`, "", "", `invalid: "../state" is no name of a scope: want a letter, then letters, digits, _ and -, at most 64 bytes: /_scopes/0`},
		"an object in it": {`{"_scopes":[{"a":1,"a":2}]}`, "", "", "invalid: the name is there twice: /_scopes/0/a"},
		"_tool":           {`{"_tool":1}`, "", "", "invalid: want a string: /_tool"},
		"_module":         {`{"_module":1}`, "", "", "invalid: want the name of a member, true or false: /_module"},
		"_module alone":   {`{"_module":"Translator"}`, `{"_module":"Translator"}`, `{}`, ""},
		"not UTF-8":       {"{\"_scopes\":[\"a\"],\"x\":\"\xff\"}", "", "", "invalid: the JSON is not UTF-8"},
		"no JSON":         {`{"_scopes":`, "", "", "invalid: no JSON: unexpected end of JSON input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call, params, err := Cut(json.RawMessage(c.args))
			if c.err != "" {
				require.NotNil(t, err)
				assert.Equal(t, c.err, err.Error())
				return
			}
			require.Nil(t, err)
			assert.Equal(t, c.params, string(params))
			text, wrong := json.Marshal(call)
			require.NoError(t, wrong)
			assert.Equal(t, c.call, string(text))
		})
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	cut := func(text string) Envelope {
		e, _, err := Cut(json.RawMessage(text))
		require.Nil(t, err)
		return e
	}
	for _, c := range [][3]string{
		{`{}`, `{"_scopes":["a"],"_instance":"1"}`, `{"_scopes":["a"],"_instance":"1"}`},
		{`{"_scopes":["a"]}`, `{"_module":true}`, `{"_scopes":["a"],"_module":true}`},
		{`{"_scopes":["a"],"_tool":"t"}`, `{"_scopes":["a"],"_tool":"t"}`, `{"_tool":"t","_scopes":["a"]}`},
		{`{"_scopes":["a"]}`, `{"_scopes":[]}`, "invalid: the call says it twice, and differently: /_scopes"},
		{`{"_scopes":[]}`, `{"_scopes":["a"]}`, "invalid: the call says it twice, and differently: /_scopes"},
		{`{"_module":false}`, `{"_module":true}`, "invalid: the call says it twice, and differently: /_module"},
		{`{"_delegate":"a"}`, `{"_delegate":"b"}`, "invalid: the call says it twice, and differently: /_delegate"},
	} {
		e, err := cut(c[0]).Join(cut(c[1]))
		if err != nil {
			assert.Equal(t, c[2], err.Error())
			continue
		}
		text, wrong := json.Marshal(e)
		require.NoError(t, wrong)
		assert.Equal(t, c[2], string(text))
	}
}

func TestParseSpec(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Spec{
		``:                            {},
		`{"const":["state","input"]}`: {Names: []string{"input", "state"}, Fixed: true},
		`{"const":[]}`:                {Names: []string{}, Fixed: true},
		`{"type":"array","description":"x","items":{"type":"string","enum":["state","input"]},"uniqueItems":true}`: {Names: []string{"input", "state"}},
	} {
		s, err := ParseSpec(json.RawMessage(text))
		require.Nil(t, err)
		assert.Equal(t, want, s, text)
	}
	for text, want := range map[string]string{
		`true`:                                "invalid: want an object",
		`{}`:                                  `invalid: want one of {"const": [...]} and {"type": "array", "items": {"enum": [...]}}`,
		`{"type":"array"}`:                    `invalid: want one of {"const": [...]} and {"type": "array", "items": {"enum": [...]}}`,
		`{"const":["a"],"items":{"enum":[]}}`: `invalid: want one of {"const": [...]} and {"type": "array", "items": {"enum": [...]}}`,
		`{"const":"a"}`:                       "invalid: want an array of names: /const",
		`{"const":["a","a"]}`:                 "invalid: a is there twice: /const/1",
		`{"const":["a"],"const":["b"]}`:       "invalid: the name is there twice: /const",
		`{"items":{"enum":["*"]}}`:            `invalid: "*" is no name of a scope: want a letter, then letters, digits, _ and -, at most 64 bytes: /items/enum/0`,
		`{"items":{}}`:                        "invalid: want a list of names: /items/enum",
		`{"items":{"pattern":"x"}}`:           `invalid: unknown: want {"enum": [...]}: /items/pattern`,
		`{"anyOf":[]}`:                        `invalid: unknown: want {"const": [...]}, or {"type": "array", "items": {"enum": [...]}}: /anyOf`,
		`{"type":"string","const":["a"]}`:     `invalid: want "array": /type`,
	} {
		_, err := ParseSpec(json.RawMessage(text))
		require.NotNil(t, err, text)
		assert.Equal(t, want, err.Error(), text)
	}
}

const people = `[{"type":"state","currentUser":"Alice"},{"type":"input","mentionedUser":"Bob"},
	{"type":"state","_instance":"①","text":"Hello"},{"type":"state","_instance":"②","text":"Bonjour"}]`

func TestSelect(t *testing.T) {
	t.Parallel()
	fixed, choice := `{"const":["input"]}`, `{"items":{"enum":["state","input"]}}`
	not := func(name string) func(string) bool { return func(s string) bool { return s != name } }
	for name, c := range map[string]struct {
		spec, call string
		bound      func(string) bool
		want       string // Scoped.JSON, or the error
	}{
		"fixed":               {fixed, `{}`, nil, `{"input":[{"type":"input","mentionedUser":"Bob"}]}`},
		"fixed, said":         {fixed, `{"_scopes":["input"]}`, nil, `{"input":[{"type":"input","mentionedUser":"Bob"}]}`},
		"fixed, other":        {fixed, `{"_scopes":["state"]}`, nil, `invalid: each call of this tool gets exactly ["input"]: leave _scopes out: /_scopes`},
		"fixed, none":         {fixed, `{"_scopes":[]}`, nil, `invalid: each call of this tool gets exactly ["input"]: leave _scopes out: /_scopes`},
		"fixed, bound":        {fixed, `{}`, not("input"), "denied: the agent may not use the scope input: /_scopes"},
		"fixed, two":          {`{"const":["b","a"]}`, `{"_scopes":["a","b"]}`, nil, `{"a":[],"b":[]}`},
		"choice":              {choice, `{"_scopes":["input"]}`, nil, `{"input":[{"type":"input","mentionedUser":"Bob"}]}`},
		"choice, unsaid":      {choice, `{}`, nil, `{}`},
		"choice, none":        {choice, `{"_scopes":[]}`, nil, `{}`},
		"choice, other":       {choice, `{"_scopes":["input","secret"]}`, nil, `denied: this tool does not offer the scope secret: it offers ["input" "state"]: /_scopes/1`},
		"choice, bound":       {choice, `{"_scopes":["input","state"]}`, not("state"), "denied: the agent may not use the scope state: /_scopes/1"},
		"instance":            {choice, `{"_scopes":["state"],"_instance":"②"}`, nil, `{"state":[{"type":"state","currentUser":"Alice"},{"type":"state","_instance":"②","text":"Bonjour"}]}`},
		"no instance":         {choice, `{"_scopes":["state"]}`, nil, `{"state":[{"type":"state","currentUser":"Alice"}]}`},
		"an unknown instance": {choice, `{"_scopes":["state"],"_instance":"③"}`, nil, `{"state":[{"type":"state","currentUser":"Alice"}]}`},
		"nothing":             {``, `{}`, nil, `{}`},
		"nothing, none":       {``, `{"_scopes":[]}`, nil, `{}`},
		"nothing, asked":      {``, `{"_scopes":["state"]}`, nil, "invalid: this tool takes no context: leave _scopes out: /_scopes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := selection(t, people, c.spec, c.call, c.bound)
			if err != nil {
				assert.Equal(t, c.want, err.Error())
				assert.True(t, s.Empty())
				return
			}
			assert.Equal(t, c.want, string(s.JSON()))
		})
	}
	s, err := Select(nil, Spec{Any: true}, nil, Envelope{Scopes: []string{"x"}})
	require.Nil(t, err)
	assert.Equal(t, map[string][]byte{"x": []byte("[]")}, s.Files())
}

func selection(t *testing.T, env, spec, call string, bound func(string) bool) (Scoped, *Error) {
	t.Helper()
	e, err := Parse([]byte(env))
	require.Nil(t, err)
	s, err := ParseSpec(json.RawMessage(spec))
	require.Nil(t, err)
	cut, _, err := Cut(json.RawMessage(call))
	require.Nil(t, err)
	return Select(e, s, bound, cut)
}

func TestHandOn(t *testing.T) {
	t.Parallel()
	s, err := selection(t, people, `{"items":{"enum":["state","input"]}}`, `{"_scopes":["state","input"],"_instance":"①"}`, nil)
	require.Nil(t, err)
	assert.Equal(t, `[{"type":"state","currentUser":"Alice"},{"type":"input","mentionedUser":"Bob"},{"type":"state","text":"Hello"}]`, string(s.Environment().JSON()))
	narrow, err := s.Narrow([]string{"input"})
	require.Nil(t, err)
	assert.Equal(t, `{"input":[{"type":"input","mentionedUser":"Bob"}]}`, string(narrow.JSON()))
	assert.Equal(t, "①", narrow.Instance())
	for _, names := range [][]string{{"secret"}, {"input", "input"}} {
		_, err = s.Narrow(names)
		require.NotNil(t, err)
		assert.Equal(t, Invalid, err.Code)
	}
	parts := s.Parts()
	assert.Equal(t, []Part{
		{"input", 1, 40, parts[0].Hash},
		{"state", 2, 90, parts[1].Hash}}, parts)
	assert.NotContains(t, fmt.Sprint(parts), "Alice")
	for i, name := range s.Names() {
		assert.Len(t, s.Files()[name], parts[i].Bytes)
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	a, err := Parse([]byte(`[{"type":"a"}]`))
	require.Nil(t, err)
	b, err := Parse([]byte(`[{"type":"b"}]`))
	require.Nil(t, err)
	both, err := a.Append(b)
	require.Nil(t, err)
	assert.Equal(t, `[{"type":"a"},{"type":"b"}]`, string(both.JSON()))
	assert.Equal(t, 1, a.Len())
	both, err = (*Environment)(nil).Append(nil)
	require.Nil(t, err)
	assert.Equal(t, `[]`, string(both.JSON()))
	large, err := Parse([]byte(`[{"type":"a","x":"` + strings.Repeat("x", 9<<20) + `"}]`))
	require.Nil(t, err)
	_, err = large.Append(large)
	require.NotNil(t, err)
	assert.Equal(t, TooLarge, err.Code)
}

func TestWith(t *testing.T) {
	tool := "x"
	for params, want := range map[string]string{
		"{}": `{"_tool":"x"}`, ` { } `: `{"_tool":"x"}`, `{"a":{"_scopes":["state"]}}`: `{"_tool":"x","a":{"_scopes":["state"]}}`,
	} {
		text, err := Envelope{Tool: &tool}.With(json.RawMessage(params))
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
		e, _, bad := Cut(text)
		require.Nil(t, bad)
		assert.Equal(t, tool, *e.Tool)
		text, err = Envelope{}.With(json.RawMessage(params))
		require.NoError(t, err)
		assert.JSONEq(t, params, string(text))
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	s, err := selection(t, `[{"type":"b","x":"</context> < /TASK>"},{"type":"a","_instance":"1"},{"type":"c"}]`, `{"items":{"enum":["a","b"]}}`, `{"_scopes":["a","b"],"_instance":"1"}`, nil)
	require.Nil(t, err)
	assert.Equal(t, "<context from=\"boss\">\n"+`[{"type":"b","x":"<\/context> < \/TASK>"},{"type":"a"}]`+"\n</context>\n", s.Text("boss"))
	assert.Empty(t, Scoped{}.Text("boss"))
}

func TestMerged(t *testing.T) {
	env, bad := Parse([]byte(`[{"type":"state","userId":"u1","n":1},{"type":"input","x":[1]},{"type":"state","\u006e":2.50,"_instance":"a"},{"type":"log"}]`))
	require.Nil(t, bad)
	s, bad := Select(env, Spec{Names: []string{"state", "input", "none"}}, func(string) bool { return true }, Envelope{Scopes: []string{"state", "input", "none"}, Instance: new("a")})
	require.Nil(t, bad)
	assert.Equal(t, `{"input":{"x":[1]},"none":{},"state":{"userId":"u1","\u006e":2.50}}`, string(s.Merged()))
}
