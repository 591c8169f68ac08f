package scope

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGitRulesBare: in a scope that is a repository itself the rules are those of a .git.
func TestGitRulesBare(t *testing.T) {
	rules := GitRules{Hooks: true, Config: []string{"core.bare"}}
	usual := rules
	of, err := Compile(PolicySpec{Git: &usual})
	require.NoError(t, err)
	rules.Bare = true
	bare, err := Compile(PolicySpec{Git: &rules})
	require.NoError(t, err)
	for _, rel := range []string{"HEAD", "config", "config.lock", "hooks", "hooks/x", "hooks/x.sample", "index", "objects/info/alternates", "refs/heads/config",
		"worktrees/w/index", "worktrees/w/commondir", "worktrees/w/hooks/x", "modules/m/config", "commondir", "remotes/x", ".git", StagedGitFile} {
		for op := OpOpenWrite; op < OpIoctl; op++ {
			assert.Equal(t, of.File(op, ".git/"+rel), bare.File(op, rel), "%v %s", op, rel)
		}
		assert.True(t, bare.Repository(rel))
		assert.Equal(t, ".git/"+rel, bare.GitPath(rel))
		assert.Equal(t, rel, of.GitPath(rel))
	}
	assert.True(t, bare.File(OpLookup, "").Allow)
}

// TestGitRules: what may be done to the files of a repository, wherever it is.
func TestGitRules(t *testing.T) {
	p, err := Compile(PolicySpec{Git: &GitRules{Hooks: true, Config: []string{"core.bare"}}})
	require.NoError(t, err)
	every := []Op{OpOpenWrite, OpCreate, OpMkdir, OpMknod, OpSymlink, OpLinkFrom, OpLink, OpUnlink, OpRmdir, OpRenameFrom, OpRename, OpSetattr}
	for rel, kind := range map[string]gitFile{
		".git":                                   gitJudged,
		"vendor/lib/.git":                        gitJudged,
		"a/.GIT":                                 gitJudged,
		"a/git~1":                                gitJudged,
		"a/.g\u200cit. ":                         gitJudged,
		".git/.git":                              gitRefused,
		"x.git/.git":                             gitRefused,
		".git/refs/heads/.git":                   gitRefused,
		".git/modules/logs/config":               gitJudged,
		".git/modules/logs/hooks/update":         gitHook,
		".git/worktrees/refs/config":             gitJudged,
		"a/.git/HEAD":                            gitOther,
		"a/.git/index":                           gitJudged,
		"a/.git/INDEX":                           gitJudged,
		".git/modules/m/index":                   gitJudged,
		"bare.git/worktrees/w/index":             gitJudged,
		"x.git/modules/m/index":                  gitJudged,
		".git/sharedindex.0123":                  gitJudged,
		".git/sharedindex_XyZ":                   gitLock,
		".git/index.lock":                        gitLock,
		".git/config.lock":                       gitLock,
		".git/index.stash.12":                    gitJudged,
		".git/index.stash.12.lock":               gitLock,
		".git/next-index-1.lock":                 gitLock,
		".git/MERGE_RR":                          gitJudged,
		".git/sequencer/opts":                    gitJudged,
		".git/worktrees/w/sequencer/opts.lock":   gitLock,
		".git/sequencer/todo":                    gitOther,
		".git/objects/info/alternates":           gitJudged,
		".git/objects/info/alternates.lock":      gitLock,
		".git/reftable/tables.list":              gitJudged,
		".git/objects/pack/multi-pack-index":     gitRefused,
		".git/objects/pack/multi-pack-index.d/x": gitOther, // its directory cannot be made
		".git/objects/pack/multi-pack-index.d":   gitRefused,
		".git/modules/m/refs/heads/index":        gitOther,
		".git/modules/m/logs/refs/heads/config":  gitOther,
		"a/.git/refs/heads/index":                gitOther,
		"a/.git/remotes":                         gitOther,
		"a/.git/remotes/x":                       gitRefused,
		".git/branches/x":                        gitRefused,
		"x.git/branches/x":                       gitRefused,
		".git/modules/m/remotes/x":               gitRefused,
		"a/.git/hooks/pre-commit.sample":         gitOther,
		"a/.git/refs/heads/hooks":                gitOther,
		"a/.git/refs/heads/x/config":             gitOther,
		"a/.git/logs/refs/heads/config":          gitOther,
		"a/.git/refs/remotes/origin/HEAD":        gitOther,
		"a/.git/objects":                         gitOther,
		"config":                                 gitOther,
		"hooks/pre-commit":                       gitOther,
		"HEAD/x":                                 gitOther,
		"head":                                   gitOther,
		"a/.git/config":                          gitJudged,
		"x.git/config":                           gitJudged,
		".git/modules/a/b/config":                gitJudged,
		".git/worktrees/w/config.worktree":       gitJudged,
		".git/modules/m.git/config":              gitJudged,
		".git/worktrees/w/gitdir":                gitJudged,
		".git/worktrees/w/commondir":             gitJudged,
		".git/modules/m/worktrees/w/commondir":   gitJudged,
		"a/.git/hooks":                           gitHooks,
		".git/modules/m/hooks":                   gitHooks,
		"a/.git/hooks/pre-commit":                gitHook,
		"a/.git/hooks/d/x.sample":                gitHook,
		".git/modules/m/hooks/update":            gitHook,
		".git/commondir":                         gitRefused,
		".git/refs/heads/x/commondir":            gitRefused,
		".git/refs/heads/worktrees/w/commondir":  gitRefused,
		".git/refs/heads/objects":                gitRefused,
		".git/refs/objects":                      gitRefused,
		".git/REFS/objects":                      gitRefused,
		".git/logs/refs/heads/objects/y":         gitRefused,
		"bare/HEAD":                              gitRefused,
		"HEAD":                                   gitRefused,
		".git/" + StagedGitFile:                  gitStaged,
		"a/" + StagedGitFile:                     gitStaged,
	} {
		may := every
		if kind != gitOther {
			may = gitMay[kind]
		}
		assert.Equal(t, kind, classifyGit(rel).kind, rel)
		for _, op := range every {
			d := p.File(op, rel)
			assert.Equal(t, slices.Contains(may, op), d.Allow, "%s %s", op, rel)
			judged := kind == gitJudged && (op == OpRename || op == OpCreate || op == OpOpenWrite)
			assert.Equal(t, judged, d.Judge != 0, "%s %s", op, rel)
			assert.Equal(t, kind == gitLock && (op == OpOpenWrite || op == OpUnlink || op == OpRenameFrom), d.Own, "%s %s", op, rel)
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
		{".git/a", ".git/testing"}: true, {".git/a", "x.git/testing"}: false, {".git/modules/m/t1", ".git/modules/m/testing"}: true,
		{".git/COMMIT_EDITMSG", ".git/worktrees/w/gitdir"}: false, {".git/COMMIT_EDITMSG", "w/.git"}: false, {".git/logs/refs/heads", ".git/modules"}: false, {".git/FETCH_HEAD", ".git/config.lock"}: false,
		{"a", "b"}: true, {".git/a", "b"}: false,
	} {
		assert.Equal(t, may, p.Link(link[0], "", link[1]).Allow, link)
	}
}

// TestProtectPaths: paths that are protected are read-only, and the log has the entry.
func TestProtectPaths(t *testing.T) {
	p, err := Compile(PolicySpec{Paths: []PathRule{{Pattern: "**/.env", Access: Hide}}, Protect: []Protect{{Name: "editor", Paths: []string{"**/.vscode", "**/*.code-workspace"}}}})
	require.NoError(t, err)
	d := p.File(OpCreate, "a/.vscode/tasks.json")
	assert.Equal(t, Decision{Access: Read, Kind: KindProtect, Rule: "protect editor"}, d)
	assert.Equal(t, "remove editor from protect", p.Remedy(OpCreate, "a/.vscode/tasks.json"))
	assert.True(t, p.File(OpOpen, ".vscode/tasks.json").Allow)
	assert.Equal(t, d, p.Link("x", "", "a/.vscode"))
	assert.True(t, p.Link("x", "", "a/.env").Allow, "it is missing there")
	assert.False(t, p.File(OpRename, "x.code-workspace").Allow)
	assert.True(t, p.Move("a").Allow)
	_, err = Compile(PolicySpec{Protect: []Protect{{Name: "editor", Paths: []string{"/x"}}}})
	assert.ErrorContains(t, err, `protect editor: pattern "/x"`)
}

var someKeys = []string{"advice.*", "commit.gpgsign", "extensions.partialclone", "remote.*.promisor", "remote.*.partialclonefilter", "http.version", "core.bare", "core.worktree", "extensions.refstorage", "remote.*.fetch", "remote.*.tagopt", "remote.*.url", "submodule.*.update", "branch.*.remote"}

// TestCheckGit: a config may hold what it held, and what may be set.
func TestCheckGit(t *testing.T) {
	for text, wrong := range map[string]string{
		"":                                  "",
		"[core]\n\tbare = false\n":          "",
		"[core]\nbare":                      "",
		"# [core]\n; x\n[CORE]\nBare=false": "",
		"[remote \"o\"]\n\turl = https://x/y.git\n":                  "",
		"[remote \"o\"]\n\turl = ssh://[::1]/y\n":                    "",
		"[remote \"o\"]\n\turl = \"a;b\"\n":                          "",
		"[alias]\n\tuser = !mine\n":                                  "", // as before
		"[alias]\n\tuser = !other\n":                                 "sets alias.user",
		"[alias]\n\tx = !mine\n":                                     "sets alias.x",
		"[core]\n\tfsmonitor = ./evil\n":                             "sets core.fsmonitor",
		"[core]\n\tfsMonitor = true\n":                               "sets core.fsmonitor",
		"[core]\n\thooksPath = .\n":                                  "sets core.hookspath",
		"[include]\n\tpath = ../evil\n":                              "sets include.path",
		"[includeIf \"gitdir:x\"]\n\tpath = ../evil\n":               "sets includeif.gitdir:x.path",
		"[filter \"x\"]\n\tclean = evil\n":                           "sets filter.x.clean",
		"[core \"x\"]\n\tbare = true\n":                              "sets core.x.bare", // another key
		"[remote]\n\turl = x\n":                                      "sets remote.url",
		"[remote \"o\"]\n\turl = ext::sh -c evil\n":                  "sets remote.o.url",
		"[remote \"o\"]\n\tvcs = evil\n":                             "sets remote.o.vcs",
		"[submodule \"s\"]\n\tupdate = !evil\n":                      "sets submodule.s.update",
		"[submodule \"s\"]\n\tupdate = \"!evil\"\n":                  "sets submodule.s.update",
		"[core]\n\tworktree = hooks\n":                               "sets core.worktree",
		"[remote \"o\"]\n\turl = /workspace/x\n":                     "",
		"[remote \"o\"]\n\turl = ../x\n":                             "",
		"[remote \"o\"]\n\turl = ../../x\n":                          `sets remote.o.url to "../../x": the value is a path of the host`,
		"[remote \"o\"]\n\turl = link/../../x\n":                     "sets remote.o.url",
		"[remote \"o\"]\n\turl = /workspace/../home/x\n":             `sets remote.o.url to "/workspace/../home/x": the value is a path of the host`,
		"[remote \"o\"]\n\turl = ../../x://y\n":                      "sets remote.o.url",
		"[remote \"o\"]\n\turl = a-b+c.d::x\n":                       "sets remote.o.url",
		"[remote \"o\"]\n\turl = hg://x/y\n":                         "sets remote.o.url",
		"[remote \"o\"]\n\turl = git+ssh://x/y\n":                    "",
		"[branch \"b\"]\n\tremote = /home/x\n":                       `sets branch.b.remote to "/home/x": the value is a path of the host`,
		"[branch \"b\"]\n\tremote = origin\n":                        "",
		"[remote \"o\"]\n\turl = me@host:/x\n":                       "",
		"[remote \"o\"]\n\turl = /home/x\n":                          `sets remote.o.url to "/home/x": the value is a path of the host`,
		"[remote \"o\"]\n\turl = /workspaces\n":                      `sets remote.o.url to "/workspaces": the value is a path of the host`,
		"[remote \"o\"]\n\turl = \"~/x\"\n":                          `sets remote.o.url to "~/x": the value is a path of the host`,
		"[remote \"o\"]\n\turl = File:///x\n":                        `sets remote.o.url to "File:///x": the value is a path of the host`,
		"[core] fsmonitor = evil\n":                                  "form that git writes",
		"[core]fsmonitor=evil]\n":                                    "form that git writes",
		"[core \"a\"] fsmonitor = \"b\"]\n":                          "form that git writes",
		"[remote \"o\"]\n\turl = x\\\n[core]\n\tfsmonitor = evil\n":  "form that git writes",
		"[remote \"o\"]\n\turl = \"x\n[core]\n\tfsmonitor = evil\n":  "form that git writes",
		"[remote \"o\"]\n\turl = x ; \\\n":                           "form that git writes",
		"[remote \"o\n[core]\nfsmonitor = evil\n\"]\nurl = x\n":      "form that git writes",
		"bare = true\n":                                              "form that git writes",
		"[core]\n\tbare = false\r[core]\n\tx = y\n":                  "a control character",
		"[core]\n\tbare = false\x00\n":                               "a control character",
		"\ufeff[core]\n\tbare = false\n":                             "byte order mark",
		"[remote \"../../x\"]\n\tfetch = x\n":                        "sets remote.../../x.fetch",
		"[remote \"a::b\"]\n\tfetch = x\n":                           "sets remote.a::b.fetch",
		"[remote \"--upload-pack=x\"]\n\tfetch = x\n":                "sets remote.--upload-pack=x.fetch",
		"[remote \"/x\"]\n\tfetch = x\n":                             `sets remote./x.fetch to "x": the name is a path of the host`,
		"[remote \"a/b\"]\n\tfetch = +refs/heads/*:refs/remotes/*\n": "",
		"[remote \"o\"]\n\ttagopt = --no-tags\n":                     "",
		"[remote \"o\"]\n\turl = --upload-pack=x\n":                  "sets remote.o.url",
		"[remote \"o\"]\n\turl = --tags\n":                           "sets remote.o.url",
		"[remote \"o\"]\n\turl = -\n":                                "sets remote.o.url",
		"[remote \"-1\"]\n\tfetch = x\n":                             "sets remote.-1.fetch",
		"[remote \"o\"]\n\turl = ::x\n":                              "sets remote.o.url",
		"[remote \"../../had\"]\n\tfetch = x\n":                      "sets remote.../../had.fetch",
		"[extensions]\n\trefstorage = files://x\n":                   "sets extensions.refstorage",
		"[advice]\n\tdetachedHead = false\n":                         "",
		"[advice \"x\"]\n\ty = false\n":                              "sets advice.x.y",
		"[http]\n\tversion = HTTP/1.1\n":                             "",
		"[commit]\n\tgpgSign = false\n":                              "",
		"[commit]\n\tgpgSign = true\n":                               `sets commit.gpgsign to "true"`,
		"[commit]\n\tgpgSign\n":                                      "sets commit.gpgsign",
		"[remote \"o\"]\n\turl = file:///workspace/x\n":              "",
		"[remote \"o\"]\n\turl = file:///workspace/../x\n":           "sets remote.o.url",
		"[remote \"o\"]\n\turl = file:///home/x\n":                   `sets remote.o.url to "file:///home/x": the value is a path of the host`,
		"[remote \"o\"]\n\turl = file://workspace/x\n":               "sets remote.o.url",
		"[remote \"o\"]\n\turl = file:/workspace/x\n":                "sets remote.o.url",
		"[remote \"o\"]\n\turl = ssh://-oProxyCommand=x/y\n":         "sets remote.o.url",
		"[remote \"o\"]\n\turl = ssh://me@-oProxyCommand=x/y\n":      "sets remote.o.url",
		"[remote \"o\"]\n\turl = ssh://[-oProxyCommand=x]/y\n":       "sets remote.o.url",
		"[remote \"o\"]\n\turl = me@-oProxyCommand=x:y\n":            "sets remote.o.url",
		"[remote \"o\"]\n\turl = https://x/y\n\tpromisor = true\n\tpartialclonefilter = blob:none\n[extensions]\n\tpartialClone = o\n": "",
		"[remote \"o\"]\n\tpromisor = true\n":                                         "sets remote.o.promisor",
		"[remote \"mine\"]\n\turl = ext::mine\n":                                      "",
		"[remote \"mine\"]\n\turl = ext::mine\n\tpromisor = true\n":                   "sets remote.mine.promisor",
		"[remote \"mine\"]\n\turl = ext::mine\n[extensions]\n\tpartialClone = mine\n": "sets extensions.partialclone",
		"[core.x]\n\tbare = false\n":                                                  "form that git writes",
		"[core]\n\t_bare = x\n":                                                       "form that git writes",
		"[core]\n\tbare = \"a\" \"b\"\n":                                              "form that git writes",
		"[core]\n\tbare = \"a\\\"\n":                                                  "form that git writes",
		"[core]\n\tbare = " + strings.Repeat("x", MaxGitText) + "\n":                  "larger than",
	} {
		err := CheckGit(GitConfig, "a/.git/config", someKeys, []byte("[alias]\n\tuser = !mine\n[remote \"mine\"]\n\turl = ext::mine\n"), []byte(text))
		if wrong == "" {
			assert.NoError(t, err, "%.60q", text)
		} else {
			assert.ErrorContains(t, err, wrong, "%.60q", text)
		}
	}
}

// TestCheckGitPaths: no path leads out of the view, though the directory of the repository
// may move up to the top.
func TestCheckGitPaths(t *testing.T) {
	for file, c := range map[string]struct {
		kind     GitContent
		yes, not []string
	}{
		".git/config":                       {GitConfig, []string{"x", "/workspace/x"}, []string{"../x"}},
		"a/.git/config":                     {GitConfig, []string{"x", "../x"}, []string{"../../x", "x/../../y"}},
		"a/b/.git/config":                   {GitConfig, []string{"../x"}, []string{"../../x"}},
		"a/b/.git/modules/m/config":         {GitConfig, []string{"x"}, []string{"../x"}},
		"x.git/config":                      {GitConfig, []string{"../x"}, []string{"../../x"}},
		"x.git/worktrees/w/config.worktree": {GitConfig, []string{"../x"}, []string{"../../x"}},
		".git/MERGE_RR":                     {GitConflicts, []string{"", "00.1\ta/b\x00", "00\ta\x0001\tb\x00"}, []string{"00\t../x\x00", "00\ta\x00x", "00\t/x\x00", "00\t.git/x\x00"}},
		".git/reftable/tables.list":         {GitTables, []string{"", "0x01-0x02-a.ref\n"}, []string{"../x\n"}},
		".git/objects/info/alternates": {GitAlternates, []string{"", "../../x/.git/objects\n", "/workspace/x.git/objects\n# y\n"},
			[]string{"../../../x\n", "/x\n", "x\n/y\n", "\"/x\"\n", "a:b/../../../../x\n"}},
		"a/b/.git/objects/info/alternates": {GitAlternates, []string{"../../../x"}, []string{"../../../../x"}},
		".git":                             {GitLink, nil, []string{"gitdir: a/.git", "gitdir: .git"}},
		"w/.git": {GitLink, []string{"gitdir: ../.git/worktrees/w\n", "gitdir: /workspace/.git/modules/m", "gitdir: ../b.git\n", "gitdir: x/.git"},
			[]string{"", "gitdir: ../../.git", "gitdir: /x/.git", "gitdir: ../x", "gitdir: ../.git/refs/heads/x", "../.git", "gitdir: ../.git/../../x.git", "gitdir: ..\x00/.git", "gitdir: ..\n/.git"}},
		".git/worktrees/w/gitdir":    {GitWorktree, []string{"/workspace/w/.git\n", "../../../w/.git"}, []string{"../../../../w/.git", "/w/.git", "../../../w/x", ""}},
		".git/worktrees/w/commondir": {GitCommon, []string{"../..\n", "../.."}, []string{"..", "", "../../..", "/workspace/.git"}},
	} {
		check := func(text string) error {
			if c.kind == GitConfig {
				text = "[remote \"o\"]\n\turl = " + text + "\n"
			}
			return CheckGit(c.kind, file, someKeys, nil, []byte(text))
		}
		for _, text := range c.yes {
			assert.NoError(t, check(text), "%s: %q", file, text)
		}
		for _, text := range c.not {
			assert.Error(t, check(text), "%s: %q", file, text)
		}
	}
	for tree, may := range map[string]bool{
		"../../../sub": true, "../../../a/sub": true, "/workspace/sub": true,
		"../../..": false, "../../../": false, "../../../../x": false, "../../sub": false, "../../../.git": false, "../../../x.git/y": false, "/sub": false,
	} {
		err := CheckGit(GitConfig, "a/.git/modules/m/config", someKeys, nil, []byte("[core]\n\tworktree = "+tree+"\n"))
		assert.Equal(t, may, err == nil, tree)
		assert.Error(t, CheckGit(GitConfig, "a/.git/config", someKeys, nil, []byte("[core]\n\tworktree = "+tree+"\n")), tree)
	}
}

// TestCheckGitSame: a setting that a config has may stay with its value. Another text of the
// value is another value.
func TestCheckGitSame(t *testing.T) {
	for name, c := range map[string]struct {
		old, text string
		may       bool
	}{
		"an escape":              {`"!echo one\\ntwo"`, `"!echo one\ntwo"`, false}, // git makes a second line of it
		"an escape, quoted":      {`"!echo one\\ntwo"`, `!echo one\\ntwo`, true},
		"a tab":                  {`"!a\\tb"`, `"!a\tb"`, false},
		"a quote":                {`"!a \"b\""`, `!a \"b\"`, true},
		"empty, so off":          {``, ` `, true},
		"a newline, as before":   {`"!a\nb"`, `"!a\nb"`, true},
		"a space that is quoted": {`"!a "`, `!a `, false},
	} {
		config := func(value string) []byte { return []byte("[alias]\n\tx = " + value + "\n") }
		assert.Equal(t, c.may, CheckGit(GitConfig, ".git/config", someKeys, config(c.old), config(c.text)) == nil, name)
	}
	off, on := []byte("[core]\n\tfsmonitor =\n"), []byte("[core]\n\tfsmonitor\n")
	assert.Error(t, CheckGit(GitConfig, ".git/config", someKeys, off, on), "a key without a value is true")
	for strategy, may := range map[string]bool{"ort": true, "ours": true, "../../evil": false, "evil": false, "": false} {
		text := []byte("[options]\n\tstrategy = " + strategy + "\n\trecord-origin = true\n")
		assert.Equal(t, may, CheckGit(GitConfig, ".git/sequencer/opts", []string{"options.strategy", "options.record-origin"}, nil, text) == nil, strategy)
	}
	description := []byte("[branch \"b\"]\n\tdescription = \"one\\n/two\\n\"\n")
	assert.NoError(t, CheckGit(GitConfig, ".git/config", []string{"branch.*.description"}, nil, description))
}

// TestGitFormat: a config in which git may find another format of objects' names is known, and no config changes the format.
func TestGitFormat(t *testing.T) {
	const other = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n"
	for text, format := range map[string]string{
		"": GitSHA1, "[branch \"sha256\"]\n\tremote = objectformat\n": GitSHA1, other: "sha256", "[extensions]\nobjectformat = sha1\n": GitSHA1,
		"[extensions] objectFormat = sha256\n": "", "\r\n": GitSHA1, other + "\r": "",
	} {
		assert.Equal(t, format, GitFormat([]byte(text)), "%q", text)
	}
	check := func(old, text string) error {
		return CheckGit(GitConfig, "a/.git/config", []string{"core.repositoryformatversion", "extensions.objectformat"}, []byte(old), []byte(text))
	}
	for _, old := range []string{"", "[core]\n\trepositoryformatversion = 1\n", "[extensions] objectformat = sha256\n"} {
		assert.Error(t, check(old, other), old)
	}
	assert.Error(t, check(other, "[core]\n\trepositoryformatversion = 1\n"))
	assert.NoError(t, check(other, other))
	assert.NoError(t, check("", strings.ReplaceAll(other, "sha256", "sha1")))
}

// TestRemedyProtect: a remedy has each list of protect once, whatever refuses.
func TestRemedyProtect(t *testing.T) {
	p, err := Compile(PolicySpec{Git: &GitRules{Hooks: true}, Protect: []Protect{{Name: "git-hooks", Paths: []string{"**/hooks/pre-commit"}}}})
	require.NoError(t, err)
	assert.Equal(t, "remove git-config and git-hooks from protect", p.Remedy(OpCreate, ".git/hooks/pre-commit"))
}
