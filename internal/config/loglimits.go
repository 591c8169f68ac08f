package config

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/witness"
	"github.com/scopefs/scopefs/scope/agents"
)

// LogLimits are the limits of the audit log: the key log of scopefs.yaml. 0
// means the default.
type LogLimits struct {
	Keep     time.Duration // events older than this are removed
	Size     int64         // bytes of the log on disk
	AgentDay int64         // bytes of events that an agent may cause in a day before it is throttled
	Anchors  []Anchor
}

// Anchor takes signed heads of the log elsewhere: a command of the operator's, on its standard input, or a witness
// (c2sp.org/tlog-witness).
type Anchor struct {
	Name    string
	Command []string
	Witness string        // the URL of its submission prefix
	Key     string        // of the witness: see witness.NewVerifier
	Every   time.Duration // the shortest time from one head to the next; default a minute
}

// anchors reads a list of anchors.
func anchors(out *[]Anchor) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			a := Anchor{Every: time.Minute}
			err := fields.Mapping(map[string]fields.Field{
				"name": fields.Text(&a.Name), "command": command(&a.Command, "command"),
				"witness": fields.Text(&a.Witness), "key": fields.Text(&a.Key), "every": fields.Duration(&a.Every),
			})(item)
			switch {
			case err != nil:
				return err
			case !fields.IsPlainName(a.Name, 64):
				return fmt.Errorf("anchors: name %q: write letters, digits, - and _", a.Name)
			case (len(a.Command) == 0) == (a.Witness == ""):
				return fmt.Errorf("anchors: %s: write a command, or a witness", a.Name)
			case slices.ContainsFunc(*out, func(b Anchor) bool { return b.Name == a.Name }):
				return fmt.Errorf("anchors: %s is there twice: rename one", a.Name)
			}
			if err := a.checkWitness(); err != nil {
				return fmt.Errorf("anchors: %s: %w", a.Name, err)
			}
			*out = append(*out, a)
			return nil
		})
	}
}

func (a Anchor) checkWitness() error {
	if a.Witness == "" {
		return nil
	}
	if err := agents.CheckURL(a.Witness); err != nil {
		return fmt.Errorf("witness: %w", err)
	}
	_, err := witness.NewVerifier(a.Key)
	return err
}

func (l *LogLimits) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"keep":      fields.Number(&l.Keep, fields.ParseAge, "!!str"),
		"size":      fields.Number(&l.Size, parseLogSize, "!!int", "!!str"),
		"agent_day": fields.Number(&l.AgentDay, parseLogSize, "!!int", "!!str"),
		"anchors":   anchors(&l.Anchors),
	}
}

// minLogSize is the minimum of a size: some segments, and some calls.
const minLogSize = 1 << 20

func parseLogSize(s string) (int64, error) {
	n, err := fields.ParseSize(s)
	if err == nil && n > 0 && n < minLogSize {
		err = fmt.Errorf("%q is too little for a log: want 1MiB or more", s)
	}
	return n, err
}
