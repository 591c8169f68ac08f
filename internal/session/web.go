package session

import (
	"context"
	"errors"
	"time"

	"github.com/scopefs/scopefs/tools/mcp"
)

// ErrNotOpen is the error of an agent whose tools cannot be used: it is down.
var ErrNotOpen = errors.New("the agent has no tools now")

// WebFace returns the agent's tools for HTTP requests, which share one client. An agent
// that is down has none, as it has no socket.
func (a *Agent) WebFace(ctx context.Context) (*mcp.Face, error) {
	a.webAsked.Store(true)
	if face, _ := a.webFace(); face != nil {
		return face, nil
	}
	free, err := a.connecting.Take(ctx)
	if err != nil {
		return nil, err
	}
	defer free()
	task := work{web: true}
	if a.Web != nil {
		if task.earlier, err = a.ReturnedWeb(ctx, a.id); err != nil {
			return nil, err
		}
	}
	if face, open := a.webFace(); face != nil || !open {
		if task.earlier != nil && !task.earlier.leaves() {
			task.earlier.End()
		}
		if !open {
			err = ErrNotOpen
		}
		return face, err
	}
	c, err := a.newReturned("", "", task)
	if err == nil {
		if err = a.admit(c); err == nil {
			go whenIdle(c.life, func() bool { return a.webBusy(c.face.Sessions()) }, func() { a.dropWeb(c) })
			return c.face, nil
		}
		a.leave(c)
	}
	return nil, err
}

// webIdle is how long the client of HTTP requests outlives the last session, and the last request: clients that make a session
// for each call keep their sandbox.
const webIdle = time.Minute

// webBusy reports whether the client of HTTP requests has sessions, or had a request since the last webBusy.
func (a *Agent) webBusy(sessions int) bool {
	return a.webAsked.Swap(false) || sessions > 0
}

// whenIdle calls end when nothing was busy for webIdle, unless life ends before.
func whenIdle(life context.Context, busy func() bool, end func()) {
	tick := time.NewTicker(webIdle / 4)
	defer tick.Stop()
	for idle := 0; idle < 4; idle++ {
		select {
		case <-life.Done():
			return
		case <-tick.C:
		}
		if busy() {
			idle = -1
		}
	}
	end()
}

// dropWeb ends the client of HTTP requests if it still is c.
func (a *Agent) dropWeb(c *client) {
	a.mu.Lock()
	same := a.web == c
	if same {
		a.web = nil
	}
	a.mu.Unlock()
	if same {
		a.endWeb(c)
	}
}

// webFace returns the tools of the client of HTTP requests, if there is one. open reports whether there can be one.
func (a *Agent) webFace() (face *mcp.Face, open bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.socket != nil && a.web != nil {
		face = a.web.face
	}
	return face, a.socket != nil
}

// CloseWeb ends the client of HTTP requests.
func (a *Agent) CloseWeb() {
	a.mu.Lock()
	c := a.web
	a.web = nil
	a.mu.Unlock()
	a.endWeb(c)
}

// endWeb ends the client of HTTP requests, if there is one, and all sessions.
func (a *Agent) endWeb(c *client) {
	if c != nil {
		a.leave(c)
	}
	if a.Web != nil {
		a.Web.End(a.id)
	}
}

// leave closes a client. The next daemon may have its sandbox: this one closes its end before it leaves the holder.
func (a *Agent) leave(c *client) {
	leave, err := a.Enter()
	if err != nil { // close waits for no more
		leave = func() {}
	}
	left := c.close()
	go func() {
		defer leave()
		if left != nil {
			<-left.Done()
			left.End()
		}
	}()
}
