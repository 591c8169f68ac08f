// Package reconnect is the end of a process that lives on when its daemon ends: its connection to one daemon after the other.
package reconnect

import (
	"errors"
	"sync"
	"time"
)

// The descriptors of a process that may live on. Those before are the process's own.
const (
	HolderFD  = 14 // socket pair to the holder: see heart.Heart
	ControlFD = 15 // sockets of the next daemons come by it: see Take
)

// ErrNoDaemon reports that there is no daemon, and that none comes in time.
var ErrNoDaemon = errors.New("there is no daemon")

// GapTime bounds how long a client waits for the next daemon: with the answer of that daemon it is less than the two seconds
// after which every client has an answer or an error.
const GapTime = 1500 * time.Millisecond

// behindTime is how soon after a request that has waited in vain another one has waited as well: the kernel sends the requests of a
// directory one after the other.
const behindTime = 250 * time.Millisecond

// Daemons is the connection of a process to its daemons, one after the other. The zero C is none.
type Daemons[C comparable] struct {
	Alone func(bool) // called when a connection begins or ends; nil: nothing is

	lasts   bool // another daemon may follow
	mu      sync.Mutex
	conn    C
	changed chan struct{} // closed and replaced when conn changes
	vain    time.Time     // when the last wait for the next daemon ended without one
}

// New returns the connection to a daemon. lasts says that the process goes on without one.
func New[C comparable](conn C, lasts bool) *Daemons[C] {
	return &Daemons[C]{lasts: lasts, conn: conn, changed: make(chan struct{})}
}

// Connected returns the connection to the present daemon. It waits for the next one until end, but not behind a wait that was in vain.
func (d *Daemons[C]) Connected(end time.Time) (conn C, err error) {
	var none C
	for {
		d.mu.Lock()
		conn, changed := d.conn, d.changed
		waits := conn == none && d.lasts && !end.IsZero()
		if behind := waits && time.Since(d.vain) < behindTime; behind || waits && !time.Now().Before(end) {
			d.vain, waits = time.Now(), false
		}
		d.mu.Unlock()
		if conn != none {
			return conn, nil
		}
		if !waits {
			return none, ErrNoDaemon
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
		}
	}
}

// Meet begins with the connection to the next daemon, unless there is one.
func (d *Daemons[C]) Meet(conn C) {
	var none C
	d.replace(none, conn)
}

// Drop notes that a daemon has ended.
func (d *Daemons[C]) Drop(conn C) {
	var none C
	d.replace(conn, none)
}

func (d *Daemons[C]) replace(old, conn C) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conn != old || old == conn {
		return
	}
	var none C
	d.vain = time.Time{}
	if d.conn = conn; d.Alone != nil {
		d.Alone(conn == none)
	}
	close(d.changed)
	d.changed = make(chan struct{})
}
