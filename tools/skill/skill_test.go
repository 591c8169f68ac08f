package skill

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools"
)

// tree creates {base}/skills with the files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "skills")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for name, text := range files {
		name = filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	return dir
}

func of(dir string, allowed ...string) skills {
	return skills{dir, func() []string { return allowed }, func(name string) scope.Decision {
		for _, a := range allowed {
			if a == name {
				return scope.Decision{Allow: true}
			}
		}
		return scope.Decision{}
	}}
}

func (s skills) ask(t *testing.T, in args) (result, error) {
	t.Helper()
	return s.call(t.Context(), tools.Env{}, in)
}

func TestList(t *testing.T) {
	dir := tree(t, map[string]string{
		"feeds/SKILL.md":   "---\nname: feeds\ndescription: >\n  Check feeds.\n  Daily.\nmetadata: {a: 1}\n---\n# Feeds\n",
		"crlf/SKILL.md":    "\uFEFF---\r\ndescription: Windows\r\n---\r\nx",
		"bare/SKILL.md":    "# no frontmatter\n",
		"broken/SKILL.md":  "---\ndescription: [\n---\n",
		"number/SKILL.md":  "---\ndescription: {a: b}\n---\n",
		"long/SKILL.md":    "---\ndescription: " + strings.Repeat("é", 2000) + "\n---\n",
		"secret/SKILL.md":  "---\ndescription: not for it\n---\n",
		"empty/README.txt": "no skill",
	})
	s := of(dir, "long", "feeds", "crlf", "bare", "broken", "number", "empty", "ghost", "feeds")
	out, err := s.ask(t, args{})
	require.NoError(t, err)
	assert.Equal(t, []entry{
		{"bare", "(no description in SKILL.md)"}, {"broken", "(no description in SKILL.md)"},
		{"crlf", "Windows"}, {"feeds", "Check feeds. Daily."}, {"long", strings.Repeat("é", maxDescription)},
		{"number", "(no description in SKILL.md)"},
	}, out.Skills)
	assert.Contains(t, out.Content()[0].Text, "feeds: Check feeds. Daily.\n")
	s.names = func() []string { return []string{"secret"} }
	out, err = s.ask(t, args{})
	require.NoError(t, err)
	assert.Empty(t, out.Skills, "both must agree")
	assert.Equal(t, "There are no skills.", out.Content()[0].Text)
}

func TestRead(t *testing.T) {
	dir := tree(t, map[string]string{
		"feeds/SKILL.md":       "---\ndescription: d\n---\n# Feeds\n",
		"feeds/ref/format.md":  "the format",
		"feeds/large.txt":      strings.Repeat("x", maxText-1) + "é",
		"feeds/logo.png":       "\x89PNG\x00",
		"feeds/latin1.txt":     "\xe9",
		"secret/SKILL.md":      "hidden",
		"hollow/something.txt": "x",
	})
	require.NoError(t, os.Symlink("format.md", filepath.Join(dir, "feeds/ref/link")))
	require.NoError(t, os.Symlink("ref", filepath.Join(dir, "feeds/dirlink")))
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "feeds/passwd")))
	require.NoError(t, os.Symlink("feeds", filepath.Join(dir, "alias")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "feeds/fifo"), 0o644))
	s := of(dir, "feeds", "alias", "hollow", "ghost", ".", "..", "feeds/ref", "a\x00b")

	out, err := s.ask(t, args{Name: "feeds"})
	require.NoError(t, err)
	assert.Equal(t, "---\ndescription: d\n---\n# Feeds\n", out.Text)
	assert.Equal(t, []string{"large.txt", "latin1.txt", "logo.png", "ref/format.md"}, out.Files)
	assert.Contains(t, out.Content()[0].Text, "Files of this skill: large.txt, ")

	out, err = s.ask(t, args{Name: "feeds", File: "ref/format.md"})
	require.NoError(t, err)
	assert.Equal(t, result{Name: "feeds", Text: "the format"}, out)

	out, err = s.ask(t, args{Name: "feeds", File: "large.txt"})
	require.NoError(t, err)
	assert.True(t, out.Truncated)
	assert.Equal(t, strings.Repeat("x", maxText-1), out.Text, "no half character")

	for in, want := range map[args]struct {
		code tools.Code
		text string
	}{
		{Name: "secret"}:                         {tools.NotFound, `no skill "secret"`},
		{Name: "secret", File: "x"}:              {tools.NotFound, `no skill "secret"`},
		{Name: "ghost"}:                          {tools.NotFound, `no skill "ghost"`},
		{Name: "ghost", File: "x"}:               {tools.NotFound, `no skill "ghost"`},
		{Name: "hollow"}:                         {tools.NotFound, `no skill "hollow"`},
		{Name: "alias"}:                          {tools.NotFound, `no skill "alias"`},
		{Name: "."}:                              {tools.NotFound, `no skill "."`},
		{Name: ".."}:                             {tools.NotFound, `no skill ".."`},
		{Name: "feeds/ref"}:                      {tools.NotFound, `no skill "feeds/ref"`},
		{Name: "a\x00b"}:                         {tools.NotFound, `no skill "a\x00b"`},
		{File: "x"}:                              {tools.Invalid, "file without name"},
		{Name: "feeds", File: "../secret/x"}:     {tools.Invalid, "without '..'"},
		{Name: "feeds", File: "/etc/passwd"}:     {tools.Invalid, "without '..'"},
		{Name: "feeds", File: "."}:               {tools.Invalid, "without '..'"},
		{Name: "feeds", File: "absent"}:          {tools.NotFound, "has no file"},
		{Name: "feeds", File: "ref"}:             {tools.NotFound, "has no file"},
		{Name: "feeds", File: "ref/link"}:        {tools.NotFound, "has no file"},
		{Name: "feeds", File: "dirlink/a"}:       {tools.NotFound, "has no file"},
		{Name: "feeds", File: "passwd"}:          {tools.NotFound, "has no file"},
		{Name: "feeds", File: "fifo"}:            {tools.NotFound, "has no file"},
		{Name: "feeds", File: "SKILL.md/x"}:      {tools.NotFound, "has no file"},
		{Name: "feeds", File: "logo.png"}:        {tools.Invalid, "is not UTF-8 text"},
		{Name: "feeds", File: "latin1.txt"}:      {tools.Invalid, "is not UTF-8 text"},
		{Name: "feeds", File: "a\x00b"}:          {tools.NotFound, "has no file"},
		{Name: "feeds", File: "dirlink/link/no"}: {tools.NotFound, "has no file"},
	} {
		_, err := s.ask(t, in)
		e, ok := errors.AsType[*tools.Error](err)
		if assert.True(t, ok, "%+v: %v", in, err) {
			assert.Equal(t, want.code, e.Code, "%+v", in)
			assert.Contains(t, e.Message, want.text)
			assert.NotContains(t, e.Error(), dir)
		}
	}
}

func TestReadsFresh(t *testing.T) {
	dir := tree(t, map[string]string{"a/SKILL.md": "one"})
	s := of(dir, "a")
	out, err := s.ask(t, args{Name: "a"})
	require.NoError(t, err)
	assert.Equal(t, "one", out.Text)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a/SKILL.md"), []byte("two"), 0o644))
	out, err = s.ask(t, args{Name: "a"})
	require.NoError(t, err)
	assert.Equal(t, "two", out.Text)
}

func TestNoDirectory(t *testing.T) {
	s := of(filepath.Join(t.TempDir(), "absent"), "a")
	out, err := s.ask(t, args{})
	require.NoError(t, err)
	assert.Empty(t, out.Skills)
	_, err = s.ask(t, args{Name: "a"})
	assert.ErrorContains(t, err, `no skill "a"`)
}

func TestTool(t *testing.T) {
	list, err := New(t.TempDir(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "skill", list[0].Name)
	assert.False(t, list[0].Hints.Acts || list[0].Hints.Writes)
	_, target := args{Name: "a", File: "b/c"}.Subject()
	assert.Equal(t, "a/b/c", target)
}

func TestLargestResultsFit(t *testing.T) {
	list, err := New(t.TempDir(), nil, nil)
	require.NoError(t, err)
	schema, err := list[0].Output.Resolve(nil)
	require.NoError(t, err)
	text, err := json.Marshal(result{
		Skills: slices.Repeat([]entry{{Description: strings.Repeat("é", maxDescription)}}, maxSkills),
		Text:   strings.Repeat("x", maxText), Files: make([]string, maxFiles),
	})
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(text, &v))
	assert.NoError(t, schema.Validate(v))
}
