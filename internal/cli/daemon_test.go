package cli

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestCollect: a daemon for one command collects garbage late, but only the first time.
func TestCollect(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	percent := func() uint64 {
		now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(now)
		return now[0].Value.Uint64()
	}
	collect(false)
	assert.EqualValues(t, 150, percent())
	collect(true)
	runtime.GC()
	assert.Eventually(t, func() bool { return percent() == 150 }, 10*time.Second, time.Millisecond)
}
