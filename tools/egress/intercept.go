package egress

import "context"

// intercept lets the requests of a connection be decided one by one.
func (p *Proxy) intercept(ctx context.Context, a *access, answer func(*refusal) error) *refusal {
	if err := answer(nil); err != nil {
		a.in.Close()
		return failed(a.host, err)
	}
	switch p.sniff(a.in, true) {
	case speaksHTTP:
		p.handOver(ctx, a)
		return nil
	}
	a.in.Close()
	return malformed("the client speaks neither TLS nor HTTP")
}
