package limit

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope"
)

// store is a Store that outlives those who use it.
type store struct {
	rates Refills
	lost  bool
	err   error
}

func (s *store) Update(change func(Refills, bool)) error {
	if s.err == nil {
		change(s.rates, s.lost)
	}
	return s.err
}

func TestRatesOutliveTheDaemon(t *testing.T) {
	kept := &store{rates: Refills{}}
	limits := []scope.Rate{{Pattern: "bash", N: 3, Per: time.Hour}, {Pattern: "*", N: 5, Per: time.Hour}}
	take := func(tool string) string {
		t.Helper()
		these := limits
		if tool != "bash" {
			these = limits[1:]
		}
		reached, wait, err := (&Rates{Store: kept}).Take(these) // another daemon for each
		require.NoError(t, err)
		assert.Equal(t, reached != nil, wait > 0)
		assert.LessOrEqual(t, wait, time.Hour)
		if reached == nil {
			return ""
		}
		return reached.String()
	}
	for range 3 {
		assert.Empty(t, take("bash"))
	}
	assert.Equal(t, "bash: 3/hour", take("bash"))
	assert.Empty(t, take("stat"))
	assert.Empty(t, take("stat"), "what was refused did not count")
	assert.Equal(t, "*: 5/hour", take("stat"))

	for limit := range kept.rates {
		kept.rates[limit] = time.Now().Add(1000 * time.Hour) // and the clock is set back
	}
	_, wait, err := (&Rates{Store: kept}).Take(limits[1:])
	require.NoError(t, err)
	assert.LessOrEqual(t, wait, time.Hour)

	kept.rates, kept.lost = Refills{}, true
	assert.NotEmpty(t, take("stat"), "what is lost counts as used")
	kept.err = errors.New("disk gone")
	_, _, err = (&Rates{Store: kept}).Take(limits[1:])
	assert.Error(t, err)
	reached, _, err := (&Rates{Store: kept}).Take(nil)
	assert.NoError(t, err, "it has no limit")
	assert.Nil(t, reached)
}

// A limit gives out N calls at once, and then one each Per/N.
func TestRefills(t *testing.T) {
	f, now := Refills{}, time.Now()
	limits := []scope.Rate{{Pattern: "*", N: 60, Per: time.Minute}}
	count := func() (n int) {
		for {
			if reached, _ := f.take(limits, 1, now); reached != nil {
				return n
			}
			n++
		}
	}
	assert.Equal(t, 60, count())
	now = now.Add(999 * time.Millisecond)
	_, wait := f.take(limits, 1, now)
	assert.Equal(t, time.Millisecond, wait)
	now = now.Add(time.Millisecond)
	assert.Equal(t, 1, count())
	now = now.Add(10 * time.Second)
	assert.Equal(t, 10, count())
	now = now.Add(time.Hour)
	assert.Equal(t, 60, count())
	now = now.Add(time.Hour)
	f.take([]scope.Rate{{Pattern: "x", N: 1, Per: time.Hour}}, 1, now)
	assert.Len(t, f, 1, "a limit that is full takes no room")
}

// TestLostCounts: a limit that was lost is full again after its time, also if it is
// not asked about before.
func TestLostCounts(t *testing.T) {
	lost := time.Now()
	f := Refills{lostKey: lost}
	minute, hour := []scope.Rate{{Pattern: "m", N: 1, Per: time.Minute}}, []scope.Rate{{Pattern: "h", N: 1, Per: time.Hour}}
	for _, c := range []struct {
		after        time.Duration
		minute, hour bool
	}{{0, true, true}, {30 * time.Second, true, true}, {time.Minute, false, true}, {time.Hour, false, false}} {
		reached, _ := f.take(minute, 1, lost.Add(c.after))
		assert.Equal(t, c.minute, reached != nil, "%v", c.after)
		reached, _ = f.take(hour, 1, lost.Add(c.after))
		assert.Equal(t, c.hour, reached != nil, "%v", c.after)
	}
	reached, wait := Refills{lostKey: lost}.take(minute, 1, lost.Add(-time.Hour)) // the clock was set back
	assert.NotNil(t, reached)
	assert.LessOrEqual(t, wait, time.Minute)
}

// TestTakeN: many events at once count as one after the other, also with a limit of
// bytes. A byte takes less than a nanosecond.
func TestTakeN(t *testing.T) {
	f, now := Refills{}, time.Now()
	limits := []scope.Rate{{Pattern: "bytes", N: 1 << 30, Per: 500 * time.Millisecond}}
	for range 1 << 10 {
		reached, _ := f.take(limits, 1<<20, now)
		require.Nil(t, reached)
	}
	reached, wait := f.take(limits, 1<<20, now)
	assert.NotNil(t, reached)
	assert.InDelta(t, 500*time.Millisecond/1024, wait, float64(time.Microsecond))
	reached, _ = f.take(limits, 1<<31, now.Add(time.Hour))
	assert.NotNil(t, reached, "more than the limit")
}
