package logcmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/witness"
)

// witnessOptions are the witnesses that the operator names, and how many of them must have signed.
type witnessOptions struct {
	witnesses []string
	quorum    int
}

func (o *witnessOptions) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&o.witnesses, "witness", nil,
		"a witness's public key from elsewhere, NAME+HASH+KEY, or a file with keys, one a line; can be repeated")
	f.IntVar(&o.quorum, "quorum", 1, "how many of those witnesses must have signed")
}

// enough returns an error with the exit status of what nothing vouches for, if fewer than the quorum of the given witnesses have signed.
func (o *witnessOptions) enough(all witness.Keys) error {
	if n, of := all.Count(true); of > 0 && n < o.quorum {
		return exit.With(exit.Unproved,
			fmt.Errorf("%d of the witnesses that were given have signed these lines, and the quorum is %d", n, o.quorum))
	}
	return nil
}

// given returns the keys that the operator has given.
func (o *witnessOptions) given() (all witness.Keys, err error) {
	for _, text := range o.witnesses {
		if all.Add("", text) == nil {
			continue
		}
		keys, err := bounded.File(text, maxHead)
		if err != nil {
			return nil, exit.Usagef("--witness %q: want a key, NAME+HASH+KEY, or a file: %w", text, err)
		}
		for line := range strings.Lines(string(keys)) {
			if err := all.Add("", strings.TrimSpace(line)); err != nil {
				return nil, exit.With(exit.Usage, fmt.Errorf("--witness %s: %w", text, err))
			}
		}
	}
	switch {
	case len(o.witnesses) == 0 && o.quorum == 1:
	case len(o.witnesses) == 0:
		return nil, exit.Usagef("--quorum: give the witnesses with --witness")
	case len(all) == 0:
		return nil, exit.Usagef("--witness %s: it has no key", o.witnesses[0])
	case o.quorum < 1 || o.quorum > len(all):
		return nil, exit.Usagef("--quorum %d: want 1 to %d, the number of keys that were given", o.quorum, len(all))
	}
	return all, nil
}

// known adds the keys of this host's anchors.
func (v Env) known(p config.Paths, all *witness.Keys) {
	settings, err := definitions.Host(p)
	if err != nil {
		fmt.Fprintf(v.Err, "scopefs: witnesses that it names are left out: %s\n", printable.Text(err.Error()))
	}
	for _, a := range settings.Log.Anchors {
		if a.Witness != "" {
			_ = all.Add(a.Name, a.Key)
		}
	}
}
