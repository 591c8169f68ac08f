package contextfs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/scopefs/scopefs/internal/holder"
)

// protocol is the number of Left, and of the messages between a daemon and the process. A daemon takes over processes of the same
// number.
const protocol = 1

// Left is what a daemon keeps about a /context for the next one.
type Left struct {
	Protocol int    `json:"protocol"`
	Sandbox  int    `json:"sandbox"` // process 1
	PID      int    `json:"pid"`
	Minor    uint32 `json:"minor"` // of the mount's device number
}

// Keep makes the mount of a sandbox, by its process 1, live on when this daemon ends, for Options.Grace.
func (m *Mount) Keep(sandbox int) {
	if m == nil || m.opt.Grace == 0 || m.place == nil {
		return
	}
	if meta, err := json.Marshal(Left{protocol, sandbox, m.PID(), m.minor}); err == nil {
		m.place.Hold(m.PID(), meta, m.process.Held())
	}
}

// Of returns the process 1 of the sandbox of a /context that the last daemon has left; 0: this daemon cannot continue with it.
func Of(place *holder.Place) int {
	var left Left
	if json.Unmarshal(place.Meta, &left) != nil || left.Protocol != protocol {
		return 0
	}
	return left.Sandbox
}

// Adopt continues with a /context that the last daemon has left. Of its files the process drops those of other calls than keep.
// After an error the caller ends the place.
func Adopt(place *holder.Place, opt Options, keep []string) (*Mount, error) {
	var left Left
	if err := json.Unmarshal(place.Meta, &left); err != nil {
		return nil, err
	}
	m := newMount(opt, left.Minor)
	m.conn.Close()
	m.conn.File = place.Connection().File // of that mount, whichever has its number now
	m.place, m.config.Keep = place, keep
	err := m.process.Adopt(left.PID, place.Files, m.says())
	if err == nil {
		select {
		case <-m.process.Ended():
			err = errors.New("it has ended")
		default:
		}
	}
	if err == nil {
		theirs, failed := m.sockets()
		if err = failed; err == nil {
			err = m.process.Pass(theirs...)
		}
		closeFiles(theirs)
	}
	if err != nil {
		closeFiles([]*os.File{m.wire, m.heart})
		return nil, fmt.Errorf("process of /context: %w", err)
	}
	go m.run()
	return m, nil
}

// Leave leaves the mount to the next daemon. Requests wait for that daemon from now on.
func (m *Mount) Leave() {
	if m != nil && m.leaving.CompareAndSwap(false, true) {
		m.wire.Close()
		<-m.done
		m.gone()
	}
}
