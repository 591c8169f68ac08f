package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/agenttest"
	"github.com/scopefs/scopefs/tools"
)

type entry struct {
	text     string
	modified time.Time
	kind     string
}

// fake implements Files on a map from path to file.
type fake struct {
	files map[string]entry
	fail  map[string]error // by op
	now   time.Time
	ops   []string
	page  int
}

func newFake() *fake {
	return &fake{files: map[string]entry{}, fail: map[string]error{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), page: 1000}
}

func (f *fake) Call(_ context.Context, _ tools.Env, op string, args, out any) error {
	f.ops = append(f.ops, op)
	if err := f.fail[op]; err != nil {
		return err
	}
	var in struct {
		Path, Content, Mode, Pattern, Cursor string
		Fixed                                bool
		Ignore                               bool `json:"ignore_case"`
	}
	text, _ := json.Marshal(args)
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	res, err := f.do(op, in.Path, in.Content, in.Pattern, in.Cursor)
	if err != nil {
		return err
	}
	text, _ = json.Marshal(res)
	return json.Unmarshal(text, out)
}

func (f *fake) do(op, path, content, pattern, cursor string) (any, error) {
	e, ok := f.files[path]
	switch op {
	case "write_file":
		f.now = f.now.Add(time.Hour)
		f.files[path] = entry{content, f.now, "file"}
		return map[string]any{"path": path}, nil
	case "read_file", "delete_file":
		if !ok {
			return nil, tools.Errorf(tools.NotFound, "no such file")
		}
		if op == "delete_file" {
			delete(f.files, path)
		}
		return map[string]any{"text": e.text}, nil
	case "list_dir", "grep":
		if len(f.files) == 0 {
			return nil, tools.Errorf(tools.NotFound, "no such directory")
		}
	}
	var list []map[string]any
	names := slices.Sorted(maps.Keys(f.files))
	if op == "grep" {
		for _, name := range names {
			if n := strings.Count(strings.ToLower(f.files[name].text), pattern); n > 0 {
				list = append(list, map[string]any{"path": name, "count": n})
			}
		}
		return map[string]any{"files": list}, nil
	}
	first := 0
	fmt.Sscan(cursor, &first)
	next := ""
	for i, name := range names[first:] {
		if i == f.page {
			next = fmt.Sprint(first + i)
			break
		}
		e := f.files[name]
		list = append(list, map[string]any{"path": name, "type": e.kind, "size": len(e.text), "modified": e.modified.Format(time.RFC3339Nano)})
	}
	return map[string]any{"entries": list, "next_cursor": next}, nil
}

var here, env = context.Background(), tools.Env{Agent: "tester"}

var codeIs = agenttest.CodeIs

func TestLifeOfANote(t *testing.T) {
	f := newFake()
	m := memory{f}
	list, err := m.list(here, env, listArgs{})
	require.NoError(t, err)
	assert.Empty(t, list.Notes)
	assert.Equal(t, "There are no notes.", list.Content()[0].Text)
	found, err := m.recall(here, env, recallArgs{Query: "x"})
	require.NoError(t, err)
	assert.Equal(t, "No note contains these words.", found.Content()[0].Text)

	out, err := m.remember(here, env, rememberArgs{"build", "make test"})
	require.NoError(t, err)
	assert.Equal(t, remembered{".memory/build.md", true}, out)
	out, err = m.remember(here, env, rememberArgs{"build", "make check"})
	require.NoError(t, err)
	assert.Equal(t, remembered{".memory/build.md", false}, out)
	list, err = m.list(here, env, listArgs{})
	require.NoError(t, err)
	assert.Equal(t, []note{{"build", 10, time.Date(2026, 1, 1, 2, 0, 0, 0, time.UTC)}}, list.Notes)
	assert.Equal(t, "build (10 bytes, 2026-01-01)\n", list.Content()[0].Text)
	found, err = m.recall(here, env, recallArgs{Query: "Check"})
	require.NoError(t, err)
	assert.Equal(t, "# build (2026-01-01)\nmake check\n\n", found.Content()[0].Text)

	gone, err := m.forget(here, env, forgetArgs{"build"})
	require.NoError(t, err)
	assert.Equal(t, "build", gone.Forgotten)
	_, err = m.forget(here, env, forgetArgs{"build"})
	assert.Equal(t, `no note "build"`, codeIs(t, tools.NotFound, err).Message)
}

func TestNames(t *testing.T) {
	f := newFake()
	m := memory{f}
	for _, name := range []string{"", "A", "a b", "../x", "a/b", "é", "a.md", strings.Repeat("a", 65), "a\x00"} {
		_, err := m.remember(here, env, rememberArgs{name, "x"})
		codeIs(t, tools.Invalid, err)
		_, err = m.forget(here, env, forgetArgs{name})
		codeIs(t, tools.Invalid, err)
	}
	assert.Empty(t, f.ops)
}

func TestLimits(t *testing.T) {
	f := newFake()
	f.page = 300
	m := memory{f}
	_, err := m.remember(here, env, rememberArgs{"a", strings.Repeat("é", maxText/2+1)})
	codeIs(t, tools.TooLarge, err)
	for i := range maxNotes {
		f.files[file(fmt.Sprintf("n%04d", i))] = entry{"x", f.now, "file"}
	}
	f.files[".memory/Other.md"] = entry{"x", f.now, "file"}
	f.files[".memory/dir.md"] = entry{"", f.now, "directory"}
	f.files[".memory/dir.md/a.md"] = entry{"x", f.now, "file"}
	list, err := m.list(here, env, listArgs{})
	require.NoError(t, err)
	assert.Len(t, list.Notes, maxNotes)
	_, err = m.remember(here, env, rememberArgs{"one-more", "x"})
	codeIs(t, tools.TooLarge, err)
	_, err = m.remember(here, env, rememberArgs{"n0001", "y"})
	require.NoError(t, err, "a known one is replaced")
	found, err := m.recall(here, env, recallArgs{Query: "x", Limit: 20})
	require.NoError(t, err)
	assert.Len(t, found.Notes, 20)
	f.page = 50
	_, err = m.list(here, env, listArgs{})
	codeIs(t, tools.TooLarge, err)
}

func TestRecallOrder(t *testing.T) {
	f := newFake()
	m := memory{f}
	for _, n := range [][2]string{
		{"both", "the deploy key"}, {"often", "deploy\ndeploy\ndeploy"}, {"older", "key"}, {"newer", "key"},
		{"deploy-host", "10.0.0.1"}, {"nothing", "else"}, {"key", "in the drawer"},
	} {
		_, err := m.remember(here, env, rememberArgs{n[0], n[1]})
		require.NoError(t, err)
	}
	for query, want := range map[string][]string{
		"KEY deploy  key": {"both", "key", "deploy-host", "often", "newer", "older"},
		"key":             {"key", "newer", "older", "both"},
		"deploy-host":     {"deploy-host"},
		"absent":          {},
	} {
		got, err := m.recall(here, env, recallArgs{Query: query, Limit: 20})
		require.NoError(t, err)
		names := []string{}
		for _, n := range got.Notes {
			names = append(names, n.Name)
		}
		if query == "key" { // same count: the latest modification first
			assert.Equal(t, "key", names[0])
			assert.ElementsMatch(t, want, names)
			continue
		}
		assert.Equal(t, want, names, query)
	}
	got, err := m.recall(here, env, recallArgs{Query: "e"})
	require.NoError(t, err)
	assert.Len(t, got.Notes, defaultFound)
}

func TestRecallCuts(t *testing.T) {
	f := newFake()
	m := memory{f}
	long := "x" + strings.Repeat("é", maxExcerpt)
	_, err := m.remember(here, env, rememberArgs{"long", long})
	require.NoError(t, err)
	got, err := m.recall(here, env, recallArgs{Query: "é"})
	require.NoError(t, err)
	assert.True(t, got.Notes[0].Truncated)
	assert.Equal(t, maxExcerpt-1, len(got.Notes[0].Text), "no half character")
	assert.Contains(t, got.Content()[0].Text, "[cut: there is more]")
	got, err = m.recall(here, env, recallArgs{Query: "long"})
	require.NoError(t, err)
	assert.Equal(t, long, got.Notes[0].Text, "a note found by name is whole")
	for _, query := range []string{"", " \n", strings.Repeat("a b c d e f g h i j k l m n o p q ", 1)} {
		_, err := m.recall(here, env, recallArgs{Query: query})
		codeIs(t, tools.Invalid, err)
	}
}

func TestErrorsOfFiles(t *testing.T) {
	denied := tools.Errorf(tools.Denied, "no")
	for op, run := range map[string]func(memory) error{
		"write_file":  func(m memory) error { _, err := m.remember(here, env, rememberArgs{"a", "x"}); return err },
		"list_dir":    func(m memory) error { _, err := m.remember(here, env, rememberArgs{"a", "x"}); return err },
		"delete_file": func(m memory) error { _, err := m.forget(here, env, forgetArgs{"a"}); return err },
		"grep":        func(m memory) error { _, err := m.recall(here, env, recallArgs{Query: "x"}); return err },
		"read_file":   func(m memory) error { _, err := m.recall(here, env, recallArgs{Query: "x"}); return err },
	} {
		f := newFake()
		f.files[file("a")] = entry{"x", f.now, "file"}
		f.fail[op] = denied
		assert.ErrorIs(t, run(memory{f}), denied, op)
	}
	f := newFake()
	f.files[file("a")] = entry{"x", f.now, "file"}
	f.fail["read_file"] = tools.Errorf(tools.NotFound, "gone")
	out, err := memory{f}.recall(here, env, recallArgs{Query: "x"})
	require.NoError(t, err)
	assert.Empty(t, out.Notes)
}

func TestTools(t *testing.T) {
	list, err := New(newFake())
	require.NoError(t, err)
	var names []string
	for _, tool := range list {
		names = append(names, tool.Name)
		assert.Equal(t, tool.Name == "remember" || tool.Name == "forget", tool.Hints.Writes, tool.Name)
	}
	assert.Equal(t, []string{"remember", "recall", "memory", "forget"}, names)
	path, _ := rememberArgs{Name: "a"}.Subject()
	assert.Equal(t, ".memory/a.md", path)
}

// fits requires that a result matches the tool's output schema.
func fits(t *testing.T, tool tools.Tool, out any) {
	t.Helper()
	schema, err := tool.Output.Resolve(nil)
	require.NoError(t, err)
	text, err := json.Marshal(out)
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(text, &v))
	assert.NoError(t, schema.Validate(v), tool.Name)
}

func TestLargestResultsFit(t *testing.T) {
	list, err := New(newFake())
	require.NoError(t, err)
	fits(t, list[0], remembered{})
	fits(t, list[1], recalled{Notes: slices.Repeat([]foundNote{{Text: strings.Repeat("x", maxText)}}, 20)})
	fits(t, list[2], listing{Notes: make([]note, maxNotes)})
	fits(t, list[3], forgotten{})
}
