// Package wire declares what the daemon and the process of a stream say to each other.
package wire

import (
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
)

// Settings are what the process begins with.
type Settings struct {
	Log     string // the directory of the log
	Dir     string // the directory of the stream, which exists
	Stream  config.Stream
	Host    string // the name of this host
	Node    string // its name in a fleet; "": it is in none
	Version string // of scopefs
}

// Begin is the first call. Its result says what confines the process.
const Begin = driver.Method[Settings, []string]("begin")

// Report is the daemon's: the process says how far the stream is.
const Report = driver.Method[Progress, driver.None]("report")

// Progress says how far a stream is.
type Progress struct {
	Sent   uint64    // the number of the last event that the receiver has; 0: none yet
	Oldest time.Time // when the oldest event that waits was recorded; zero: none waits
	Error  string    // why the last attempt failed; "": it did not
	Gap    string    // what the receiver will not get, once; "": nothing
}
