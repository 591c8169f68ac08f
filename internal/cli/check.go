package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/session"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/stores"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/activities"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// verdict is the output of check.
type verdict struct {
	Agent   scope.ID `json:"agent"`
	Path    string   `json:"path"`    // or the URL
	Op      string   `json:"op"`      // or the method
	Verdict string   `json:"verdict"` // allow, deny or violation; of a URL also ask
	Rule    string   `json:"rule"`
	Target  string   `json:"target,omitempty"` // where the path leads, or the address of the URL's host
	Remedy  string   `json:"remedy,omitempty"` // of a URL
}

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
				return args(cobra.NoArgs)(c, words)
			}
			return args(cobra.ExactArgs(1))(c, words)
		},
		RunE: func(_ *cobra.Command, words []string) error {
			var v *verdict
			var err error
			if address != "" {
				v, err = a.checkNetwork(address, name, method)
			} else {
				v, err = a.check(words[0], name, opName)
			}
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if asJSON {
				err = a.printLine(v)
			} else {
				_, err = fmt.Fprintf(a.out, "%s %s %s (%s)\n", v.Verdict, v.Op, v.Path, v.Rule)
				if v.Remedy != "" {
					_, err = fmt.Fprintln(a.out, "to allow it: "+v.Remedy)
				}
			}
			if err == nil && v.Verdict != "allow" {
				return &exitError{code: exitFailed}
			}
			return err
		},
	}
	c.Flags().StringVar(&name, "agent", "", "whose view")
	c.Flags().StringVar(&opName, "op", "read", "the operation, of those above")
	c.Flags().StringVar(&address, "network", "", "a URL, in place of PATH; https:// may be left out")
	c.Flags().StringVar(&method, "method", http.MethodGet, "the request's, with --network")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = c.RegisterFlagCompletionFunc("agent", func(c *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
		return a.complete(c, nil, word)
	})
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

func (a *app) check(name, agent, opName string) (*verdict, error) {
	p, project, err := a.existing()
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, errors.New("which path: give one relative to the view, or below /workspace")
	}
	id, err := a.agentIn(project, agent)
	if err != nil {
		return nil, err
	}
	op, err := scope.ParseOp(opName)
	if err != nil {
		return nil, err
	}
	def, err := agentOf(p, id)
	if err != nil {
		return nil, err
	}
	policy, err := scope.Compile(def.View.PolicySpec())
	if err != nil {
		return nil, err
	}
	v := &verdict{Agent: id, Path: name, Op: op.String()}
	host, err := loadHost(p)
	if err != nil {
		return nil, err
	}
	rel, err := v.resolve(p.Base, def.Definition, name, host.Expose)
	if err != nil || v.Verdict != "" {
		return v, err
	}
	d := policy.File(op, rel)
	v.Verdict, v.Rule = "deny", d.Rule
	if d.Allow {
		v.Verdict = "allow"
	}
	return v, nil
}

// resolve follows the symbolic links on the path, as a client of the view does.
func (v *verdict) resolve(base string, def *agents.Definition, name string, shown []string) (string, error) {
	root, err := def.OpenRoot(base)
	if errors.Is(err, fs.ErrNotExist) && def.Dir == "" {
		return "", fmt.Errorf("%w: the first scopefs up or run makes it", err)
	}
	if err != nil {
		return "", err
	}
	defer root.Close()
	root.Shown = shown
	target, err := root.Resolve(name)
	var violation *beneath.Violation
	switch {
	case errors.As(err, &violation):
		v.Verdict, v.Rule, v.Target = "violation", string(violation.Rule), violation.Target
	case err != nil:
		return "", err
	case target.System:
		v.Verdict, v.Rule, v.Target = "allow", "the sandbox has it", target.Rel
	case target.Rel != strings.TrimPrefix(path.Clean("/"+name), "/"):
		v.Target = target.Rel
	}
	return target.Rel, nil
}

// agentOf loads one agent as a daemon that started now would.
func agentOf(p config.Paths, id scope.ID) (*agents.Agent, error) {
	all, errs, err := load(p)
	if err != nil {
		return nil, &api.NotLoadedError{Err: err}
	}
	if agent := all.Agents[id]; agent != nil {
		return agent, nil
	}
	var own, others []error // others: errors of extensions that the agent may use
	for _, err := range errs {
		bad, ok := errors.AsType[*fields.FileError](err)
		switch {
		case !ok || bad.Agent == id:
			own = append(own, err)
		case bad.Agent == "":
			others = append(others, err)
		}
	}
	if own != nil {
		return nil, &api.NotLoadedError{Err: errors.Join(append(others, own...)...)}
	}
	return nil, fmt.Errorf("%w %q: define it in agents.d/%s.md", api.ErrUnknown, id, id)
}

// load loads all agents. errs has an error for each file that does not load.
func load(p config.Paths) (all *agents.Snapshot, errs []error, err error) {
	host, err := loadHost(p)
	if err != nil {
		return nil, nil, err
	}
	activities, wrong := activities.Set{}.Reload(p.Base, host.Tools, session.CheckActivity)
	host.Tools = slices.Concat(host.Tools, activities.Tools())
	all, errs = agents.Resume(state.Seen(p.State)).Reload(p.Base, host.Host)
	return all, append(errs, wrong...), nil
}

// loadHost reads scopefs.yaml.
func loadHost(p config.Paths) (config.Settings, error) {
	tools, err := session.Tools()
	if err != nil {
		return config.Settings{}, err
	}
	return config.Load(p, config.Checks{Tools: tools, Stores: session.StoreTools(stores.Known)})
}
