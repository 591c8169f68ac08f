package agents

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
)

const wholeDefinition = `---
name: research-01
description: Reads feeds and writes summaries. # a comment
user: 1000:1000
identity: caller
view:
  access: read
  paths:
    "reference/**": read
    "**/.env": hide
    out/**: write
  hardlinks: deny
  data: mediated
  record: opens
  cache: none
  xattrs: true
  changes: direct
history: {size: 5GiB, age: 90d, exclude: ["node_modules/**"], dir: /srv/history/}
limits: {memory: 2GiB, pids: 256, cpu: 1.5, timeout: 10m}
network: host
durable: false
---

You are a researcher.
---
More.
`

func TestParseDefinition(t *testing.T) {
	cases := map[string]struct {
		text string
		want Definition
	}{
		"whole": {wholeDefinition, Definition{
			Name: "research-01", Description: "Reads feeds and writes summaries.",
			User: "1000:1000", Identity: IdentityCaller,
			View: ViewSpec{
				Access:    scope.Read,
				Paths:     []scope.PathRule{{Pattern: "reference/**", Access: scope.Read}, {Pattern: "**/.env", Access: scope.Hide}, {Pattern: "out/**", Access: scope.Write}},
				Hardlinks: scope.HardlinksDeny, Data: DataMediated, Record: scope.RecordOpens, Cache: CacheNone, XAttrs: true,
			},
			History: History{Bytes: 5 << 30, Age: 90 * 24 * time.Hour, Exclude: []string{"node_modules/**"}, Dir: "/srv/history"},
			Limits:  Limits{Memory: 2 << 30, PIDs: 256, CPU: 1.5, Timeout: 10 * time.Minute},
			Network: hosts.Network{Kind: hosts.HostNetwork}, Durable: new(bool),
			Prompt: "You are a researcher.\n---\nMore.",
		}},
		"defaults": {"---\nname: research-01\n---", Definition{
			Name: "research-01", Identity: IdentityAgent,
			View:    ViewSpec{Access: scope.Write, Hardlinks: scope.HardlinksAllow, Data: DataPassthrough, Record: scope.RecordDenials, Cache: CacheAuto},
			History: History{Percent: 10, Age: 30 * 24 * time.Hour},
		}},
		"kept": {"---\nname: research-01\nview: {changes: kept}\nhistory: {size: 2.5%, age: 12h}\n---", Definition{
			Name: "research-01", Identity: IdentityAgent,
			View:    ViewSpec{Hardlinks: scope.HardlinksAllow, Data: DataPassthrough, Cache: CacheAuto, Changes: ChangesKept},
			History: History{Percent: 2.5, Age: 12 * time.Hour},
		}},
		"other spellings": {"\ufeff--- \r\nname: 'research-01'\r\nuser: 33\r\nview: {allow_other: True}\r\nlimits:\r\n  memory: 16777216\r\n  cpu: 2\r\n---\t\r\nHi\r\n", Definition{
			Name: "research-01", User: "33", Identity: IdentityAgent,
			View:    ViewSpec{Hardlinks: scope.HardlinksAllow, Data: DataPassthrough, Cache: CacheAuto, AllowOther: true},
			History: History{Percent: 10, Age: 30 * 24 * time.Hour},
			Limits:  Limits{Memory: 16 << 20, CPU: 2},
			Prompt:  "Hi",
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseDefinition("/base/agents.d/research-01.md", []byte(c.text))
			require.NoError(t, err)
			assert.Equal(t, &c.want, got)
		})
	}
}

func TestParseDefinitionErrors(t *testing.T) {
	cases := map[string]struct {
		keys string // from line 3 on, after the name
		want string // of the error, after "agents.d/a.md:"
	}{
		"unknown key":          {"tols: []", `3: unknown key "tols": did you mean tools`},
		"no switch":            {"view:\n  xattrs: maybe", `4: xattrs: `},
		"unknown key below":    {"view:\n  acces: read", `4: unknown key "acces": did you mean access`},
		"key twice":            {"user: a\nuser: b", `4: "user" is here twice, first in line 3: remove one`},
		"pattern twice":        {"view:\n  paths:\n    a: read\n    \"a\": hide", `6: "a" is here twice`},
		"bad glob":             {"view:\n  paths:\n    a: read\n    \"a/[\": hide", `6: pattern "a/[": has a bracket`},
		"bad access":           {"view:\n  paths:\n    a: deny", `5: pattern "a": unknown access "deny": want write, hold, read, ask, seal or hide`},
		"quiet":                {"view:\n  paths:\n    a: {access: hide, quiet: true}", `5: pattern "a": takes no keys: remove quiet and access, and write "a": hide, ask, read or write`},
		"hide by default":      {"view: {access: hide}", "3: access: hide would leave no view: want write or read"},
		"pattern unquoted":     {"view:\n  paths:\n    **/.env: hide", "a pattern that starts with * needs quotes"},
		"pattern is a number":  {"view:\n  paths:\n    5: hide", "5: the key is a number: want a text"},
		"number for text":      {"description: 5", "3: description: is a number: want a text"},
		"nothing":              {"view:", "3: view: is empty: want keys with values"},
		"list":                 {"view: []", "3: view: is a list: want keys with values"},
		"list for network":     {"network: []", "3: network: is a list: write network: {allow: []}"},
		"unknown value":        {"network: some", `3: network: unknown "some": want one of [none host]`},
		"tagged":               {"description: !x a", "3: description: is !x: want"},
		"binary":               {"description: !!binary YQ==", "3: description: is !!binary: want"},
		"anchor":               {"description: &a b", "3: anchors and aliases are not read: write"},
		"alias":                {"description: &a b\nuser: *a", "3: anchors and aliases are not read: write"},
		"merge":                {"<<: {user: a}", "3: the key is !!merge: want"},
		"second document":      {"...\n--- a", "a second YAML document: keep one"},
		"no YAML":              {"a: [", "is not YAML, "},
		"dir is relative":      {"dir: src", `3: dir: "src" is no absolute path: write one, or one below ~/`},
		"dir of another's":     {"dir: ~eve/src", `3: dir: "~eve/src" is no absolute path`},
		"dir holds a NUL":      {`dir: "/a\0b"`, `3: dir: "/a\x00b" is no absolute path`},
		"dir is a home":        {"dir: ~", `3: dir: is empty: want the absolute path of a directory, or ~/PATH`},
		"protects nothing":     {"protect: [hooks]", `3: protect: "hooks" matches no list (there is build, editor, git-config, git-hooks, mcp, scopefs, shell): correct it, or create protect.d/hooks.yaml`},
		"user with a space":    {"user: a b", `3: user: "a b" is no user: want`},
		"user is minus one":    {"user: 4294967295", `3: user: "4294967295" is no user: want`},
		"user below zero":      {"user: -1", `3: user: "-1" is no user: want a name, a uid or uid:gid, numbers from 0 to 4294967294`},
		"group below zero":     {"user: '5:-1'", `3: user: "5:-1" is no user: want`},
		"user and no group":    {"user: '5:'", `3: user: "5:" is no user: want`},
		"name and group":       {"user: a:b", `3: user: "a:b" is no user: want`},
		"record":               {"view: {record: none}", `3: record: unknown record "none": want denials`},
		"memory unit":          {"limits: {memory: 2GB}", `3: memory: "2GB" is no size: write`},
		"memory overflow":      {"limits: {memory: 9999999999GiB}", "is no size: write"},
		"memory too little":    {"limits: {memory: 16383KiB}", `3: memory: "16383KiB" is too little for a sandbox to start: want 16MiB or more`},
		"view too little":      {"limits: {view_memory: 1KiB}", `3: view_memory: "1KiB" is too little for a view: want 1MiB or more`},
		"files too few":        {"limits: {open_files: 3}", `3: open_files: "3" is too few for programs to run: want 64 or more`},
		"cpu too little":       {"limits: {cpu: 0.0099}", `3: cpu: "0.0099" is less than can be enforced: want 0.01 or more`},
		"memory below zero":    {"limits: {memory: -1}", "is no size: write"},
		"pids are text":        {"limits: {pids: '5'}", "3: pids: is a text: want a number"},
		"pids are broken":      {"limits: {pids: 2.5}", "3: pids: is a number: want a number without"},
		"no pids":              {"limits: {pids: 0}", `3: pids: "0" is not above zero: drop`},
		"cpu infinite":         {"limits: {cpu: .inf}", "is no number of processors: write"},
		"timeout has no unit":  {"limits: {timeout: 10}", `3: timeout: "10" is no duration: write`},
		"timeout below zero":   {"limits: {timeout: -1s}", "is not above zero: drop"},
		"unknown changes":      {"view: {changes: keep}", `3: changes: unknown "keep": want one of [direct kept held auto]`},
		"kept for callers":     {"identity: caller\nview: {changes: kept}", `1: changes: kept needs identity: agent: remove identity, or write changes: direct`},
		"auto for callers":     {"identity: caller\nview: {changes: auto}", `1: changes: auto needs identity: agent`},
		"history of all":       {"history: {size: 101%}", `3: size: "101%" is no part of a file system: write one such as 10%`},
		"history of nothing":   {"history: {size: 0%}", `3: size: "0%" is no part`},
		"history has a unit":   {"history: {size: 5GB}", `3: size: "5GB" is no size: write`},
		"history too little":   {"history: {size: 4096}", `3: size: "4096" is too little for a history: want 1MiB or more`},
		"history too short":    {"history: {age: 10m}", `3: age: "10m" is too short: want 1h or more`},
		"history's age":        {"history: {age: forever}", `3: age: "forever" is no time: write one such as 30d or 12h`},
		"history's dir":        {"history: {dir: history}", `3: dir: "history" is no absolute path`},
		"history's glob":       {"history:\n  exclude: [\"a/[\"]", `4: exclude: pattern "a/[": has a bracket`},
		"too many keys":        {strings.Repeat("# long\n", frontmatter.MaxKeys/7+1), "1: has more than 65536 bytes of keys: shorten"},
		"control in a key":     {`"a\e[0m\nb": 1`, `3: unknown key "a\x1b[0m\nb": want`},
		"too deep":             {"view: " + strings.Repeat("[", 20_000), "is not YAML, "},
		"too many once spread": {"view:\n  paths:\n" + manyBraces(), "1: pattern "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			def, err := ParseDefinition("a.md", []byte("---\nname: a\n"+c.keys+"\n---\n"))
			assert.Nil(t, def)
			requireDefinitionError(t, err, "agents.d/a.md:", c.want)
		})
	}
}

func manyBraces() string {
	var b strings.Builder
	for i := range 50 {
		b.WriteString(`    "` + strings.Repeat("{a,b}", 8) + strings.Repeat("x", i) + "\": read\n")
	}
	return b.String()
}

func TestParseDefinitionFileErrors(t *testing.T) {
	cases := map[string]struct{ file, text, want string }{
		"bad id":          {"A.md", "---\nname: A\n---\n", `A.md: invalid agent id "A": want`},
		"bad id in name":  {"a.md", "---\nname: A\n---\n", `a.md:2: name: invalid agent id "A": want`},
		"another name":    {"a.md", "---\nname: b\n---\n", `a.md:2: name: "b" is not what the file is named after: write a`},
		"no name":         {"a.md", "---\nuser: b\n---\n", "a.md:1: name is missing: add name: a"},
		"no keys":         {"a.md", "---\n---\n", "a.md:1: name is missing: add name: a"},
		"only a comment":  {"a.md", "---\n# hi\n---\n", "a.md:"},
		"a list":          {"a.md", "---\n- a\n---\n", "a.md:2: is a list: want keys"},
		"no definition":   {"a.txt", "", "a.txt: is no definition: name it"},
		"empty":           {"a.md", "", "a.md:1: is empty: put"},
		"blank":           {"a.md", "\ufeff \n", "a.md:1: is empty: put"},
		"no front matter": {"a.md", "# Hi\n", "a.md:1: does not start with a --- line: put"},
		"no end":          {"a.md", "---\nname: a\n", "a.md:1: has no second --- line: end"},
		"not UTF-8":       {"a.md", "---\nname: a\n---\n\xff", "a.md: is not UTF-8: save"},
		"large":           {"a.md", strings.Repeat("a", folder.MaxSize+1), "a.md: is larger than 1048576 bytes: shorten"},
		"odd file name":   {"a\n\x1b.md", "", `a\u000a\u001b.md: invalid agent id`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			def, err := ParseDefinition(c.file, []byte(c.text))
			assert.Nil(t, def)
			requireDefinitionError(t, err, "agents.d/", c.want)
		})
	}
	_, err := ParseDefinition("a.md", []byte("---\nname: a\ndescription: [b\n---\n"))
	assert.NotContains(t, err.Error(), "needs quotes")
	_, err = ParseDefinition("A.md", nil)
	assert.ErrorIs(t, err, scope.ErrInvalidID)
}

// requireDefinitionError wants one printable line that gives a remedy.
func requireDefinitionError(t testing.TB, err error, parts ...string) {
	t.Helper()
	var e *fields.FileError
	require.ErrorAs(t, err, &e)
	line := err.Error()
	for _, part := range parts {
		require.Contains(t, line, part)
	}
	odd := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) })
	require.Negative(t, odd, "%q", line)
	require.GreaterOrEqual(t, strings.Count(line, ": "), 2, "no remedy: %v", line)
}

func TestLoad(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "agents.d")
	require.NoError(t, os.Mkdir(dir, 0o755))
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	valid := func(id string) string { return "---\nname: " + id + "\n---\nHi" }
	write("a.md", valid("a"))
	write("b.md", valid("b"))
	write("bad.md", valid("worse"))
	write("README.txt", "no definition")
	write(".a.md", "an editor's")
	write("target", valid("link"))
	write("twice", valid("hard"))
	require.NoError(t, os.Symlink("target", filepath.Join(dir, "link.md")))
	require.NoError(t, os.Link(filepath.Join(dir, "twice"), filepath.Join(dir, "hard.md")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo.md"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir.md"), 0o755))
	write("large.md", valid("large")+strings.Repeat("a", folder.MaxSize))

	all, errs := Load(base, Host{Tools: ours()})
	assert.Len(t, all.Agents, 2)
	assert.Equal(t, "Hi", all.Agents["a"].Prompt)
	assert.Equal(t, scope.ID("b"), all.Agents["b"].Name)
	want := []string{
		`agents.d/bad.md:2: name: "worse" is not`,
		"agents.d/dir.md: is no regular file: remove it",
		"agents.d/fifo.md: is no regular file: remove it",
		"agents.d/hard.md: has 2 names, and one may be in a view: replace it by a copy",
		"agents.d/large.md: is larger than",
		"agents.d/link.md: is a symbolic link: put the file itself here",
	}
	require.Len(t, errs, len(want))
	for i, err := range errs {
		requireDefinitionError(t, err, want[i])
	}
}

func TestLoadPlace(t *testing.T) {
	cases := map[string]struct {
		dirs []string
		link string // what agents.d leads to
		want string
	}{
		"missing":          {[]string{"agents"}, "", "does not exist: create it"},
		"plain":            {[]string{"agents", "agents.d"}, "", ""},
		"no views yet":     {[]string{"agents.d"}, "", ""},
		"link elsewhere":   {[]string{"agents", "etc"}, "etc", ""},
		"link to a like":   {[]string{"agents", "agents-old"}, "agents-old", ""},
		"link to a view":   {[]string{"agents/a"}, "agents/a", "is inside the views"},
		"link to views":    {[]string{"agents"}, "agents", "is inside the views"},
		"link in a circle": {[]string{"agents"}, "agents.d", "make it a directory"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			for _, d := range c.dirs {
				require.NoError(t, os.MkdirAll(filepath.Join(base, d), 0o755))
			}
			if c.link != "" {
				require.NoError(t, os.Symlink(c.link, filepath.Join(base, "agents.d")))
			}
			all, errs := Load(base, Host{Tools: ours()})
			assert.NotNil(t, all.Agents)
			assert.Empty(t, all.Agents)
			if c.want == "" {
				assert.Empty(t, errs)
				return
			}
			require.Len(t, errs, 1)
			assert.ErrorContains(t, errs[0], c.want)
		})
	}
	t.Run("views are a link", func(t *testing.T) {
		base := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(base, "real", "a"), 0o755))
		require.NoError(t, os.Symlink("real", filepath.Join(base, "agents")))
		require.NoError(t, os.Symlink("real/a", filepath.Join(base, "agents.d")))
		_, errs := Load(base, Host{Tools: ours()})
		require.Len(t, errs, 1)
		assert.ErrorContains(t, errs[0], "is inside the views")
	})
}

func FuzzParseDefinition(f *testing.F) {
	f.Add("research-01.md", wholeDefinition)
	for _, keys := range []string{"", "0:\n0:", "view: &a [*a]", "? [a]\n: b", "view: {paths: {\"{a,b}/[!c]\": hide}}", "!!map {}", "%YAML 1.2", "limits: {cpu: 1e3}", "a: |\n  b\n c", "...\n--- b"} {
		f.Add("a.md", "---\nname: a\n"+keys+"\n---\nHi")
	}
	f.Fuzz(func(t *testing.T, file, text string) {
		def, err := ParseDefinition(file, []byte(text))
		if err != nil {
			if def != nil || !errors.As(err, new(*fields.FileError)) {
				t.Fatal(def, err)
			}
			requireDefinitionError(t, fields.EachError(err)[0])
			return
		}
		if string(def.Name)+".md" != filepath.Base(file) {
			t.Fatalf("%q defines %q", file, def.Name)
		}
		if _, err := scope.Compile(def.View.PolicySpec()); err != nil {
			t.Fatal(err)
		}
	})
}
