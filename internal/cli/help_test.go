package cli

import (
	"bytes"
	"maps"
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

// withoutJSON are the commands without --json, each with the reason.
var withoutJSON = map[string]string{
	"scopefs":                          "it says what to type",
	"scopefs fleet":                    "it has commands below it alone",
	"scopefs audit export":             "--format says which form, JSON among them",
	"scopefs audit head":               "a checkpoint has a form of its own, for witnesses",
	"scopefs audit prove":              "a proof is JSON",
	"scopefs audit check-proof":        "the lines are those of the log, JSON, and the status says the rest",
	"scopefs fleet approvals show":     "what it shows is JSON",
	"scopefs mcp":                      "it speaks JSON",
	"scopefs prompt":                   "the text is for a model",
	"scopefs metrics":                  "the form is that of Prometheus",
	"scopefs show":                     "it prints a file",
	"scopefs presets show":             "it prints a file",
	"scopefs programs show":            "it prints a file",
	"scopefs programs add":             "it prints a file, and asks",
	"scopefs fleet keygen":             "it prints a line for scopefs.yaml",
	"scopefs fleet definitions put":    "scopefs fleet definitions --json has the versions",
	"scopefs fleet definitions remove": "scopefs fleet definitions --json has the versions",
	"scopefs fleet init":               "the status says it all",
	"scopefs down":                     "the status says it all",
	"scopefs forget":                   "the status says it all",
	"scopefs branch remove":            "the status says it all",
	"scopefs console devices remove":   "the status says it all",
	"scopefs daemon":                   "it serves",
	"scopefs csi":                      "it serves",
	"scopefs remedy":                   "it is for scopefs run, which prints the text",
}

// TestJSON: every command that prints data has --json, or is in the list above.
func TestJSON(t *testing.T) {
	var without []string
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		has := c.Flags().Lookup("json") != nil || c.PersistentFlags().Lookup("json") != nil || c.InheritedFlags().Lookup("json") != nil
		if c.Name() == "completion" { // for shells
			return
		}
		if c.Runnable() && !has {
			without = append(without, c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(Command())
	assert.ElementsMatch(t, slices.Collect(maps.Keys(withoutJSON)), without)
}
