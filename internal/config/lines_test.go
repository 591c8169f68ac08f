package config

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/hosts"
)

// TestLines: an error names the line of the fault, in a definition, in scopefs.yaml and in a
// preset.
func TestLines(t *testing.T) {
	definition := func(text string) error {
		_, err := agents.ParseDefinition("a.md", []byte(text))
		return err
	}
	host := func(text string) error {
		_, err := Parse([]byte(text), Checks{})
		return err
	}
	preset := func(text string) error {
		_, err := hosts.ParsePreset("p.yaml", []byte(text))
		return err
	}
	for text, c := range map[string]struct {
		parse func(string) error
		want  string
	}{
		"---\nname: a\n\n# Why.\nfoo: 1\n---\n":                          {definition, `agents.d/a.md:5: unknown key "foo"`},
		"---\nname: a\nlimits:\n  pids: 12\n  foo: 1\n---\n":             {definition, `agents.d/a.md:5: unknown key "foo"`},
		"---\nname: a\nlimits:\n  pids: 12\n  memory: [1]\n---\n":        {definition, "agents.d/a.md:5: memory: is a list"},
		"---\nname: a\nview:\n  paths:\n    a: hide\n    b: nope\n---\n": {definition, `agents.d/a.md:6: pattern "b"`},
		"---\nname: a\nlimits:\n  pids: 12\n cpu: 1\nuser: b\n---\n":     {definition, "agents.d/a.md:5: is not YAML"},
		"---\nname: a\nlimits:\n  pids: 12\n\tcpu: 1\n---\n":             {definition, "agents.d/a.md:5: begins with a tab: write spaces"},
		"---\nname: a\ntools: [bash\nuser: b\n---\n":                     {definition, "agents.d/a.md:3: is not YAML"},
		"---\nname: a\nuser: b\nname: a\n---\n":                          {definition, `agents.d/a.md:4: "name" is here twice, first in line 2`},
		"---\nname: a\nview:\n  record: all\n  record: all\n---\n":       {definition, `agents.d/a.md:5: "record" is here twice, first in line 4`},
		"foo: 1\n":                                    {host, `scopefs.yaml:1: unknown key "foo"`},
		"log:\n  keep: 3d\n  foo: 1\n":                {host, `scopefs.yaml:3: unknown key "foo"`},
		"log:\n  keep: 3d\n  size: [1]\n":             {host, "scopefs.yaml:3: size: is a list"},
		"log:\n  keep: 3d\n size: 1GiB\n":             {host, "scopefs.yaml:3: is not YAML"},
		"log: {keep: 3d\nmemory: {}\n":                {host, "scopefs.yaml:1: is not YAML"},
		"log: \"3d\nmemory: {}\n":                     {host, "scopefs.yaml:1: is not YAML"},
		"log: {}\nlog: {}\n":                          {host, `scopefs.yaml:2: "log" is here twice, first in line 1`},
		"description: d\nallow:\n- a.com\n- {b: x}\n": {preset, `p.yaml:4: unknown key "b"`},
		"description: d\nallow:\n - a.com\n- b.com\n": {preset, "p.yaml:4: is not YAML"},
		"description: d\nallow: [a.com]\nfoo: 1\n":    {preset, `p.yaml:3: unknown key "foo"`},
	} {
		assert.ErrorContains(t, c.parse(text), c.want, "%q", text)
	}
}
