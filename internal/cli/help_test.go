package cli

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGroups: every command is in a group, and every name of a group is a command.
func TestGroups(t *testing.T) {
	root := Command()
	root.InitDefaultHelpCmd()
	var names []string
	for _, g := range groups {
		names = append(names, strings.Fields(g.commands)...)
	}
	for _, c := range root.Commands() {
		if !c.IsAvailableCommand() && c.Name() != "help" {
			continue
		}
		assert.NotEmpty(t, c.GroupID+map[bool]string{true: "help"}[c.Name() == "help"], c.Name())
		names = slices.DeleteFunc(names, func(name string) bool { return name == c.Name() })
	}
	assert.Empty(t, names)
}

// TestExitTopic: the table of scopefs help exit has every exit status that a command's help names.
func TestExitTopic(t *testing.T) {
	var known []string
	for _, s := range statuses {
		known = append(known, s.status)
	}
	says := regexp.MustCompile(`(?s)Exit status(?:es)?: (.*?)(?:\n\n|$)`)
	number := regexp.MustCompile(`(?:^|[;,.:] |\n)(\d+(?:\+N)?) `)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, text := range says.FindAllStringSubmatch(c.Long, -1) {
			for _, found := range number.FindAllStringSubmatch(text[1], -1) {
				assert.Contains(t, known, found[1], c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(Command())
}

// TestFirst: scopefs without a command says what to type, and the commands that it names are there.
func TestFirst(t *testing.T) {
	var out bytes.Buffer
	a := &app{streams: streams{out: &out, err: &out}}
	root := a.root()
	root.SetArgs(nil)
	require.NoError(t, root.Execute())
	assert.Equal(t, first, out.String())
	for _, line := range regexp.MustCompile(`scopefs ([a-z]+)`).FindAllStringSubmatch(first[strings.Index(first, "\n"):], -1) {
		found, _, err := Command().Find([]string{line[1]})
		require.NoError(t, err)
		if line[1] != "help" {
			assert.Equal(t, line[1], found.Name())
		}
	}
}
