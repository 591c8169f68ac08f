package fleetcmd

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/scope"
)

func (v Env) definitions() *cobra.Command {
	var nodes, asJSON bool
	c := &cobra.Command{
		Use:   "definitions [put FILE...|remove NAME...]",
		Short: "list the definitions of agents for nodes, and change them", Args: exit.Args(cobra.NoArgs),
		Long: `Lists what the server has of definitions, and on how many of the nodes that they are for that version holds. A node shows
what it has; a server that withholds a version is not noticed but by that.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) error {
			all, err := s.Defined(ctx)
			if err != nil {
				return err
			}
			there, err := s.Nodes(ctx)
			if err != nil {
				return err
			}
			rows := []definedRow{}
			for _, d := range all {
				rows = append(rows, rowOf(d, there))
			}
			if asJSON {
				return report.JSON(v.Out, rows)
			}
			return v.defined(rows, nodes)
		}),
	}
	c.Flags().BoolVar(&nodes, "nodes", false, "list each node, with the version that it has")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(v.putDefinitions(), v.removeDefinitions())
	return c
}

// definedRow is a definition of the server, and what nodes have of it.
type definedRow struct {
	order.Definition
	Wrong string        `json:"wrong,omitempty"` // why it is none
	On    []definedNode `json:"on"`
}

// definedNode is what a node has of a definition. Its version 0 is none.
type definedNode struct {
	Node    string    `json:"node"`
	Heard   time.Time `json:"heard"`
	Wants   bool      `json:"wants"` // the server's version is for it
	Version int64     `json:"version"`
	By      string    `json:"by,omitempty"`
	Holds   bool      `json:"holds"`
	Error   string    `json:"error,omitempty"`
}

func rowOf(d wire.SeenDefinition, nodes []wire.SeenNode) definedRow {
	def, err := order.ReadDefinition(d.Signed)
	row := definedRow{Definition: def, On: []definedNode{}}
	if err == nil && string(def.Name) != d.Name {
		err = fmt.Errorf("it is of the agent %q", def.Name)
	}
	if err != nil {
		row.Definition, row.Wrong = order.Definition{}, err.Error()
	}
	row.Name, row.Text = scope.ID(d.Name), ""
	for _, n := range nodes {
		one := definedNode{Node: n.Name, Heard: n.Heard, Wants: err == nil && !def.Removed && def.For(n.Name)}
		for _, h := range n.Definitions {
			if h.Name == d.Name {
				one.Version, one.By, one.Holds, one.Error = h.Version, h.By, h.Holds, h.Error
			}
		}
		if one.Wants || one.Version > 0 {
			row.On = append(row.On, one)
		}
	}
	return row
}

// state says what a node has of the server's version.
func (n definedNode) state(version int64) string {
	switch {
	case n.Version == version && n.Holds:
		return "holds"
	case n.Version == version && n.By == "":
		return "key not trusted"
	case n.Version == version:
		return "holds none"
	case n.Error != "":
		return "refused"
	case n.Version == 0:
		return "not there"
	}
	return "another version"
}

func versionText(version int64) string {
	if version <= 0 {
		return "-"
	}
	return time.UnixMilli(version).UTC().Format("2006-01-02T15:04:05.000Z")
}

func (v Env) defined(rows []definedRow, nodes bool) error {
	var t report.Table
	if nodes {
		t.Row("NAME", "NODE", "STATE", "VERSION", "KEY", "")
	} else if len(rows) > 0 {
		t.Row("NAME", "VERSION", "FOR", "HOLDS ON", "")
	}
	for _, r := range rows {
		wanted, holding := 0, 0
		for _, n := range r.On {
			if n.Wants {
				wanted++
			}
			if n.Wants && n.Version == r.Version && n.Holds {
				holding++
			}
			if nodes {
				t.Row(string(r.Name), n.Node, n.state(r.Version), versionText(n.Version), cmp.Or(n.By, "-"), n.Error)
			}
		}
		if nodes {
			continue
		}
		whose := cmp.Or(strings.Join(r.Nodes, " "), "all")
		if r.Removed {
			whose = "removed"
		}
		t.Row(string(r.Name), versionText(r.Version), whose, fmt.Sprintf("%d of %d", holding, wanted), r.Wrong)
	}
	return t.Print(v.Out)
}

// put signs a definition as the next version of what the server has, publishes it, and prints the version.
func (v Env) put(ctx context.Context, s *reader.Server, there []wire.SeenDefinition, key credential.Secret,
	d order.Definition) (err error) {
	to, last := wire.SeenDefinition{Name: string(d.Name)}, int64(0)
	if i := slices.IndexFunc(there, func(one wire.SeenDefinition) bool { return one.Name == to.Name }); i >= 0 {
		to.Serial = there[i].Serial
		old, _ := order.ReadDefinition(there[i].Signed) // an invalid one is replaced
		last = old.Version
	}
	d.Version = order.Next(last, time.Now())
	if to.Signed, err = d.Sign(key.Reveal()); err != nil {
		return fmt.Errorf("%s: %w", d.Name, err)
	}
	if _, err := wire.Put.Call(ctx, s.Conn, to); err != nil {
		return err
	}
	_, err = fmt.Fprintf(v.Out, "%s %s\n", d.Name, versionText(d.Version))
	return err
}

// putOptions are the flags of put and remove.
type putOptions struct {
	key   string
	nodes []string // of put
}

func (v Env) putDefinitions() *cobra.Command {
	var o putOptions
	c := &cobra.Command{
		Use: "put FILE...", Short: "sign definitions, and give them to nodes", Args: exit.Args(cobra.MinimumNArgs(1)),
		Long: `Signs each FILE, NAME.md, with the operator's key, and publishes it in place of the last version of NAME. Nodes with
fleet.definitions that trust the key take it if it loads there. An agent that the node's own agents.d or the user's settings define
stays as it is there. Prints the versions.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, files []string) error {
			key, err := (credential.Source{File: o.key}).Read(ctx)
			if err != nil {
				return errKey(err)
			}
			there, err := s.Defined(ctx)
			if err != nil {
				return err
			}
			var all []order.Definition
			for _, file := range files { // all before the first
				text, err := bounded.File(file, order.MaxDefinition)
				if err != nil {
					return err
				}
				name, ok := strings.CutSuffix(filepath.Base(file), ".md")
				if !ok {
					return exit.Usagef("%s: a definition has the name NAME.md", file)
				}
				id, err := scope.ParseID(name)
				if err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				all = append(all, order.Definition{Name: id, Nodes: o.nodes, Text: string(text)})
			}
			for _, d := range all {
				if err := v.put(ctx, s, there, key, d); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	keyFlag(c, &o.key)
	c.Flags().StringArrayVar(&o.nodes, "node", nil,
		"only for nodes whose names match a `PATTERN` such as web-*; all others remove theirs. Repeat it")
	return c
}

func (v Env) removeDefinitions() *cobra.Command {
	var o putOptions
	c := &cobra.Command{
		Use: "remove NAME...", Short: "have nodes remove definitions that they took", Args: exit.Args(cobra.MinimumNArgs(1)),
		Long: `Signs that no node has the agents any more, and publishes that in place of their definitions. As for a file that is removed
from agents.d, no new session starts, and a mounted view stays until scopefs down there.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, names []string) error {
			key, err := (credential.Source{File: o.key}).Read(ctx)
			if err != nil {
				return errKey(err)
			}
			there, err := s.Defined(ctx)
			if err != nil {
				return err
			}
			for _, name := range names {
				if !slices.ContainsFunc(there, func(d wire.SeenDefinition) bool { return d.Name == name }) {
					return fmt.Errorf("the server has no definition %.64q: see scopefs fleet definitions", name)
				}
			}
			for _, name := range names {
				if err := v.put(ctx, s, there, key, order.Definition{Name: scope.ID(name), Removed: true}); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	keyFlag(c, &o.key)
	return c
}
