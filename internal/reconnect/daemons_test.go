package reconnect

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWaitInVain: a request that comes just behind one that has waited in vain does not wait as long again, and a daemon that comes ends
// each wait.
func TestWaitInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(1, true)
		conn, err := d.Connected(time.Now())
		assert.NoError(t, err)
		assert.Equal(t, 1, conn)
		d.Drop(1)
		_, err = d.Connected(time.Now().Add(time.Millisecond))
		assert.ErrorIs(t, err, ErrNoDaemon)
		began := time.Now()
		for range 3 {
			_, err = d.Connected(time.Now().Add(time.Hour))
			assert.ErrorIs(t, err, ErrNoDaemon)
		}
		assert.Less(t, time.Since(began), time.Minute)
		d.Meet(2)
		d.Drop(2)
		time.AfterFunc(time.Millisecond, func() { d.Meet(3) })
		conn, err = d.Connected(time.Now().Add(time.Hour))
		assert.NoError(t, err)
		assert.Equal(t, 3, conn)
	})
}
