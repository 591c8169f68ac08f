package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/scope/agents"
	scoped "github.com/scopefs/scopefs/scope/context"
)

func (a *app) promptCmd() *cobra.Command {
	var environment string
	var scopes []string
	c := &cobra.Command{
		Use:   "prompt AGENT|--dir DIR [--context FILE]",
		Short: "print an agent's system prompt, and what it may use",
		Long: `Prints the text of an agent's definition, and below it, in a <scope> block, the
skills, MCP servers, members and contexts that it may use, and what its policy and
limits say.

--context names a file with a JSON array of messages. The prompt has those of the
scopes that the agent may see (its scopes:), or of --scopes, as a runner hands them
to a model.`,
		Args:              ofAgent,
		ValidArgsFunction: a.complete,
		RunE: func(c *cobra.Command, words []string) error {
			_, env, err := readContext(environment)
			if err != nil {
				return err
			}
			p, id, err := a.agentNamed(c.Context(), words...)
			if err != nil {
				return err
			}
			agent, err := definitions.Agent(p, id)
			if err != nil {
				return err
			}
			text := agent.Grants.Prompt()
			if env != nil {
				given, err := promptContext(agent.Grants, env, scopes, c.Flags().Changed("scopes"))
				if err != nil {
					return exit.With(exit.Usage, err)
				}
				text += "\n\n" + strings.TrimSuffix(given.Text(string(agent.Name)), "\n")
			}
			_, err = fmt.Fprintln(a.out, text)
			return err
		},
	}
	c.Flags().StringVar(&environment, "context", "", "a file with the context, a JSON array of messages")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "of --context, these scopes")
	return c
}

// promptContext selects what an agent sees of an environment: the scopes in asked, or
// all that it may see.
func promptContext(g *agents.Grants, env *scoped.Environment, asked []string, said bool) (scoped.Scoped, error) {
	may := func(name string) bool { return g.Context(name).Allow }
	spec := scoped.Spec{Any: true}
	if names, fixed := g.Contexts(); fixed {
		spec = scoped.Spec{Names: slices.Sorted(slices.Values(names)), Fixed: true}
	}
	if !said && !spec.Fixed {
		asked = slices.DeleteFunc(env.Scopes(), func(name string) bool { return !may(name) })
	}
	for _, name := range asked {
		if !scoped.IsName(name) {
			return scoped.Scoped{}, fmt.Errorf("--scopes: %q is no name of a scope", name)
		}
	}
	asked = slices.Compact(slices.Sorted(slices.Values(asked)))
	given, bad := scoped.Select(env, spec, may, scoped.Envelope{Scopes: asked})
	if bad != nil {
		return given, errors.New(bad.Error())
	}
	return given, nil
}

// readContext reads and checks the file of --context; "" is no context.
func readContext(name string) ([]byte, *scoped.Environment, error) {
	if name == "" {
		return nil, nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, exit.With(exit.Usage, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, scoped.MaxBytes+1))
	if err != nil {
		return nil, nil, err
	}
	env, bad := scoped.Parse(text)
	if bad != nil {
		return nil, nil, exit.Usagef("%s: %w", name, errors.New(bad.Error()))
	}
	return text, env, nil
}
