package frontmatter

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEdit: an edit changes the bytes of one value, however it is written. Comments, order, spaces and the body stay.
func TestEdit(t *testing.T) {
	hosts, deny, paths := []string{"network", "allow"}, []string{"network", "deny"}, []string{"view", "paths", "a/**"}
	for name, test := range map[string]struct {
		edit         Edit
		before, want string
	}{
		"absent":                {Edit{Keys: hosts, Add: "x.org"}, "name: a # me\n\n# end\n", "name: a # me\nnetwork: {allow: [x.org]}\n\n# end\n"},
		"none":                  {Edit{Keys: hosts, Add: "x.org"}, "network: none  # safe\nname: a\n", "network: {allow: [x.org]}  # safe\nname: a\n"},
		"quoted":                {Edit{Keys: hosts, Add: "x.org"}, "network: 'none'\n", "network: {allow: [x.org]}\n"},
		"beside":                {Edit{Keys: hosts, Add: "x.org"}, "network: {presets: [go] }\n", "network: {presets: [go], allow: [x.org] }\n"},
		"flow":                  {Edit{Keys: hosts, Add: "x.org"}, "network: {allow: [a, 'b,]'] }\n", "network: {allow: [a, 'b,]', x.org] }\n"},
		"flow empty":            {Edit{Keys: hosts, Add: "x.org"}, "network: {allow: []}\n", "network: {allow: [x.org]}\n"},
		"flow of lines":         {Edit{Keys: hosts, Add: "x.org"}, "network:\n  allow: [\n    a, # one ]\n    b\n  ]\n", "network:\n  allow: [\n    a, # one ]\n    b, x.org\n  ]\n"},
		"flow with a comment":   {Edit{Keys: hosts, Add: "x.org"}, "network:\n  allow: [\n    a # one ]\n    ]\n", "network:\n  allow: [\n    a # one ]\n    , x.org]\n"},
		"flow ends in a comma":  {Edit{Keys: hosts, Add: "x.org"}, "network: {allow: [a,]}\n", "network: {allow: [a, x.org]}\n"},
		"block":                 {Edit{Keys: hosts, Add: "x.org"}, "network:\n  allow:\n    - a   # one\n    # two\n    - b\n\n  # three\n  deny: [c]\n", "network:\n  allow:\n    - a   # one\n    # two\n    - b\n    - x.org\n\n  # three\n  deny: [c]\n"},
		"block not indented":    {Edit{Keys: hosts, Add: "x.org"}, "network:\n  allow:\n  - a\nname: b\n", "network:\n  allow:\n  - a\n  - x.org\nname: b\n"},
		"block of mappings":     {Edit{Keys: hosts, Add: "x.org"}, "network:\n  allow:\n    - host: a\n      ca: |\n        x\n    # end\nname: b\n", "network:\n  allow:\n    - host: a\n      ca: |\n        x\n    - x.org\n    # end\nname: b\n"},
		"block mapping":         {Edit{Keys: hosts, Add: "x.org"}, "network:\n  presets: [go]\n# end\n", "network:\n  presets: [go]\n  allow: [x.org]\n# end\n"},
		"CRLF":                  {Edit{Keys: hosts, Add: "x.org"}, "name: a\r\nnetwork:\r\n  allow:\r\n  - a\r\n", "name: a\r\nnetwork:\r\n  allow:\r\n  - a\r\n  - x.org\r\n"},
		"characters":            {Edit{Keys: hosts, Add: "x.org"}, "{description: é„, network: {allow: [ü]}}\n", "{description: é„, network: {allow: [ü, x.org]}}\n"},
		"remove first":          {Edit{Keys: deny}, "network: {deny: [a, b]}\n", "network: {deny: [b]}\n"},
		"remove last":           {Edit{Keys: deny, Index: 1}, "network: {deny: [ a, {host: b, ports: [1, 2]} ]}\n", "network: {deny: [ a]}\n"},
		"remove only":           {Edit{Keys: deny}, "name: a\nnetwork: {allow: [b], deny: [a]}\n", "name: a\nnetwork: {allow: [b]}\n"},
		"remove all":            {Edit{Keys: deny}, "name: a\nnetwork:\n  deny:\n    - a # no\n# end\n", "name: a\n# end\n"},
		"remove a block's item": {Edit{Keys: deny, Index: 1}, "network:\n  deny:\n    - a\n    - host: b\n      ports: [1]\n    # c\n    - c\n", "network:\n  deny:\n    - a\n    # c\n    - c\n"},
		"remove a key":          {Edit{Keys: paths}, "view:\n  access: read\n  paths: {\"a/**\": read, b: hide}\n", "view:\n  access: read\n  paths: {b: hide}\n"},
		"remove the only key":   {Edit{Keys: paths}, "name: a\nview: {paths: {\"a/**\": read}}\n", "name: a\n"},
		"set":                   {Edit{Keys: paths, Set: "hide"}, "view:\n  paths:\n    \"a/**\": read # why\n    b: hide\n", "view:\n  paths:\n    \"a/**\": hide # why\n    b: hide\n"},
		"set a new key":         {Edit{Keys: paths, Set: "hide"}, "view:\n  paths:\n    b: hide\n", "view:\n  paths:\n    b: hide\n    \"a/**\": hide\n"},
		"set a list":            {Edit{Keys: deny, Set: "[d, 'e]']"}, "network: {deny: [a, 'b,]', {c: [1]}] , allow: [x]} # why\n", "network: {deny: [d, 'e]'] , allow: [x]} # why\n"},
		"set an empty list":     {Edit{Keys: deny, Set: "[d]"}, "network:\n  deny: []   # why\n", "network:\n  deny: [d]   # why\n"},
		"set a mapping":         {Edit{Keys: deny[:1], Set: "none"}, "name: a\nnetwork: {deny: [a]} # why\n", "name: a\nnetwork: none # why\n"},
		"set in a new mapping":  {Edit{Keys: paths, Set: "hide"}, "view: {access: read}\n", "view: {access: read, paths: {\"a/**\": hide}}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			const body = "---\nnetwork: {deny: [x]}\n"
			got, err := test.edit.Apply([]byte("\ufeff---\n" + test.before + body))
			require.NoError(t, err)
			assert.Equal(t, "\ufeff---\n"+test.want+body, string(got))
		})
	}
}

// TestEditByHand: what an edit does not know stays as it is.
func TestEditByHand(t *testing.T) {
	for name, front := range map[string]string{
		"a list in place of keys":          "network: [a]\n",
		"keys in place of a list":          "network: {allow: {a: b}}\n",
		"a text in place of keys":          "network: host\n",
		"a text in place of a list":        "network: {allow: x}\n",
		"a text of lines":                  "network: >\n  none\n",
		"no keys":                          "# none\n",
		"a text that looks like a comment": "network:\n  allow:\n    - host: a\n      ca: |\n        x\n\n        # y\n",
	} {
		_, err := Edit{Keys: []string{"network", "allow"}, Add: "x"}.Apply([]byte("---\n" + front + "---\n"))
		assert.ErrorIs(t, err, ErrByHand, name)
	}
	for name, front := range map[string]string{
		"a list of lines": "network: {allow: [a, # why\n  b]}\n",
		"a block":         "network:\n  allow:\n  - a\n",
	} {
		_, err := Edit{Keys: []string{"network", "allow"}, Set: "[x]"}.Apply([]byte("---\n" + front + "---\n"))
		assert.ErrorIs(t, err, ErrByHand, name)
	}
	_, err := Edit{Keys: []string{"network", "deny"}, Index: 0}.Apply([]byte("---\nnetwork: none\n---\n"))
	assert.Error(t, err)
}

// TestQuote: a quoted text is read as it was.
func TestQuote(t *testing.T) {
	for text, want := range map[string]string{
		"example.com": "example.com", ".env": ".env", "*.x": `"*.x"`, "a b": `"a b"`, "1.5": `"1.5"`, "true": `"true"`, "~": `"~"`,
		"-x": `"-x"`, "a: b": `"a: b"`, "a#b": `"a#b"`, "::1": `"::1"`, "é\"\\\n": `"é\"\\\n"`, "": `""`, "null": `"null"`, "2026-01-01": `"2026-01-01"`,
	} {
		assert.Equal(t, want, Quote(text))
		n, err := flowNode("[" + Quote(text) + "]")
		require.NoError(t, err)
		assert.Equal(t, text, n.Content[0].Value)
	}
}

// FuzzEdit edits texts of any kind. What follows the front matter stays, and the new text can be read.
func FuzzEdit(f *testing.F) {
	f.Add("---\nname: a # me\nnetwork:\n  allow:\n    - a\n    - host: b\n---\nbody\n", "network", "allow", "x.org", 0)
	f.Add("---\nview: {paths: {'a/**': read, b: hide}}\n---\n", "view", "paths", "", 0)
	f.Add("---\r\ndescription: é„\r\nlist: [a, 'b,]', ]\r\n---\r\n", "list", "", "[c, d]", 1)
	f.Fuzz(func(t *testing.T, text, first, second, value string, index int) {
		e := Edit{Keys: []string{first}, Add: value, Index: index}
		if second != "" {
			e.Keys = append(e.Keys, second)
		}
		for _, edit := range []Edit{e, {Keys: e.Keys, Set: value, Index: index}} {
			after, err := edit.Apply([]byte(text))
			if err != nil {
				continue
			}
			_, body, err := Cut([]byte(text))
			require.NoError(t, err)
			front, now, err := Cut(after)
			require.NoError(t, err)
			assert.Equal(t, string(body), string(now))
			_, err = Parse(front)
			assert.NoError(t, err)
		}
	})
}
