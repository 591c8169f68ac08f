package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/amend"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/embedded"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/prompt"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

type amendOptions struct {
	agent      string
	access     string
	removeDeny bool
	yes, dry   bool
	json       bool
	shown      string
	length     string
	kinds      [4]bool // of amendKinds
	like       string
	address    string
}

var amendKinds = []amend.Kind{amend.Host, amend.Tool, amend.Path, amend.Preset}

func (a *app) allowCmd() *cobra.Command {
	var o amendOptions
	c := &cobra.Command{
		Use:   "allow HOST|TOOL|PATH|PRESET... --agent AGENT|--dir DIR",
		Short: "let an agent reach a host, call a tool or change a path",
		Long: `Changes rules in the agent's definition: shows the lines, asks, and writes them. Comments and
order stay. A daemon that runs has the new rules when the command returns, other commands
that run within a second.

HOST is a name such as example.com, with a port example.com:8443, or with --host
*.example.com for all names below. TOOL is a name of scopefs agents show. PATH is relative to
the view or below /workspace, and a glob: write \ before *?[]{}\ in the name of a file.
PRESET is a list of hosts: scopefs presets. --as PRESET allows a host what the preset allows
its own: scopefs allow npm.corp.example --as npm. A name that could be two of these is an error:
say which with --host, --tool, --path or --preset.

A rule that denies the same stays: the command names it, and changes nothing. With
--remove-deny it removes such rules as a whole, and a list of protect for all its files.

With --for 1h or --for session (until the agent's present sessions end) it writes nothing: it
makes standing approvals of a host that no rule denies, or of a tool under policy.tools.ask.
scopefs approvals lists them, approvals revoke ends one, scopefs deny all of the agent.

Exit status: 0 it is allowed, 1 nothing was changed, 2 bad usage, or the agent does not load.`,
		Args: exit.Args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			return a.amend(c, words, o, scope.Write, scope.Read, (*amend.Draft).Allow)
		},
	}
	o.addFlags(a, c, "of a path: write or read", "write")
	c.Flags().StringVar(&o.length, "for", amend.Always, "of a host or a tool: a `TIME` such as 1h, session, or always")
	c.Flags().StringVar(&o.like, "as", "", "of a host: as far as `PRESET` allows its own, such as a mirror of npm")
	c.Flags().StringVar(&o.address, "address", "", "of a host: its `IP`, or IP:PORT, if it is not public")
	c.Flags().BoolVar(&o.removeDeny, "remove-deny", false, "remove rules that deny it")
	return c
}

func (a *app) denyCmd() *cobra.Command {
	o := amendOptions{length: amend.Always}
	c := &cobra.Command{
		Use:   "deny HOST|TOOL|PATH... --agent AGENT|--dir DIR",
		Short: "keep an agent from a host, a tool or a path",
		Long: `Adds a rule to the agent's definition that denies something, whatever other rules allow: see
scopefs help allow. A path is hidden, or with --access read cannot be changed. A tool that is
denied may be one of several for the same: an agent with bash reads files without read_file.

Exit status: 0 it is denied, 1 nothing was changed, 2 bad usage, or the agent does not load.`,
		Args: exit.Args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, words []string) error {
			return a.amend(c, words, o, scope.Hide, scope.Read, (*amend.Draft).Deny)
		},
	}
	o.addFlags(a, c, "of a path: hide or read", "hide")
	return c
}

func (o *amendOptions) addFlags(a *app, c *cobra.Command, access, usual string) {
	for i, kind := range amendKinds {
		c.Flags().BoolVar(&o.kinds[i], string(kind), false, "each name is a "+string(kind))
	}
	c.Flags().StringVar(&o.access, "access", usual, access)
	o.addWriting(a, c)
	c.ValidArgsFunction = a.completeRules
}

// addWriting adds the flags of a command that writes a definition.
func (o *amendOptions) addWriting(a *app, c *cobra.Command) {
	c.Flags().StringVar(&o.agent, "agent", "", "whose rules")
	c.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVarP(&o.dry, "dry-run", "n", false, "show the lines and the change's hash, and write nothing")
	c.Flags().BoolVar(&o.json, "json", false, "print JSON")
	c.Flags().StringVar(&o.shown, "shown", "", "write the change with this `HASH`, of --dry-run, and no other; do not ask")
	a.completeAgent(c)
}

// change returns the change of a name. The usual access is that of the command without --access.
func (o *amendOptions) change(c *cobra.Command, usual, other scope.Access) (amend.Change, error) {
	made := amend.Change{Access: usual, RemoveDeny: o.removeDeny}
	for i, kind := range amendKinds {
		if o.kinds[i] {
			made.Kind = kind
		}
	}
	if o.like != "" || o.address != "" {
		if made.Kind != "" && made.Kind != amend.Host {
			return made, exit.Usagef("--as and --address are for a host")
		}
		if ip, err := netip.ParseAddr(o.address); err == nil {
			made.Address = netip.AddrPortFrom(ip, 0)
		} else if made.Address, err = netip.ParseAddrPort(o.address); err != nil && o.address != "" {
			return made, exit.Usagef("--address %s: write an address such as 10.0.0.5 or 10.0.0.5:8443", o.address)
		}
		made.Kind, made.As = amend.Host, o.like
	}
	switch {
	case !c.Flags().Changed("access"):
		return made, oneOf(c, "host", "tool", "path", "preset")
	case o.access == other.String():
		made.Access = other
	case o.access != usual.String():
		return made, exit.Usagef("--access %s: write %s or %s", o.access, usual, other)
	}
	made.Kind = amend.Path
	return made, oneOf(c, "access", "host", "tool", "preset")
}

func (a *app) amend(c *cobra.Command, words []string, o amendOptions, usual, other scope.Access, do func(*amend.Draft, amend.Change) (string, error)) error {
	change, err := o.change(c, usual, other)
	if err != nil {
		return err
	}
	p, id, err := a.begin(o.agent)
	if err != nil {
		return err
	}
	d, err := amend.Open(p, id)
	if err != nil {
		return err
	}
	if o.length != amend.Always {
		made, err := d.Lend(c.Context(), append(embedded.Running(p), p), change.Kind, words, o.length)
		for _, granted := range made {
			_ = a.decided(granted, nil, o.json)
		}
		return err
	}
	var said []string
	for _, name := range words {
		change.Name = name
		text, err := do(d, change)
		if err != nil {
			return err
		}
		said = append(said, text)
	}
	return a.write(c.Context(), p, id, d, said, o)
}

// write shows a change of a definition and what it widens, asks, and writes it.
func (a *app) write(ctx context.Context, p config.Paths, id scope.ID, d *amend.Draft, said []string, o amendOptions) (err error) {
	before, after := d.Changes()
	made := amended{Agent: id, File: d.File, Said: said, Hash: d.Hash(), Changed: string(before) != string(after)}
	if o.shown != "" && o.shown != made.Hash {
		return fmt.Errorf("--shown: the change is now %s: look at it again with --dry-run", made.Hash)
	}
	if made.Changed {
		var diff strings.Builder
		if err := report.Edited(&diff, d.File, before, after); err != nil {
			return err
		}
		made.Diff = diff.String()
		wider := d.Widens()
		for _, e := range wider {
			made.Widens = append(made.Widens, e.String())
		}
		if !o.json {
			fmt.Fprint(a.out, made.Diff)
			_ = report.Widens(a.out, wider)
		}
		if !o.dry && !o.yes && o.shown == "" {
			err = prompt.Consent(ctx, "write this?", a.in, a.err)
		}
		if err == nil && !o.dry {
			made.Written, err = true, d.Write()
		}
		if err != nil {
			return err
		}
	}
	if made.Written {
		var waits []string
		if made.Running, waits, err = amend.Reload(ctx, api.NewClient(p), id); made.Running && err == nil {
			a.note("the daemon has the new rules")
			if len(waits) > 0 {
				a.note(fmt.Sprintf("the view has %s after scopefs down %s and up", strings.Join(waits, ", "), id))
			}
		}
	}
	return errors.Join(a.printLine(made, o.json), err)
}

// amended is what allow or deny has changed, or would.
type amended struct {
	Agent   scope.ID `json:"agent"`
	File    string   `json:"file"`
	Said    []string `json:"said"` // of each name
	Changed bool     `json:"changed"`
	Written bool     `json:"written"`
	Running bool     `json:"daemon"` // a daemon serves the agent by the new rules
	Hash    string   `json:"hash"`   // of the change, for --shown
	Diff    string   `json:"diff,omitempty"`
	Widens  []string `json:"widens,omitempty"` // what it allows beyond the rules that hold
}

// Print prints what is allowed or denied. The diff is printed before the question.
func (m amended) Print(w io.Writer) error {
	text := strings.Join(m.Said, "\n")
	if m.Changed && !m.Written {
		text = "hash " + m.Hash + "\n" + text
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// remedyOf returns a function for the remedies of a command of an agent: scopefs allow, if it lifts the refusal: of
// the narrowest preset, or of the host.
func (a *app) remedyOf(p config.Paths, id scope.ID, name string) func(api.Note) string {
	return func(n api.Note) string {
		if n.Host == "" {
			return n.Remedy
		}
		command, _ := amend.Command(p, definitions.Read(p, nil), id, amend.Host, n.Host, a.sameAgent(name)...)
		return cmp.Or(command, n.Remedy)
	}
}

// remedyCmd is remedyOf for the command that reads no definition.
func (a *app) remedyCmd() *cobra.Command {
	var name string
	c := &cobra.Command{Use: "remedy HOST:PORT", Hidden: true, Args: exit.Args(cobra.ExactArgs(1)), RunE: func(c *cobra.Command, words []string) error {
		p, id, err := a.agentOf(name)
		if err == nil {
			_, err = fmt.Fprintln(a.out, a.remedyOf(p, id, name)(api.Note{Host: words[0]}))
		}
		return err
	}}
	a.agentFlag(c, &name)
	return c
}

// sameAgent returns the words by which another command is about the agent of this one.
func (a *app) sameAgent(name string) (words []string) {
	if a.Given("base") {
		words = append(words, "--base", a.Flags.Base)
	}
	switch {
	case a.Dir != "":
		words = append(words, "--dir", a.Dir)
	case name != "":
		words = append(words, "--agent", name)
	}
	return words
}
