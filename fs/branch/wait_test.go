package branch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWaitFor: a process that was killed has its locks for a moment. Another one that works has them longer.
func TestWaitFor(t *testing.T) {
	for free, want := range map[time.Duration]error{0: nil, killedTime / 2: nil, 2 * killedTime: ErrUsed} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, err := WaitFor(func() (int, error) {
				if time.Since(began) < free {
					return 0, fmt.Errorf("open: %w", ErrUsed)
				}
				return 0, nil
			})
			require.ErrorIs(t, err, want)
			require.LessOrEqual(t, time.Since(began), min(free, killedTime)+killedTime/100)
		})
	}
}
