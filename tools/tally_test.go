package tools

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestTallyTime: levels and numbers near zero count as long as they take: the SDK reads each level again, and such numbers take the slow
// way.
func TestTallyTime(t *testing.T) {
	rep := strings.Repeat
	of := func(text string) time.Duration {
		var whole, parts Tally
		assert.NoError(t, whole.Add([]byte(text)))
		for i := range text {
			assert.NoError(t, parts.Add([]byte(text[i:i+1])))
		}
		assert.Equal(t, whole, parts)
		return whole.Time() - ParseTime(len(text))
	}
	assert.Less(t, of(rep("[", 9)+`"`+rep("y", 10_000)+`"`+rep("]", 9)), 100*time.Microsecond)
	assert.Greater(t, of(rep("[", 908)+`"`+rep("y", 10_000)+`"`+rep("]", 908)), 900*10_000*levelTime)
	assert.ErrorIs(t, new(Tally).Add([]byte(rep("[", 908)+`"`+rep("y", 1<<20))), ErrTooMany)
	for text, small := range map[string]int{
		"1e-320": 1, "1E-320": 1, "0." + rep("0", 60) + "1e-99": 1, "0." + rep("0", 320) + "1": 1, `1e-320],[1e-321`: 2,
		"1e-20": 0, "1.7976931348623157e308": 0, "123456789012345678901234567890": 0, `"1e-320"`: 0, `true,false,-320`: 0,
	} {
		assert.Equal(t, small, int(of("["+text+"]")/smallTime), text)
	}
}
