package cli

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/logcmd"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/version"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) auditCmd() *cobra.Command {
	c := logcmd.New(logcmd.Env{In: a.in, Out: a.out, Err: a.err, Named: a.named, Paths: a.paths, All: a.logs,
		Words: a.words, Version: version.Version})
	a.completeAgent(c)
	a.completeSession(c)
	return c
}

// named returns the agent that a name means. For the short name of a project it also makes the command one of that project, as
// --dir does.
func (a *app) named(name string) (string, error) {
	if _, err := a.findProject(name); err != nil { // the log may have an agent that is none any more
		return "", err
	}
	if p, project, err := a.where(); err == nil && project != nil && project.Named(name) && !definitions.Has(p, name) {
		return string(project.ID), nil
	}
	return name, nil
}

// words returns those by which a command names an agent.
func (a *app) words(id scope.ID) []string {
	if _, project, err := a.where(); err == nil && project != nil && project.ID == id {
		return a.sameAgent("")
	}
	return a.sameAgent(string(id))
}

func (a *app) whyCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "why EVENT",
		Short: "explain a decision, and what would change it",
		Long: `Prints a decision of the log, whether anything reached the agent, what the current
rules decide, and the smallest change of the rules that would allow the operation. Of an event of the history it prints what
that did. EVENT is the event's number: the first column of scopefs audit, and seq
in its --json.`,
		Args:              exit.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeEvents,
		RunE: func(c *cobra.Command, words []string) error {
			seq, err := strconv.ParseUint(words[0], 10, 64)
			if err != nil {
				return exit.Usagef("%q is no event: give its number, the first column of scopefs audit", words[0])
			}
			p, _, err := a.existing()
			if err != nil {
				return err
			}
			known := definitions.Read(p, nil)
			r, err := report.Why(c.Context(), p, known, seq)
			if err != nil {
				return err
			}
			r.Suggest(p, known, a.words)
			return a.printLine(r, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
