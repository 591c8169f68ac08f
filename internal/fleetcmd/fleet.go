// Package fleetcmd is scopefs fleet: what an operator sees of all nodes, and the decisions that he signs for them.
package fleetcmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/paths"
)

// Env is what the commands have of the command line.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	Paths    func() (config.Paths, error) // with the settings
	Terminal bool                         // In and Out are one
}

// New returns scopefs fleet.
func New(v Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "fleet",
		Short: "see many nodes, and decide what waits on them",
		Long: `Shows what the nodes of a fleet have published to its NATS server, and signs decisions for them. The key
fleet of scopefs.yaml names the server, that of the base or of the user's settings. What the server says is shown, and never
trusted: a node takes a decision only if a key of its trust has signed it for the request that waits there. See docs/fleet.md.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(v.keygen(), v.init(), v.ps(), v.agents(), v.approvals(), v.definitions(), v.audit())
	return c
}

// open starts the process for the server that the settings name.
func (v Env) open(ctx context.Context) (*reader.Server, error) {
	fleet, err := v.fleet()
	if err != nil {
		return nil, err
	}
	if fleet.NATS == "" {
		return nil, exit.Usagef("scopefs.yaml has no fleet: write fleet: {nats: 'tls://HOST:4222'} there")
	}
	return reader.Open(ctx, fleet, v.Err)
}

// fleet returns the key fleet of the settings.
func (v Env) fleet() (config.Fleet, error) {
	p, err := v.Paths()
	if err != nil {
		return config.Fleet{}, err
	}
	settings, err := definitions.Host(p)
	return settings.Fleet, err
}

// with returns the function of a command that needs the server, until an interrupt.
func (v Env) with(f func(ctx context.Context, s *reader.Server, words []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, words []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, unix.SIGTERM)
		defer stop()
		s, err := v.open(ctx)
		if err != nil {
			return err
		}
		defer s.Close()
		return f(ctx, s, words)
	}
}

func (v Env) init() *cobra.Command {
	set := wire.Server{}
	c := &cobra.Command{
		Use: "init", Short: "make the streams and buckets of the fleet on its server", Args: exit.Args(cobra.NoArgs),
		Long: `Makes the streams scopefs_events and scopefs_orders and the buckets scopefs_nodes, scopefs_approvals,
scopefs_definitions and scopefs_leases, or changes them to what the flags say. Nodes and other commands need no right to make streams.`,
		RunE: v.with(func(ctx context.Context, s *reader.Server, _ []string) error {
			_, err := wire.Prepare.Call(ctx, s.Conn, set)
			return err
		}),
	}
	c.Flags().IntVar(&set.Replicas, "replicas", 1, "copies of each stream, in a cluster of servers")
	c.Flags().DurationVar(&set.Keep, "keep", 30*24*time.Hour, "how long the server keeps events")
	c.Flags().Int64Var(&set.MaxBytes, "max-bytes", -1, "of events; -1: no limit. The oldest go first")
	return c
}

// keyName is the file of an operator's key below the user's settings.
const keyName = "fleet.key"

// keyFlag adds the flag that names the file of the key.
func keyFlag(c *cobra.Command, file *string) {
	def := ""
	if dir, err := paths.UserDir(); err == nil {
		def = filepath.Join(dir, keyName)
	}
	c.Flags().StringVar(file, "key", def, "`FILE` with the operator's private key")
}

// errKey is the error of a command without a key.
func errKey(err error) error {
	return fmt.Errorf("the operator's key: %w: make one with scopefs fleet keygen, or give --key", err)
}
