package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/selftest"
)

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestLinks: each relative link of the pages leads to a file and, behind a #, to a heading.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	links := 0
	for _, page := range append(pages, "../../README.md", "../../CONTRIBUTING.md", "../../SECURITY.md") {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, match := range pageLink.FindAllStringSubmatch(string(text), -1) {
			file, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			links++
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if !assert.True(t, exists(target), "%s: %s", page, match[1]) || anchor == "" {
				continue
			}
			text, err := os.ReadFile(target)
			require.NoError(t, err)
			var anchors []string
			for _, heading := range pageHeading.FindAllStringSubmatch(string(text), -1) {
				anchors = append(anchors, anchorOf(heading[1]))
			}
			assert.Contains(t, anchors, anchor, "%s: %s", page, match[1])
		}
	}
	assert.Greater(t, links, 100)
}

// anchorOf returns the anchor of a heading, as GitHub makes it.
func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// TestSecurityNamesTests: every test that SECURITY.md names is there, and it names every attacker of integration/attack and
// every class of scopefs selftest. It marks those that only make test-all runs: they call need.All, or a helper that does.
func TestSecurityNamesTests(t *testing.T) {
	page, err := os.ReadFile("../../SECURITY.md")
	require.NoError(t, err)
	named := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(page), -1)
	assert.Greater(t, len(named), 30)
	attempts, err := selftest.Attempts()
	require.NoError(t, err)
	for _, one := range attempts {
		assert.Regexp(t, `\| (\w+, )*`+one.Class+`(, \w+)* \|`, string(page))
	}
	tests := treeTests(t)
	for _, one := range tests {
		if strings.HasPrefix(one.name, "TestAttack") && one.dir == "integration/attack" {
			assert.Contains(t, named, one.name, "SECURITY.md does not name it")
		}
	}
	for _, name := range named {
		if one, ok := testNamed(t, tests, name); ok {
			assert.Equal(t, one.target != "", strings.Contains(string(page), name+`\*`), "%s: %s runs it: mark with \\* what make test skips", name, one.run())
		}
	}
}
