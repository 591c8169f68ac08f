package config

import (
	"fmt"
	"strconv"
	"strings"
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
		"keep":      fields.Number(&l.Keep, parseKeep, "!!str"),
		"size":      fields.Number(&l.Size, parseLogSize, "!!int", "!!str"),
		"agent_day": fields.Number(&l.AgentDay, parseLogSize, "!!int", "!!str"),
	}
}

// The minimum limits: some segments, and some calls.
const (
	minKeep    = time.Hour
	minLogSize = 1 << 20
)

// parseKeep parses a duration, or a number of days such as 30d.
func parseKeep(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 15); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no time: write one such as 30d or 12h", s)
	}
	if d > 0 && d < minKeep {
		return 0, fmt.Errorf("%q is too short: want 1h or more", s)
	}
	return d, nil
}

func parseLogSize(s string) (int64, error) {
	n, err := fields.ParseSize(s)
	if err == nil && n > 0 && n < minLogSize {
		err = fmt.Errorf("%q is too little for a log: want 1MiB or more", s)
	}
	return n, err
}
