package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() {
	roles["flood"] = func(args []string) error {
		for range 64 {
			go func() {
				for {
					_ = unix.Stat(args[0], &unix.Stat_t{})
				}
			}()
		}
		fmt.Println("flooding")
		select {}
	}
}

// TestBusyView: requests that take long, here because what they are denied is
// recorded slowly, do not keep others waiting.
func TestBusyView(t *testing.T) {
	h := newHost(t, map[string]string{"a": "view: {paths: {secret: hide}}"})
	plant(t, h.scope("a"), "secret", "f")
	line := stream(t, client("flood", h.view("a", "secret")))
	require.Equal(t, "flooding", line())
	time.Sleep(time.Second) // until denials are slowed down
	var slow int
	for i := range 50 {
		began := time.Now()
		require.Equal(t, unix.ENOENT, unix.Stat(h.view("a", fmt.Sprint("absent", i)), &unix.Stat_t{}))
		if time.Since(began) > time.Second {
			slow++
		}
	}
	assert.Less(t, slow, 10)
}
