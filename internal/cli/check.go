package cli

import (
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

func (a *app) checkCmd() *cobra.Command {
	var name, opName, address, method string
	var asJSON bool
	reading, changing := operations()
	c := &cobra.Command{
		Use:   "check PATH --agent AGENT|--dir DIR [--op OP] | check --network URL --agent AGENT [--method METHOD]",
		Short: "print the decision about a path or a URL, and its rule",
		Long: `Prints what the policy of an agent decides about an operation on a path of its
view (relative, or below /workspace), and whether links lead outside. It performs no
operation. With --network it prints what the agent's network allows, and connects to
nothing.

Operations that read: ` + reading + `.
Operations that change: ` + changing + `.
unlink and rmdir delete; rename-from is the old name of a rename.

Exit status: 0 allowed, 1 denied or to be approved, 2 bad usage, or the agent does not load.`,
		Args: func(c *cobra.Command, words []string) error {
			if address != "" {
				return exit.Args(cobra.NoArgs)(c, words)
			}
			return exit.Args(cobra.ExactArgs(1))(c, words)
		},
		RunE: func(_ *cobra.Command, words []string) error {
			p, id, err := a.agentOf(name)
			var v *report.Verdict
			switch {
			case err != nil:
			case address != "":
				v, err = report.CheckURL(p, id, address, method, a.sameAgent(name)...)
			default:
				v, err = report.CheckPath(p, id, words[0], opName)
			}
			if err != nil {
				return exit.With(exit.Usage, err)
			}
			if err = a.printLine(v, asJSON); err == nil && v.Verdict != "allow" {
				return exit.With(exit.Failed, nil)
			}
			return err
		},
	}
	c.Flags().StringVar(&name, "agent", "", "whose view")
	c.Flags().StringVar(&opName, "op", "read", "the operation, of those above")
	c.Flags().StringVar(&address, "network", "", "a URL, in place of PATH; https:// may be left out")
	c.Flags().StringVar(&method, "method", http.MethodGet, "the request's, with --network")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	a.completeAgent(c)
	return c
}

// operations returns the values of --op.
func operations() (reading, changing string) {
	var read, change []string
	for _, name := range scope.OpNames() {
		if op, _ := scope.ParseOp(name); op.Mutates() {
			change = append(change, name)
		} else {
			read = append(read, name)
		}
	}
	return strings.Join(read, ", "), strings.Join(change, ", ")
}
