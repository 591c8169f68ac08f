// Package boottime has the clock by which leases end.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time of CLOCK_BOOTTIME, which nobody sets and which counts while the host sleeps: clock_gettime(2).
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // it fails for a wrong clock or address alone
	return time.Duration(t.Nano())
}
