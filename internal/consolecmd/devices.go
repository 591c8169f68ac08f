package consolecmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/exit"
)

// pair returns scopefs console pair.
func (v Env) pair() *cobra.Command {
	var o options
	var name, role string
	c := &cobra.Command{
		Use:   "pair",
		Short: "let a device into the console, by a key of its own",
		Long: `Prints a link, and on a terminal its QR code. The device that opens it first, within five minutes, gets a key
of its own: a passkey where the address has a name that the device trusts (localhost, or a host with a certificate), and
otherwise a key that its browser keeps. With the key it returns without a link, until it is removed.

The link leads to the page that the daemon serves (scopefs daemon --console). If it serves none, or with --listen, the
command serves it until it is interrupted.

Roles: look reads; decide also answers what waits in the inbox; all does what the operator can.`,
		Args: exit.Args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.check(c); err != nil {
				return err
			}
			if !slices.Contains(devices.Roles, devices.Role(role)) {
				return exit.Usagef("--role %q: want look, decide or all", role)
			}
			if name == "" {
				var err error
				if name, err = v.freeName(); err != nil {
					return err
				}
			}
			if err := devices.CheckName(name); err != nil {
				return exit.With(exit.Usage, err)
			}
			fmt.Fprintf(v.Err, "Pairs %s, role %s, with the browser that opens this first, within five minutes:\n", name, role)
			return v.serve(c.Context(), o, api.LinkRequest{Pair: name, Role: role})
		},
	}
	o.flags(c)
	c.Flags().StringVar(&role, "role", string(devices.Look), "what the device may do: look, decide or all")
	c.Flags().StringVar(&name, "name", "", "name of the device, for the log (default device-N)")
	return c
}

// freeName returns a name that no device has.
func (v Env) freeName() (string, error) {
	store, err := v.store()
	if err != nil {
		return "", err
	}
	defer store.Close()
	for n := 1; ; n++ {
		name := fmt.Sprint("device-", n)
		if err := store.CanAdd(name); err == nil || n > devices.MaxDevices {
			return name, err
		}
	}
}

func (v Env) store() (*devices.Store, error) {
	_, p, err := v.Client()
	if err != nil {
		return nil, err
	}
	return devices.Open(p.State)
}

// devices returns scopefs console devices.
func (v Env) devices() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "list the devices that are paired with the console",
		Args:  exit.Args(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			store, err := v.store()
			if err != nil {
				return err
			}
			defer store.Close()
			list, err := store.List()
			if err != nil {
				return err
			}
			if asJSON {
				for _, d := range list {
					line, err := json.Marshal(listed{d.Name, d.Role, d.Kind(), d.Paired, d.Seen, d.From})
					if err != nil {
						return err
					}
					fmt.Fprintln(v.Out, string(line))
				}
				return nil
			}
			if len(list) == 0 {
				fmt.Fprintln(v.Err, "no device is paired: scopefs console pair")
				return nil
			}
			w := tabwriter.NewWriter(v.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tROLE\tKEY\tPAIRED\tSEEN\tFROM")
			for _, d := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, d.Role, d.Kind(),
					d.Paired.Local().Format(time.DateTime), d.Seen.Local().Format(time.DateTime), d.From)
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each device")
	c.AddCommand(&cobra.Command{
		Use:   "remove NAME...",
		Short: "let devices in no more, and end their logins",
		Args:  exit.Args(cobra.MinimumNArgs(1)),
		RunE: func(c *cobra.Command, names []string) error {
			client, p, err := v.Client()
			if err != nil {
				return err
			}
			store, err := devices.Open(p.State)
			if err != nil {
				return err
			}
			defer store.Close()
			list, err := store.List()
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range names {
				err := store.Remove(name)
				errs = append(errs, err)
				if i := slices.IndexFunc(list, func(d devices.Device) bool { return d.Name == name }); err == nil && i >= 0 {
					if err := client.RecordDevice(c.Context(), api.DeviceRequest{Name: name, Role: string(list[i].Role), Removed: true}); err != nil {
						fmt.Fprintf(v.Err, "%s is removed, and the log has no event of it: %v\n", name, err)
					}
				}
			}
			return errors.Join(errs...)
		},
	})
	return c
}

// listed is a device as --json prints it.
type listed struct {
	Name   string       `json:"name"`
	Role   devices.Role `json:"role"`
	Key    string       `json:"key"`
	Paired time.Time    `json:"paired"`
	Seen   time.Time    `json:"seen"`
	From   string       `json:"from,omitempty"`
}
