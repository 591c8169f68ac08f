package house

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write docs/promises.md")

const promisesHead = `# Promises and their tests

This page has the test that holds each promise of [README](../README.md), [SECURITY](../SECURITY.md) and [limits](limits.md), and the
command that runs the test. ` + "`go test -run TestX ./DIRECTORY`" + ` runs one test. ` + "`make test-all`" + ` also runs all that ` + "`make test`" + ` does;
\* marks a test that ` + "`make test`" + ` skips. The page is made from SECURITY.md and ` + "`integration/house/promises.txt`" + `:
` + "`go test ./integration/house -run TestPromises -update`" + `.
`

// promise is a row of docs/promises.md.
type promise struct {
	page, section string // the section is a heading of the page, or the bold beginning of a bullet of README.md
	text          string
	tests         []testFunc
}

// row returns the row: what make test runs comes first.
func (p promise) row() string {
	var dirs, commands []string
	byDir := map[string][]string{}
	tests := slices.Clone(p.tests)
	slices.SortStableFunc(tests, func(a, b testFunc) int { return cmp.Compare(min(len(a.target), 1), min(len(b.target), 1)) })
	for _, one := range tests {
		if !slices.Contains(dirs, one.dir) {
			dirs = append(dirs, one.dir)
		}
		name := one.name
		if one.target != "" {
			name += `\*`
		}
		byDir[one.dir] = append(byDir[one.dir], name)
		if command := "`" + one.run() + "`"; !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	var cells []string
	for _, dir := range dirs {
		cells = append(cells, "`"+dir+"`: "+strings.Join(byDir[dir], ", "))
	}
	return fmt.Sprintf("| %s | %s | %s |\n", p.text, strings.Join(cells, "; "), strings.Join(commands, ", "))
}

// bullet finds the bullets of README.md's section "What it does", and their bold beginnings.
var bullet = regexp.MustCompile(`(?m)^- \*\*([^*]+)\.\*\*`)

// TestPromises: docs/promises.md is what integration/house/promises.txt and SECURITY.md make. Each section of limits.md and each bullet
// of README.md has a promise, each promise a test, and a test that make test skips has a star. -update writes the page.
func TestPromises(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	readme, limits, security := read("../../README.md"), read("../../docs/limits.md"), read("../../SECURITY.md")
	tests := treeTests(t)
	named := func(list, star string) (found []testFunc) {
		for name := range strings.SplitSeq(list, ", ") {
			name, marked := strings.CutSuffix(strings.TrimSpace(name), star)
			if one, ok := testNamed(t, tests, name); ok {
				assert.Equal(t, one.target != "", marked, "%s: %s runs it: a test that make test skips ends in %s", name, one.run(), star)
				found = append(found, one)
			}
		}
		return found
	}

	// anchors has the anchor of each section, and may has those that are no headings.
	anchors := map[string]map[string]string{"README.md": {}, "docs/limits.md": {}}
	var must []promise
	for page, text := range map[string]string{"README.md": readme, "docs/limits.md": limits} {
		for _, heading := range pageHeading.FindAllStringSubmatch(text, -1) {
			anchors[page][heading[1]] = anchorOf(heading[1])
			if page == "docs/limits.md" && heading[1] != "Limits" {
				must = append(must, promise{page: page, section: heading[1]})
			}
		}
	}
	_, what, found := strings.Cut(readme, "\n## What it does\n")
	require.True(t, found)
	what, _, _ = strings.Cut(what, "\n## ")
	for _, one := range bullet.FindAllStringSubmatch(what, -1) {
		anchors["README.md"][one[1]] = "what-it-does"
		must = append(must, promise{page: "README.md", section: one[1]})
	}
	require.Greater(t, len(must), 20)

	var all []promise
	for n, line := range strings.Split(read("promises.txt"), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		cells := strings.Split(line, " | ")
		require.Len(t, cells, 3, "promises.txt:%d: page#section | promise | tests", n+1)
		page, section, _ := strings.Cut(cells[0], "#")
		assert.Contains(t, anchors[page], section, "promises.txt:%d: no such section", n+1)
		one := promise{page, section, cells[1], named(cells[2], "*")}
		assert.NotEmpty(t, one.tests, "promises.txt:%d: a promise has a test", n+1)
		all = append(all, one)
	}
	for _, one := range must {
		assert.True(t, slices.ContainsFunc(all, func(p promise) bool { return p.page == one.page && p.section == one.section }),
			"promises.txt has no promise of %s#%s", one.page, one.section)
	}

	var out strings.Builder
	out.WriteString(promisesHead)
	const columns = "\n| promise | test | run |\n|---|---|---|\n"
	page, section := "", ""
	for _, one := range all {
		if one.page != page {
			page, section = one.page, ""
			fmt.Fprintf(&out, "\n## %s\n", strings.TrimSuffix(strings.TrimPrefix(page, "docs/"), ".md"))
		}
		if one.section != section {
			section = one.section
			link := strings.TrimPrefix("../"+page, "../docs/")
			fmt.Fprintf(&out, "\n### [%s](%s#%s)\n%s", section, link, anchors[page][section], columns)
		}
		out.WriteString(one.row())
	}
	_, table, found := strings.Cut(security, "| attack | layer | class | test |\n|---|---|---|---|\n")
	require.True(t, found)
	fmt.Fprintf(&out, "\n## SECURITY\n\nNone of these [attacks](../SECURITY.md#attack-layer-test) reaches what is outside the agent's scope.\n%s", columns)
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			break
		}
		rows++
		out.WriteString(promise{text: strings.TrimSpace(cells[0]), tests: named(cells[3], `\*`)}.row())
	}
	assert.Greater(t, rows, 15)

	const name = "../../docs/promises.md"
	if *update && !t.Failed() {
		require.NoError(t, os.WriteFile(name, []byte(out.String()), 0o644))
	}
	assert.True(t, out.String() == read(name), "%s differs: go test ./integration/house -run TestPromises -update", name)
}
