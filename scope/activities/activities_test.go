package activities

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/catalog"
)

const aTool = `{"description": "d", "inputSchema": {"type": "object"}}`

func TestActivities(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string // "x" is executable
		want  []string          // names, "+" with a program
		errs  []string
	}{
		"none":          {nil, nil, nil},
		"latent":        {map[string]string{"a.json": aTool}, []string{"a"}, nil},
		"a program":     {map[string]string{"a.json": aTool, "a": "x"}, []string{"a+"}, nil},
		"hidden":        {map[string]string{".a.json": "{"}, nil, nil},
		"no JSON":       {map[string]string{"a.json": "{\n\n]"}, nil, []string{"activities.d/a.json:3: invalid: no JSON: invalid character ']' looking for beginning of object key string: correct it"}},
		"twice":         {map[string]string{"a.json": `{"description": "d", "description": "e"}`}, nil, []string{"activities.d/a.json: invalid: the name is there twice: /description: correct it"}},
		"unknown":       {map[string]string{"a.json": "{\n\"activity\": 1}"}, nil, []string{`activities.d/a.json:2: json: unknown field "activity": it has name, title, description, inputSchema, annotations and workspace`}},
		"another name":  {map[string]string{"a.json": "{\"name\": \"b\",\n\"description\": \"d\"}"}, nil, []string{`activities.d/a.json:1: name: "b" is not what the file is named after: write a, or rename the file`}},
		"no schema":     {map[string]string{"a.json": `{"description": "d"}`}, nil, []string{`activities.d/a.json:1: inputSchema is missing: write {"type": "object", "properties": {...}}`}},
		"a bad schema":  {map[string]string{"a.json": "{\"description\": \"d\",\n\"inputSchema\": {\"bad\": 1}}"}, nil, []string{"activities.d/a.json:2: bad schema: correct it"}},
		"a bad name":    {map[string]string{"..a b.json": aTool, "é.json": aTool}, nil, []string{"activities.d/é.json: is named like no tool: write a letter, then letters, digits, _ and -, then .json"}},
		"taken":         {map[string]string{"bash.json": aTool, "shell.json": aTool, "mcp.json": aTool}, nil, []string{"activities.d/bash.json: bash is the name of another tool: rename the file", "activities.d/mcp.json: mcp is the name of another tool: rename the file", "activities.d/shell.json: shell is the name of another tool: rename the file"}},
		"undeclared":    {map[string]string{"a": "x"}, nil, []string{"activities.d/a: declares nothing: add a.json, or remove it"}},
		"not executed":  {map[string]string{"a.json": aTool, "a": "644"}, nil, []string{"activities.d/a.json: the program a cannot be executed by agents: chmod a+rx, or remove it"}},
		"writable":      {map[string]string{"a.json": aTool, "a": "777"}, nil, []string{"activities.d/a.json: the program a can be written by others: chmod go-w"}},
		"a link":        {map[string]string{"a.json": aTool, "a": "-> /bin/sh"}, nil, []string{"activities.d/a.json: the program a: is a symbolic link: put the program itself here"}},
		"a linked text": {map[string]string{"a.json": "-> /etc/passwd"}, nil, []string{"activities.d/a.json: is a symbolic link: put the file itself here"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := t.TempDir()
			for file, text := range c.files {
				plantActivity(t, base, file, text)
			}
			all, errs := reloadActivities(base, Set{})
			var got, told []string
			for _, a := range all.All {
				if a.Program {
					a.Name += "+"
				}
				got = append(got, a.Name)
			}
			for _, err := range errs {
				told = append(told, err.Error())
			}
			assert.Equal(t, c.want, got)
			assert.Equal(t, c.errs, told)
		})
	}
}

func reloadActivities(base string, last Set) (Set, []error) {
	return last.Reload(base, catalog.Tools{{Name: "bash", Aliases: []string{"shell"}}}, func(a Activity) error {
		if strings.Contains(string(a.Schema), "bad") {
			return errors.New("bad schema: correct it")
		}
		return nil
	})
}

func plantActivity(t *testing.T, base, file, text string) {
	t.Helper()
	name := filepath.Join(base, "activities.d", file)
	require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
	if to, link := strings.CutPrefix(text, "-> "); link {
		require.NoError(t, os.Symlink(to, name))
		return
	}
	mode := map[string]os.FileMode{"x": 0o755, "777": 0o777}[text] | 0o644
	require.NoError(t, os.WriteFile(name, []byte(text), mode))
	require.NoError(t, os.Chmod(name, mode))
}

func TestActivitiesReload(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	plantActivity(t, base, "a.json", aTool)
	plantActivity(t, base, "a", "x")
	first, errs := reloadActivities(base, Set{})
	require.Empty(t, errs)
	same, _ := reloadActivities(base, first)
	assert.True(t, first.Equal(same))
	f, err := first.All[0].Open(base)
	require.NoError(t, err)
	f.Close()
	plantActivity(t, base, "a.json", "{")
	kept, errs := reloadActivities(base, first)
	assert.Len(t, errs, 1)
	assert.True(t, first.Equal(kept), "the last good state stays")
	plantActivity(t, base, "a.json", aTool)
	require.NoError(t, os.Remove(filepath.Join(base, "activities.d", "a")))
	plantActivity(t, base, "a", "x")
	_, err = first.All[0].Open(base)
	require.ErrorContains(t, err, "has changed since it was loaded")
	changed, errs := reloadActivities(base, kept)
	require.Empty(t, errs)
	assert.False(t, first.Equal(changed), "another program")
	require.NoError(t, os.RemoveAll(filepath.Join(base, "activities.d")))
	gone, errs := reloadActivities(base, changed)
	assert.Empty(t, errs)
	assert.Empty(t, gone.All)
	require.NoError(t, os.MkdirAll(filepath.Join(base, "agents", "x"), 0o755))
	require.NoError(t, os.Symlink(filepath.Join(base, "agents", "x"), filepath.Join(base, "activities.d")))
	_, errs = reloadActivities(base, gone)
	require.Len(t, errs, 1)
	assert.Contains(t, errs[0].Error(), "inside the views")
}
