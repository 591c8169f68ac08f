package fleetcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/order"
)

func (v Env) keygen() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "keygen NAME", Short: "make the key with which an operator signs decisions", Args: exit.Args(cobra.ExactArgs(1)),
		Long: `Makes an Ed25519 key, writes the private part to a file that only this user reads, and prints the public part: a line for
fleet.trust in the scopefs.yaml of each node. NAME stands in the log of a node beside each decision.`,
		RunE: func(_ *cobra.Command, words []string) error {
			private, public, err := order.NewKey(words[0])
			if err == nil {
				err = writeKey(file, private)
			}
			if err == nil {
				_, err = fmt.Fprintln(v.Out, public)
			}
			return err
		},
	}
	keyFlag(c, &file)
	return c
}

// writeKey writes a private key to a new file.
func writeKey(file, private string) error {
	if file == "" {
		return exit.Usagef("--key: set HOME, or give a file")
	}
	dir := filepath.Dir(file)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	err := durable.ReplaceAt(file, []byte(private+"\n"), durable.Options{New: true, Shared: true})
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: nodes trust it: give another --key", file)
	}
	return err
}
