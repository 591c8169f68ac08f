package approvals

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCommandPatterns: a pattern covers what it says and nothing that a shell or a
// program could make more of.
func TestCommandPatterns(t *testing.T) {
	covered := map[string][]string{
		"git *":            {"git status", "git", " git  log\tmain ", "git commit 'fix: it'", `git commit "a b; c"`, "git show HEAD@1", "git add ./x"},
		"git status **":    {"git status", "git status -s --porcelain", "git status --short src"},
		"git log --stat *": {"git log --stat", "git log --stat main"},
		"git diff --* *":   {"git diff --stat main", "git diff --no-index a b"},
		"go test ./...":    {"go test ./...", "go  test './...'"},
		"cat src/*":        {"cat src/a", "cat 'src/a b'"},
		"cat src/*.go":     {"cat src/a.go", "cat src/.go"},
		"make * install":   {"make a install"},
		"echo a*b*c":       {"echo abc", "echo aXbYc", "echo abbcc"},
	}
	for pattern, commands := range covered {
		assert.NoError(t, checkPattern(KindCommand, pattern))
		for _, c := range commands {
			assert.True(t, matchCommand(pattern, c), "%q %q", pattern, c)
		}
	}
	refused := map[string][]string{
		"git *": {
			"git status; rm -rf /", "git status && rm x", "git status || x", "git status | sh", "git status & rm x", "git status\nrm x", "git status\rrm x",
			"git $(rm x)", "git `rm x`", `git "$(rm x)"`, "git \"`rm x`\"", "git $HOME", "git ${x}", "git $'x'", "git > f", "git >f", "git <f", "git 2>&1", "git <(x)",
			"git -c core.pager=x log", "git log -c x", "git log --output=f", "git log '-p'", `git log "--ext-diff"`, "git -- x", "git +x",
			"gitk", "sh git", "x=1 git status", "GIT_PAGER=x git log", "./git status", "'git' status", `g"i"t status`, `\git status`,
			"git x*", "git ?", "git [a]", "git {a,b}", "git ~", "git !x", "git #x", "git a\\ b", "git (x)", "", " ", "git 'x", "git \"x", "git \u00a0x", "git x\u202e", "git 'x\u202e'", "git '\x1b[2J'",
			"git é", "git 'x\x00'", "git x^y",
		},
		"git status":     {"git status x", "git", "git statusx", "git status -s"},
		"git status **":  {"git stat", "git -c x status"},
		"cat src/*":      {"cat src/../../etc/passwd", "cat src/..", "cat src/a/b", "cat src/a src/b", "cat src", "cat /src/a"},
		"cat *.txt":      {"cat -f.txt", "cat a/b.txt", "cat +x.txt"},
		"cat *":          {"cat -n x"},
		"make * install": {"make install", "make -C install", "make a b install"},
		"echo a*b*c":     {"echo ac", "echo abd", "echo a/b/c"},
		"go test ./...":  {"go test ./... -exec x"},
	}
	for pattern, commands := range refused {
		for _, c := range commands {
			assert.False(t, matchCommand(pattern, c), "%q %q", pattern, c)
		}
	}
	for _, pattern := range []string{"", " ", "*", "**", "* x", "g*t status", "git\tx", "git \x1b"} {
		assert.Error(t, checkPattern(KindCommand, pattern), "%q", pattern)
	}
}

// TestOtherPatterns: a pattern of paths covers what the paths lead to.
func TestOtherPatterns(t *testing.T) {
	for _, c := range []struct {
		kind            Kind
		pattern         string
		subject         string
		object, replace string
		want            bool
	}{
		{KindPath, "src/**", "", "src/a/b", "", true},
		{KindPath, "src/*.go", "", "src/a.go", "", true},
		{KindPath, "src/**", "", "srcx", "", false},
		{KindPath, "src/**", "", "", "", false},
		{KindPath, "src/**", "", ".", "", false},
		{KindPath, "**", "", "x", "", true},
		{KindPath, "src/**", "", "src/a", "src/b", true},
		{KindPath, "src/**", "", "src/a", "etc/b", false},
		{KindPath, "src/**", "", "etc/a", "src/b", false},
		{KindHost, "*.example.org:443", "a.example.org:443", "", "", true},
		{KindHost, "*.example.org:443", "example.org:443", "", "", false},
		{KindHost, "*.example.org:443", "a.example.org:80", "", "", false},
		{KindHost, "*.example.org:*", "a.example.org:80", "", "", true},
		{KindHost, "[::1]:1", "[::1]:1", "", "", true},
		{KindHost, "*.org:443", "a.example.com:443", "", "", false},
		{"", "**", "", "", "", true},
		{"", "x", "", "", "", false},
		{KindCommand, "git *", "", "", "", false}, // there is more to the call than its command
	} {
		p := &Approval{Kind: c.kind, Subject: c.subject, Object: Object{Path: c.object}, ReplacedObject: Object{Path: c.replace}}
		assert.Equal(t, c.want, matches(c.pattern, p), "%+v", c)
	}
	for kind, patterns := range map[Kind][]string{
		KindPath: {"", "../x", "/x", "a\x00", "[", "."}, KindHost: {"", "example.org", "*", "ex ample:1", "http://x:80"}, "": {"", "*", "x"},
	} {
		for _, pattern := range patterns {
			assert.Error(t, checkPattern(kind, pattern), "%q %q", kind, pattern)
		}
	}
}
