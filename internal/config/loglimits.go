package config

import (
	"fmt"
	"time"

	"github.com/scopefs/scopefs/internal/fields"
)

// LogLimits are the limits of the audit log: the key log of scopefs.yaml. 0
// means the default.
type LogLimits struct {
	Keep     time.Duration // events older than this are removed
	Size     int64         // bytes of the log on disk
	AgentDay int64         // bytes of events that an agent may cause in a day before it is throttled
}

func (l *LogLimits) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"keep":      fields.Number(&l.Keep, fields.ParseAge, "!!str"),
		"size":      fields.Number(&l.Size, parseLogSize, "!!int", "!!str"),
		"agent_day": fields.Number(&l.AgentDay, parseLogSize, "!!int", "!!str"),
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
