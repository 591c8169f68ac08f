package view

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

// flooders is how many threads wait at once in TestBusyView: fewer than the view
// has readers.
const flooders = 200

func init() {
	// flood NAME: each thread looks up a name of its own, NAME and a number, without
	// end: the kernel sends one lookup of a name at a time. It prints how long each
	// lookup of one thread took, in milliseconds.
	harness.Roles["flood"] = func(args []string) error {
		for i := range flooders - 1 {
			go func() {
				for {
					_ = unix.Stat(fmt.Sprint(args[0], i+1), &unix.Stat_t{})
				}
			}()
		}
		for {
			began := time.Now()
			_ = unix.Stat(args[0]+"0", &unix.Stat_t{})
			fmt.Println(time.Since(began).Milliseconds())
		}
	}
}

// TestBusyView: requests that wait, here because the daemon throttles the record
// of what they are denied, do not delay other requests.
func TestBusyView(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"secret*\": hide}}"})
	for i := range flooders {
		harness.Plant(t, h.Scope("a"), fmt.Sprint("secret", i))
	}
	began := time.Now()
	line := harness.Stream(t, harness.Role("flood", h.View("a", "secret")))
	const throttled = 300 // milliseconds; the denials under way are earned in about 900
	denial := func() int {
		ms, err := strconv.Atoi(line())
		require.NoError(t, err)
		return ms
	}
	h.Eventually("denials wait", func() bool { return denial() > throttled })
	var took []time.Duration
	for i := range 50 {
		began := time.Now()
		require.Equal(t, unix.ENOENT, unix.Stat(h.View("a", fmt.Sprint("absent", i)), &unix.Stat_t{}))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	assert.Less(t, took[len(took)/2], throttled*time.Millisecond/2, "half of the requests: %v", took)
	h.Eventually("denials still wait", func() bool { return denial() > throttled })

	// They waited for the throttle: 256 KiB at once and 64 KiB a second, of lines of more than 256 bytes.
	recorded := 0
	for _, e := range h.Events("a") {
		if e.Verdict == audit.Deny {
			recorded++
		}
	}
	assert.Less(t, recorded, int(1024+256*time.Since(began).Seconds()), "denials in %v", time.Since(began))
}
