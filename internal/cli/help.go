package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/command"
	"github.com/scopefs/scopefs/internal/exit"
)

// groups are the commands of the list of scopefs help, as a reader looks for them.
var groups = []struct{ title, commands string }{
	{"Run and look", "run call mcp approvals ps top console prompt"},
	{"Rules", "allow deny set check trust presets"},
	{"Changes", "changes undo redo checkpoint show restore branch diff commit discard"},
	{"Agents", "agents programs login token up down kill forget"},
	{"Daemon and fleet", "daemon reload doctor selftest stores metrics fleet csi version completion help"},
	{"Log and proof", "audit why"},
}

// group puts the commands into their groups.
func group(root *cobra.Command) {
	of := map[string]string{}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for name := range strings.FieldsSeq(g.commands) {
			of[name] = g.title
		}
	}
	for _, c := range root.Commands() {
		c.GroupID = of[c.Name()]
	}
	root.SetHelpCommandGroupID(of["help"])
	root.SetCompletionCommandGroupID(of["completion"])
}

// first is what scopefs says without a command.
const first = `scopefs gives every agent its own view of its own files, and a log of what it tried.

In a directory that an agent is to work in:

  scopefs run --dir . -- COMMAND           run a command in its sandbox
  scopefs run --dir . --for claude         run an agent program in it
  scopefs mcp --dir . --install claude     give a program on this host the agent's tools
  scopefs changes --dir .                  what was changed; scopefs undo takes it back
  scopefs audit --denied --dir .           what was refused; scopefs why NUMBER explains it
  scopefs allow NAME --dir .               a host, a tool, a path or a preset of hosts

scopefs doctor says what this host lacks, scopefs help lists all commands.
`

// statuses are the exit statuses of all commands.
var statuses = []struct {
	status  string
	meaning string
}{
	{"0", "success. check: it is allowed. undo, commit: everything was taken"},
	{fmt.Sprint(exit.Failed),
		"failure. check: it is denied, or to be approved. undo, restore, commit: conflicts are left. allow, deny, trust:\n" +
			"nothing was changed. call: the tool failed or was refused. agents, stores, reload: one fails. selftest: something was\n" +
			"reached. doctor: sandboxes lack something. audit verify: the log is not what was recorded"},
	{fmt.Sprint(exit.Usage), "bad usage, or an agent that is unknown or does not load. selftest: no attempt could be made"},
	{fmt.Sprint(exit.Host), "this host can mount no view: daemon, doctor"},
	{fmt.Sprint(exit.Unproved), "audit verify, check-proof: nothing from elsewhere vouches for the lines"},
	{fmt.Sprint(exit.Config), "daemon: its configuration is refused; a service manager need not start it again"},
	{fmt.Sprint(command.TimedOut), "run, call --exit-status: the time limit of the command"},
	{fmt.Sprint(command.RunFailed), "run, call --exit-status: scopefs failed; the command did not run, or its end is unknown"},
	{fmt.Sprint(command.NotExecutable), "run: the command cannot be executed"},
	{fmt.Sprint(command.NotFound), "run: the command does not exist"},
	{"128+N", "run, call --exit-status: signal N ended the command"},
	{"other", "run, call --exit-status: the command's own"},
}

// exitTopic is the help topic of exit statuses.
func exitTopic() *cobra.Command {
	var b strings.Builder
	for _, s := range statuses {
		fmt.Fprintf(&b, "%-6s %s\n", s.status, strings.ReplaceAll(s.meaning, "\n", "\n"+strings.Repeat(" ", 7)))
	}
	return &cobra.Command{Use: "exit", Short: "the exit statuses of all commands", Long: b.String()}
}
