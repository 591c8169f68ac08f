package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/scopefs/scopefs/internal/api"
)

// Sessions returns the agent's sessions, the oldest first: commands of the operator's,
// clients of its tools, and the sandboxes of tasks and MCP servers.
func (a *Agent) Sessions() []api.Session {
	a.mu.Lock()
	var list []api.Session
	clients, boxes, web := slices.Collect(maps.Keys(a.clients)), slices.Collect(maps.Values(a.sessions)), a.web
	a.mu.Unlock()
	for _, c := range clients {
		s := api.Session{ID: c.name, Agent: a.id, Kind: api.ClientSession, Since: c.began}
		if c == web {
			s.Kind = api.WebSession
		}
		if c.by != nil {
			s.Parent = c.by.name
		}
		if box := c.current(); box != nil {
			s.PID = box.PID()
			boxes = slices.DeleteFunc(boxes, func(b *Sandbox) bool { return b == box })
		}
		list = append(list, s)
	}
	for _, box := range boxes {
		list = append(list, api.Session{ID: box.Name, Agent: a.id, Kind: box.kind, Parent: box.parent,
			Command: box.command, Since: box.began, PID: box.PID()})
	}
	slices.SortFunc(list, func(x, y api.Session) int {
		return cmp.Or(x.Since.Compare(y.Since), strings.Compare(x.ID, y.ID))
	})
	return list
}

// current returns the client's sandbox; nil while there is none.
func (c *client) current() *Sandbox {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.box
}

// killTime bounds the end of a session. Killing takes milliseconds. A process that the
// kernel cannot kill, such as one in a frozen control group, takes longer.
const killTime = 5 * time.Second

// Kill ends a session of the agent for the operator: every process of its sandbox, its
// calls in flight, and the approvals that wait for it. It returns false if the agent has
// no such session. Other sessions of the agent go on. record records it before it is done. After five seconds without the end
// Kill returns an error; the end follows when the kernel can kill the processes.
func (a *Agent) Kill(ctx context.Context, name string, record func()) (bool, error) {
	end := a.ending(name)
	if end == nil {
		return false, nil
	}
	record()
	ended := make(chan error, 1)
	go func() {
		end()
		// After the calls have ended: one that was about to wait does not wait any more.
		ended <- a.Approvals().ForgetSession(a.id, name)
	}()
	late := time.NewTimer(killTime)
	defer late.Stop()
	select {
	case err := <-ended:
		if err != nil {
			a.Logger.Error("approvals", "agent", a.id, "session", name, "err", err)
		}
		return true, nil
	case <-late.C:
		return true,
			fmt.Errorf("session %s is killed, and the kernel has not ended its processes within %v: a process is frozen or waits for a device", name, killTime)
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// ending returns the function that ends a session and returns after its end; nil if there
// is no such session. The sandbox of a client stands for the client.
func (a *Agent) ending(name string) func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.clients {
		box := c.current()
		if c.name != name && (box == nil || box.Name != name) {
			continue
		}
		if c == a.web {
			a.web = nil
			return func() { a.endWeb(c) }
		}
		return func() {
			c.hangUp(errKilled)
			if box != nil {
				box.End() // the client's calls may wait for its processes
			}
			<-c.gone
		}
	}
	for _, box := range a.sessions {
		if box.Name == name {
			if box.Earlier != nil && box.Earlier.Web != "" {
				return func() { box.End(); a.endWeb(nil) }
			}
			return box.End
		}
	}
	return nil
}

var errKilled = errors.New("the operator has ended the session")
