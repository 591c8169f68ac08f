package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/exit"
)

func (a *app) csiCmd() *cobra.Command {
	var node, socket, registration, rules, definitions, pods, own string
	c := &cobra.Command{
		Use:   "csi",
		Short: "serve kubelet: give pods the views of agents",
		Long: `Becomes scopefs-csi, the CSI node plugin, for the daemon of the base. A pod with an
ephemeral volume of the driver csi.scopefs gets the view of the agent that the volume
names, if the file of rules lets its service account. It serves until SIGTERM; what is
mounted stays.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			_, p, err := a.client()
			if err != nil {
				return err
			}
			return companion.Exec("scopefs-csi", "scopefs-csi", "--run", p.Run, "--node", node, "--socket", socket, "--registration", registration,
				"--rules", rules, "--definitions", definitions, "--pods", pods, "--state", own)
		},
	}
	host, _ := os.Hostname()
	c.Flags().StringVar(&node, "node", host, "the node's `NAME` in the cluster")
	c.Flags().StringVar(&socket, "socket", "/var/lib/kubelet/plugins/csi.scopefs/csi.sock", "the `SOCKET` that kubelet connects to")
	c.Flags().StringVar(&registration, "registration", "/var/lib/kubelet/plugins_registry",
		"kubelet's `DIR` of registrations; \"\": another program registers the plugin")
	c.Flags().StringVar(&rules, "rules", "/etc/scopefs/csi.yaml", "the `FILE` of rules")
	c.Flags().StringVar(&definitions, "definitions", "", "the `DIR` of ConfigMaps with the definitions that pods may name")
	c.Flags().StringVar(&pods, "pods", "/var/lib/kubelet/pods", "kubelet's `DIR` of pods")
	c.Flags().StringVar(&own, "plugin-state", "/var/lib/scopefs-csi", "the plugin's own `DIR`")
	return c
}
