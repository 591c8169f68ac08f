package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/stores"
)

func (a *app) storesCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "stores",
		Short: "list the shared stores, their health and the agents that reach them",
		Long: `Lists the stores that scopefs.yaml configures. Each is checked, for 5 seconds at most.

Exit status: 0 all work, 1 one does not, 2 bad usage.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			client, p, err := a.client()
			if err != nil {
				return err
			}
			list, err := client.Stores(c.Context())
			if errors.Is(err, api.ErrNoDaemon) {
				list, err = ownStores(c.Context(), p)
			}
			if err != nil {
				return err
			}
			return errors.Join(a.print(report.Stores(list), asJSON), broken(list))
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.trusting().Accept())
	return c
}

// broken returns an error with the names of all stores that do not work.
func broken(list []api.Store) error {
	var down []string
	for _, s := range list {
		if s.Error != "" {
			down = append(down, s.Name)
		}
	}
	if down == nil {
		return nil
	}
	return fmt.Errorf("%s: not working: correct what HEALTH says", strings.Join(down, ", "))
}

// ownStores checks the stores from this process, where no daemon runs.
func ownStores(ctx context.Context, p config.Paths) ([]api.Store, error) {
	host, err := definitions.Host(p)
	if err != nil {
		return nil, err
	}
	all, _, err := definitions.Load(p)
	if err != nil {
		return nil, err
	}
	s := stores.New(host.Stores, p.State, stores.Host{Root: mount.Privileged()})
	defer s.Close()
	return s.Report(ctx, all.Agents), nil
}
