package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/report"
	"github.com/scopefs/scopefs/internal/version"
)

func (a *app) versionCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return report.Line(a.out, map[string]string{"version": version.Version, "text": version.Text()})
			}
			_, err := fmt.Fprintf(a.out, "scopefs %s\n", version.Text())
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
