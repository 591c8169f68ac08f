package egress

import (
	"errors"
	"time"

	"github.com/scopefs/scopefs/tools/egress/tunnel"
)

// carry moves the bytes of a tunnel until its end.
func (p *Proxy) carry(a *access, up socket) *refusal {
	defer a.in.Close()
	if r := p.sendAhead(a, up); r != nil {
		return r
	}
	_, _ = a.in.SetDeadline(time.Time{}), up.SetDeadline(time.Time{}) // a tunnel has none
	t := tunnel.New(a.in.socket, up, p.Limits.Idle, p.purse, &p.pipes)
	sent := a.sent.Load()
	a.in.carried(t)
	err := t.Run()
	a.sent.Store(sent + t.Sent.Load())
	a.got.Store(t.Got.Load())
	var stopped *refusal
	switch {
	case errors.As(err, &stopped):
		return stopped
	case err != nil:
		return broken(err)
	}
	return nil
}

// sendAhead sends the host what was read from the client already.
func (p *Proxy) sendAhead(a *access, up socket) *refusal {
	if len(a.in.ahead) == 0 {
		return nil
	}
	_ = up.SetWriteDeadline(time.Now().Add(p.Limits.Speak))
	n, err := up.Write(a.in.ahead)
	a.in.ahead = nil
	a.sent.Add(int64(n))
	if r := p.spend(int64(n)); r != nil {
		return r
	}
	if err != nil {
		return broken(err)
	}
	return nil
}

func broken(err error) *refusal { return &refusal{Message: "the tunnel broke", cause: err} }

// limitTunnels limits tunnels by the current rules.
func (p *Proxy) limitTunnels() { p.purse.Free(!p.authority.limited()) }
