package tools

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An error quotes a bounded part of a value, and says what there is.
func TestSchemaErrorsAreShort(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	for name, c := range map[string]struct {
		args string
		says []string
	}{
		"too long":     {`{"path":"x","text":"` + long + `"}`, []string{"/properties/text: maxLength: ", "2097152 Unicode code points, more than 20"}},
		"wrong type":   {`{"path":["` + long + `"]}`, []string{`/properties/path: type: `, `has type "array", want "string"`}},
		"not one of":   {`{"path":"x","mode":"` + long + `"}`, []string{"/properties/mode: enum: ", "does not equal any of: [a b]"}},
		"in a list":    {`{"path":"x","list":[{"x":"` + long + `"}]}`, []string{"/properties/list/items: type: ", `has type "object", want "string"`}},
		"great number": {`{"path":"x","n":1` + strings.Repeat("0", 1<<20) + `}`, []string{"/properties/n: "}},
		"unknown":      {`{"path":"x","pth":"` + long + `"}`, []string{`"pth" is no property: there are list, mode, n, path, text`}},
		"unknown long": {`{"path":"x","` + long + `":1}`, []string{`is no property: there are list, mode, n, path, text`}},
		"missing":      {`{}`, []string{`required: missing properties: ["path"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &desk{}
			err := caller(t, d.gate(t, ""), echo(t, "bash", Hints{}, nil))("bash", c.args)
			require.Equal(t, Invalid, code(t, err))
			assert.LessOrEqual(t, len([]rune(err.Error())), len("invalid: arguments: ")+200+len(" is no property: there are list, mode, n, path, text"))
			for _, text := range c.says {
				assert.Contains(t, err.Error(), text)
			}
		})
	}
}

// An unknown property of an object in a list is told with that object's own.
func TestUnknownPropertyWithin(t *testing.T) {
	type edit struct {
		Old string `json:"old"`
		New string `json:"new,omitempty"`
	}
	type in struct {
		Edits []edit `json:"edits"`
	}
	tool, err := New("bash", "edits", Hints{}, func(context.Context, Env, in) (echoOut, error) { return echoOut{}, nil })
	require.NoError(t, err)
	d := &desk{}
	err = caller(t, d.gate(t, ""), tool)("bash", `{"edits":[{"old":"a","nwe":"b"}]}`)
	require.Equal(t, Invalid, code(t, err))
	assert.Contains(t, err.Error(), `"nwe" is no property: there are new, old`)
}
