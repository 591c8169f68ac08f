package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/printable"
)

func (a *app) setCmd() *cobra.Command {
	var o amendOptions
	var unset bool
	c := &cobra.Command{
		Use:   "set KEY VALUE --agent AGENT|--dir DIR",
		Short: "set a key of an agent's definition",
		Long: `Sets a key of the agent's definition, such as view.changes held or limits.pids 200: shows the
lines and what they allow beyond the rules that hold, asks, and writes them. VALUE is in YAML, in
one line. With --unset KEY the key goes: scopefs set --unset view.secrets. Everything else of the
definition stays as it is. A flag of scopefs run holds for that run, and writes nothing.

Exit status: 0 it is set, 1 nothing was changed, 2 bad usage, or the agent does not load.`,
		Args: exit.Args(cobra.RangeArgs(1, 2)),
		RunE: func(c *cobra.Command, words []string) error {
			if unset != (len(words) == 1) {
				return exit.Usagef("give KEY VALUE, or --unset KEY")
			}
			p, id, err := a.begin(o.agent)
			if err != nil {
				return err
			}
			d, err := amend.Open(p, id)
			if err != nil {
				return err
			}
			said, keys := words[0]+": unset", strings.Split(words[0], ".")
			if unset {
				err = d.Unset(keys)
			} else {
				said, err = words[0]+": "+words[1], d.Set(keys, words[1])
			}
			if err != nil {
				return fmt.Errorf("%s: %w", printable.Text(words[0]), err)
			}
			return a.write(c.Context(), p, id, d, []string{printable.Text(said)}, o)
		},
	}
	o.addWriting(a, c)
	c.Flags().BoolVar(&unset, "unset", false, "remove the key")
	return c
}
