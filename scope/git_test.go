package scope

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
)

// TestGitRules: what may be done to the files of a repository, wherever it is.
func TestGitRules(t *testing.T) {
	p, err := Compile(PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"core.bare"}}})
	require.NoError(t, err)
	every := []Op{OpOpenWrite, OpCreate, OpMkdir, OpMknod, OpSymlink, OpLinkFrom, OpLink, OpUnlink, OpRmdir, OpRenameFrom, OpRename, OpSetattr}
	for rel, may := range map[string][]Op{
		".git":                             {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		"vendor/lib/.git":                  {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		".git/modules/logs/config":         {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		".git/modules/logs/hooks/update":   {},
		".git/worktrees/refs/config":       {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		"a/.git/HEAD":                      every,
		"a/.git/index":                     {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		".git/modules/m/index":             {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		"x.git/src/index":                  every, // of a work tree
		"a/.git/refs/heads/index":          every,
		"a/.git/remotes":                   every,
		"a/.git/remotes/x":                 {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		".git/branches/x":                  {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		"x.git/branches/x":                 {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		".git/modules/m/remotes/x":         {OpMkdir, OpUnlink, OpRmdir, OpSetattr},
		"x.git/src/branches/x":             every,
		"a/.git/hooks/pre-commit.sample":   every,
		"a/.git/refs/heads/hooks":          every,
		"a/.git/refs/heads/x/config":       every,
		"a/.git/logs/refs/heads/config":    every,
		"a/.git/refs/remotes/origin/HEAD":  every,
		"a/.git/objects":                   every,
		"config":                           every,
		"hooks/pre-commit":                 every,
		"HEAD/x":                           every,
		"a/.git/config":                    {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		"x.git/config":                     {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		".git/modules/a/b/config":          {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		".git/worktrees/w/config.worktree": {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		".git/modules/m.git/config":        {OpMkdir, OpUnlink, OpRmdir, OpRename, OpSetattr},
		"a/.git/hooks":                     {OpMkdir, OpRmdir, OpSetattr},
		".git/modules/m/hooks":             {OpMkdir, OpRmdir, OpSetattr},
		"a/.git/hooks/pre-commit":          {},
		"a/.git/hooks/d/x.sample":          {},
		".git/modules/m/hooks/update":      {},
		".git/commondir":                   {OpUnlink, OpRmdir},
		".git/refs/x/commondir":            {OpUnlink, OpRmdir},
		".git/refs/heads/objects":          {OpUnlink, OpRmdir},
		".git/logs/x/objects/y":            {OpUnlink, OpRmdir},
		"bare/HEAD":                        {OpUnlink, OpRmdir},
		"HEAD":                             {OpUnlink, OpRmdir},
		".git/" + StagedGitFile:            {},
	} {
		for _, op := range every {
			d := p.File(op, rel)
			allowed := false
			for _, m := range may {
				allowed = allowed || m == op
			}
			assert.Equal(t, allowed, d.Allow, "%s %s", op, rel)
			assert.Equal(t, op == OpRename && allowed && len(may) == 5, d.Judge != 0, "%s %s", op, rel)
			if !d.Allow {
				assert.Contains(t, p.Remedy(op, rel), "from protect")
			}
		}
		assert.Equal(t, !strings.Contains(rel, StagedGitFile), p.File(OpLookup, rel).Allow, rel)
	}
	for rel, may := range map[string]bool{
		"src": true, "src/.gitignored": true, "a/refs": true, // may hold repositories; their rules move with them
		".git": false, "a/.git": false, "x.git": false, ".git/refs": false, "a/.git/modules/m": false, ".git/objects/x": false,
	} {
		assert.Equal(t, may, p.Move(rel).Allow, rel)
		assert.Equal(t, may, p.RemedyMove(rel) == "", rel)
	}
	assert.False(t, p.Uniform())
	for link, may := range map[[2]string]bool{
		{"a", ".git/config"}: false, {"a", ".git"}: false, {"a", ".git/modules/m"}: false, {"x.git/a", "y/.git/hooks"}: false, {".git/a", ".git/config"}: false,
		{".git/a", ".git/testing"}: true, {"a", "b"}: true, {".git/a", "b"}: true,
	} {
		assert.Equal(t, may, p.Link(link[0], link[1]).Allow, link)
	}
}

// TestProtectPaths: paths that are protected are read-only, and the log has the entry.
func TestProtectPaths(t *testing.T) {
	p, err := Compile(PolicySpec{Paths: []PathRule{{Pattern: "**/.env", Access: Hide}}, Protect: []Protect{{"editor", []string{"**/.vscode", "**/*.code-workspace"}}}})
	require.NoError(t, err)
	d := p.File(OpCreate, "a/.vscode/tasks.json")
	assert.Equal(t, Decision{Access: Read, Kind: KindProtect, Rule: "protect editor"}, d)
	assert.Equal(t, "remove editor from protect", p.Remedy(OpCreate, "a/.vscode/tasks.json"))
	assert.True(t, p.File(OpOpen, ".vscode/tasks.json").Allow)
	assert.Equal(t, d, p.Link("x", "a/.vscode"))
	assert.True(t, p.Link("x", "a/.env").Allow, "it is missing there")
	assert.False(t, p.File(OpRename, "x.code-workspace").Allow)
	assert.True(t, p.Move("a").Allow)
	_, err = Compile(PolicySpec{Protect: []Protect{{"editor", []string{"/x"}}}})
	assert.ErrorContains(t, err, `protect editor: pattern "/x"`)
}

var someKeys = []string{"core.bare", "remote.*.url", "submodule.*.update", "branch.*.remote"}

// TestCheckGitConfig: a config may hold what it held, and what may be set.
func TestCheckGitConfig(t *testing.T) {
	for text, wrong := range map[string]string{
		"":                                  "",
		"[core]\n\tbare = false\n":          "",
		"[core]\nbare":                      "",
		"# [core]\n; x\n[CORE]\nBare=false": "",
		"[remote \"o\"]\n\turl = https://x/y.git\n":                    "",
		"[remote \"o\"]\n\turl = ssh://[::1]/y\n":                      "",
		"[remote \"o\"]\n\turl = \"a;b\"\n":                            "",
		"[alias]\n\tuser = !mine\n":                                    "", // as before
		"[alias]\n\tuser = !other\n":                                   "sets alias.user",
		"[alias]\n\tx = !mine\n":                                       "sets alias.x",
		"[core]\n\tfsmonitor = ./evil\n":                               "sets core.fsmonitor",
		"[core]\n\tfsMonitor = true\n":                                 "sets core.fsmonitor",
		"[core]\n\thooksPath = .\n":                                    "sets core.hookspath",
		"[include]\n\tpath = ../evil\n":                                "sets include.path",
		"[includeIf \"gitdir:x\"]\n\tpath = ../evil\n":                 "sets includeif.gitdir:x.path",
		"[filter \"x\"]\n\tclean = evil\n":                             "sets filter.x.clean",
		"[core \"x\"]\n\tbare = true\n":                                "sets core.x.bare", // another key
		"[remote]\n\turl = x\n":                                        "sets remote.url",
		"[remote \"o\"]\n\turl = ext::sh -c evil\n":                    "sets remote.o.url",
		"[remote \"o\"]\n\tvcs = evil\n":                               "sets remote.o.vcs",
		"[submodule \"s\"]\n\tupdate = !evil\n":                        "sets submodule.s.update",
		"[submodule \"s\"]\n\tupdate = \"!evil\"\n":                    "sets submodule.s.update",
		"[core]\n\tworktree = hooks\n":                                 "sets core.worktree",
		"[remote \"o\"]\n\turl = /workspace/x\n":                       "",
		"[remote \"o\"]\n\turl = ../x\n":                               "",
		"[remote \"o\"]\n\turl = ../../x\n":                            "sets remote.o.url",
		"[remote \"o\"]\n\turl = link/../../x\n":                       "sets remote.o.url",
		"[remote \"o\"]\n\turl = /workspace/../home/x\n":               "sets remote.o.url",
		"[remote \"o\"]\n\turl = ../../x://y\n":                        "sets remote.o.url",
		"[remote \"o\"]\n\turl = a-b+c.d::x\n":                         "sets remote.o.url",
		"[remote \"o\"]\n\turl = hg://x/y\n":                           "sets remote.o.url",
		"[remote \"o\"]\n\turl = git+ssh://x/y\n":                      "",
		"[branch \"b\"]\n\tremote = /home/x\n":                         "sets branch.b.remote",
		"[branch \"b\"]\n\tremote = origin\n":                          "",
		"[remote \"o\"]\n\turl = me@host:/x\n":                         "",
		"[remote \"o\"]\n\turl = /home/x\n":                            "sets remote.o.url",
		"[remote \"o\"]\n\turl = /workspaces\n":                        "sets remote.o.url",
		"[remote \"o\"]\n\turl = \"~/x\"\n":                            "sets remote.o.url",
		"[remote \"o\"]\n\turl = File:///x\n":                          "sets remote.o.url",
		"[core] fsmonitor = evil\n":                                    "form that git writes",
		"[core]fsmonitor=evil]\n":                                      "form that git writes",
		"[core \"a\"] fsmonitor = \"b\"]\n":                            "form that git writes",
		"[remote \"o\"]\n\turl = x\\\n[core]\n\tfsmonitor = evil\n":    "form that git writes",
		"[remote \"o\"]\n\turl = \"x\n[core]\n\tfsmonitor = evil\n":    "form that git writes",
		"[remote \"o\"]\n\turl = x ; \\\n":                             "form that git writes",
		"[remote \"o\n[core]\nfsmonitor = evil\n\"]\nurl = x\n":        "form that git writes",
		"bare = true\n":                                                "form that git writes",
		"[core]\n\tbare = false\r[core]\n\tx = y\n":                    "a control character",
		"[core]\n\tbare = false\x00\n":                                 "a control character",
		"\ufeff[core]\n\tbare = false\n":                               "byte order mark",
		"[core.x]\n\tbare = false\n":                                   "form that git writes",
		"[core]\n\t_bare = x\n":                                        "form that git writes",
		"[core]\n\tbare = \"a\" \"b\"\n":                               "form that git writes",
		"[core]\n\tbare = \"a\\\"\n":                                   "form that git writes",
		"[core]\n\tbare = " + strings.Repeat("x", MaxGitConfig) + "\n": "larger than",
	} {
		err := CheckGitConfig("a/.git/config", someKeys, []byte("[alias]\n\tuser = !mine\n"), []byte(text))
		if wrong == "" {
			assert.NoError(t, err, "%.60q", text)
		} else {
			assert.ErrorContains(t, err, wrong, "%.60q", text)
		}
	}
}

// TestGitDepth: a relative URL may not leave the view from the work tree of its config.
func TestGitDepth(t *testing.T) {
	for rel, depth := range map[string]int{
		".git/config": 0, "a/b/.git/config": 2, "a/.git/modules/m/config": 1, "x.git/config": 1, "a/x.git/config.worktree": 2, "x.git/a/.git/config": 2,
	} {
		assert.Equal(t, depth, gitDepth(rel), rel)
	}
}

// FuzzGitConfig: git finds in a config the settings that we find, if we read it at all.
func FuzzGitConfig(f *testing.F) {
	git := need.Program(f, "git")
	for _, text := range []string{
		"[core]\n\tbare = false\n\tfileMode\n", "[a]\nb = \"c ; d\"\n", "[a \"b \\\\ \\\" c\"]\nd = e\\\\f\n", "[a]\n b = c\td \n", "[A-b \"C\"]\nD-1 = \" e \"\n",
		"[a]\nb = c#d\n", "[a]b=c\n", "[a \"b\"]\n\n\n;x\n#y\n z = \\\"\n", "[a]\nb =\n", "[a]\nb = \\t\\n\\b\n", "[a  \"b\"]\nc=d\n", "[a]\nb=c]\n", "[ a]\nb=c\n", "[a\t\"b\"]\nc=d", "[a \"\"]\nx=y\n",
		"[a]\nb\n[c]\n", "[a]\nb = \"\"\n", "[a]\nb = \"c\"d\n", "[a]\nb c\n", "[a]\nb = c \"d\"\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ours, err := parseGitConfig([]byte(text))
		if err != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "config")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := exec.Command(git, "config", "--no-includes", "-z", "--list", "--file", file).Output()
		if err != nil {
			return // git reads nothing of it
		}
		var keys []string
		for _, s := range ours {
			keys = append(keys, s.key())
		}
		var theirs []string
		for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if key, _, _ := strings.Cut(entry, "\n"); entry != "" {
				theirs = append(theirs, key)
			}
		}
		assert.Equal(t, theirs, keys, "%q", text)
	})
}
