package config

import (
	"fmt"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
)

// LogLimits are the limits of the audit log: the key log of scopefs.yaml. 0
// means the default.
type LogLimits struct {
	Keep     time.Duration // events older than this are removed
	Size     int64         // bytes of the log on disk
	AgentDay int64         // bytes of events that an agent may cause in a day before it is throttled
	Anchors  []Anchor
	Streams  []Stream
}

func (l *LogLimits) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"keep":      fields.Number(&l.Keep, fields.ParseAge, "!!str"),
		"size":      fields.Number(&l.Size, parseLogSize, "!!int", "!!str"),
		"agent_day": fields.Number(&l.AgentDay, parseLogSize, "!!int", "!!str"),
		"anchors":   listed(&l.Anchors, "anchors"),
		"streams":   listed(&l.Streams, "streams"),
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

// listed reads a list of T with names of their own.
func listed[T any, P interface {
	*T
	name() string
	fields() map[string]fields.Field
	check() error
}](out *[]T, kind string) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachItem(n, func(item *yaml.Node) error {
			one := P(new(T))
			err := fields.Mapping(one.fields())(item)
			switch {
			case err != nil:
				return err
			case !fields.IsPlainName(one.name(), 64):
				return fmt.Errorf("%s: name %q: write letters, digits, - and _", kind, one.name())
			case slices.ContainsFunc(*out, func(other T) bool { return P(&other).name() == one.name() }):
				return fmt.Errorf("%s: %s is there twice: rename one", kind, one.name())
			}
			if err := one.check(); err != nil {
				return fmt.Errorf("%s: %s: %w", kind, one.name(), err)
			}
			*out = append(*out, *one)
			return nil
		})
	}
}
