package logcmd

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/fleet/heads"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/internal/state"
	"github.com/scopefs/scopefs/internal/witness"
)

const witnessUsage = "a witness's public key from elsewhere, NAME+HASH+KEY, or a file with keys, one a line; can be repeated"

// given returns the keys that the operator has given.
func given(texts []string) (all witness.Keys, err error) {
	for _, text := range texts {
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
	return all, nil
}

// known adds the keys that this host has: those of the nodes of its fleet and of its anchors.
func (v Env) known(p config.Paths, all *witness.Keys) {
	pins, err := heads.Pins(p.State)
	settings, wrong := definitions.Host(p)
	for _, err := range []error{err, wrong} {
		if err != nil {
			fmt.Fprintf(v.Err, "scopefs: witnesses that it names are left out: %s\n", printable.Text(err.Error()))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(pins)) {
		_ = all.Add(node, pins[node]) // the daemon has checked it
	}
	for _, a := range settings.Log.Anchors {
		if a.Witness != "" {
			_ = all.Add(a.Name, a.Key)
		}
	}
}

// beside returns the heads that this host keeps with the signatures of witnesses.
func beside(p config.Paths) (map[string]io.Reader, error) {
	all, err := state.SignedHeads(p.State)
	texts := map[string]io.Reader{}
	for name, text := range all {
		texts[name] = bytes.NewReader(text)
	}
	return texts, err
}
