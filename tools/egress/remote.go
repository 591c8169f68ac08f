package egress

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
)

// Call sends a request to the Monitor of a proxy, and waits for the reply: after the end of ctx as well, which it tells the Monitor. An
// error says that there will be none. give is the connection of a request that has one; it stays the caller's.
type Call func(ctx context.Context, q Request, give syscall.Conn) (Reply, *os.File, error)

// Remote is a proxy whose authority is a [Monitor] in another process.
type Remote struct {
	*Proxy
	far *far
}

// far is the authority of a Remote.
type far struct {
	call Call

	mu          sync.Mutex
	open        map[uint64]*distant
	credentials map[string]Secret
	limit       atomic.Bool
	closing     atomic.Bool
}

// distant is a case that was sent to the Monitor and has not ended.
type distant struct {
	item *Item // nil: it waits for the decision
	stop func()
	over bool
}

// lastCase numbers the cases of this process.
var lastCase atomic.Uint64

// NewRemote returns a proxy that asks a Monitor by call. With secure the Monitor signs certificates, and o.CA is of no use. Of o.Dialer
// the proxy needs the address of Upstream.
func NewRemote(o Options, call Call, secure bool) (*Remote, error) {
	f := &far{call: call, open: map[uint64]*distant{}}
	if o.CA = nil; secure {
		leaves, err := newLeaves(f.sign)
		if err != nil {
			return nil, err
		}
		o.CA = &CA{leaves: leaves}
	}
	return &Remote{newProxy(o, f), f}, nil
}

// PortOf returns a port whose connections the Monitor checks and makes.
func (r *Remote) PortOf(way Way, at, number uint16, l net.Listener) Port {
	which := Case{Way: way, At: at, Port: number}
	return Port{Way: way, At: at, Number: number, Listener: l,
		Check: func(c net.Conn) error {
			reply, _, err := r.far.call(context.Background(), Request{Op: OpPeer, Case: which}, c.(syscall.Conn))
			if err == nil && reply.Refusal != nil {
				err = errors.New(reply.Refusal.Message)
			}
			return err
		},
		Connect: func(ctx context.Context) (net.Conn, error) {
			c, _, err := r.far.connect(ctx, OpLead, ctx.Value(accessKey{}).(*access))
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	}
}

// Closing has ends that cannot be recorded wait no longer: the proxy is about to end.
func (r *Remote) Closing() { r.far.closing.Store(true) }

// Stop ends a case that is not allowed any more.
func (r *Remote) Stop(id uint64) {
	r.far.mu.Lock()
	d, stop := r.far.open[id], func() {}
	if d != nil {
		if d.over = true; d.stop != nil {
			stop = d.stop
		}
	}
	r.far.mu.Unlock()
	stop()
}

// Update sets the credentials, and whether there is a limit of bytes.
func (r *Remote) Update(all []Credential, limited bool) {
	secrets := map[string]Secret{}
	for _, c := range all {
		secrets[c.Name] = Secret{Placeholder: c.Placeholder, Header: c.Header, Format: c.Format, Without: c.Without, Source: c.Source,
			Read: func(ctx context.Context) (credential.Secret, error) { return r.far.value(ctx, c) }}
	}
	r.far.mu.Lock()
	r.far.credentials = secrets
	r.far.mu.Unlock()
	r.far.limit.Store(limited)
	r.refresh()
}

// Items returns what is under way, for another Monitor.
func (r *Remote) Items() (all []Item) {
	r.far.mu.Lock()
	defer r.far.mu.Unlock()
	for _, d := range r.far.open {
		if d.item != nil {
			all = append(all, *d.item)
		}
	}
	return all
}

// unanswered is the refusal of what could not be decided.
func unanswered(err error) *refusal {
	return &refusal{Message: "nobody can decide about the connection now", Hint: "try again", status: http.StatusServiceUnavailable, cause: err}
}

func (f *far) admit(ctx context.Context, a *access) *refusal {
	if a.long() {
		return f.deny(ctx, a, tooLong())
	}
	a.id = lastCase.Add(1)
	d := &distant{}
	f.mu.Lock()
	f.open[a.id] = d
	f.mu.Unlock()
	r, _, err := f.call(ctx, Request{Op: OpAdmit, Case: a.wire()}, nil)
	if err != nil || r.Refusal != nil || r.Admitted == nil {
		f.drop(a)
		if err != nil || r.Refusal == nil {
			return unanswered(err)
		}
		a.in.learn(r.Admitted)
		return r.Refusal.refusal()
	}
	a.in.learn(r.Admitted)
	a.decision.Rule, a.route.Intercept, a.upward, a.local, a.divided, a.secret =
		r.Admitted.Rule, r.Admitted.Intercept, r.Admitted.Upward, r.Admitted.Local, r.Admitted.Divided, r.Admitted.Secret
	item := &Item{Case: a.wire(), State: r.Admitted.State}
	item.Case.Spent = nil
	f.mu.Lock()
	d.item = item
	f.mu.Unlock()
	return nil
}

// tooLong returns the refusal of an access that no message takes.
func tooLong() *refusal { return malformed("the target of a request has more than %d bytes", maxText) }

// learn notes the call that a connection is of.
func (c *incoming) learn(of *Admitted) {
	if of != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.call, c.known = of.Call, true
	}
}

// learned returns what learn has noted. The requests of a connection of HTTP/2 are decided side by side.
func (c *incoming) learned() (call string, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.call, c.known
}

func (f *far) judge(ctx context.Context, a *access) *refusal {
	if a.long() {
		return tooLong()
	}
	r, _, err := f.call(ctx, Request{Op: OpJudge, Case: a.wire()}, nil)
	if err != nil {
		return unanswered(err)
	}
	return r.Refusal.refusal()
}

func (f *far) deny(ctx context.Context, a *access, r *refusal) *refusal {
	if a.long() {
		clipped := summary(a)
		clipped.in, a = a.in, clipped
	}
	said, _, err := f.call(context.WithoutCancel(ctx), Request{Op: OpDeny, Case: a.wire(), Refusal: r.wire()}, nil)
	if err != nil || said.Refusal == nil {
		return unanswered(err)
	}
	a.in.learn(said.Admitted)
	return said.Refusal.refusal()
}

func (f *far) end(ctx context.Context, a *access, r *refusal) {
	defer f.drop(a)
	e := &Ended{Status: a.status, Sent: a.sent.Load(), Got: a.got.Load(), Remote: a.remote, Took: a.lasted()}
	for {
		said, _, err := f.call(context.WithoutCancel(ctx), Request{Op: OpEnd, Case: Case{ID: a.id}, Ended: e, Refusal: r.wire()}, nil)
		if err != nil || said.Refusal == nil || f.closing.Load() {
			return
		}
		time.Sleep(recordTime) // the log cannot be written
	}
}

// recordTime is the time between two requests to record an end.
const recordTime = time.Second

func (f *far) drop(a *access) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.open, a.id)
}

func (f *far) hold(a *access, stop func()) {
	f.mu.Lock()
	d := f.open[a.id]
	over := d != nil && d.over
	if d != nil {
		d.stop = stop
	}
	f.mu.Unlock()
	if over {
		stop()
	}
}

func (f *far) holds(a *access) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.open[a.id]
	return d != nil && !d.over
}

func (f *far) dial(ctx context.Context, a *access) (socket, string, error) {
	c, r, err := f.connect(ctx, OpDial, a)
	return c, r.CA, err
}

func (f *far) dialUpstream(ctx context.Context, a *access) (socket, error) {
	c, _, err := f.connect(ctx, OpUpstream, a)
	return c, err
}

func (f *far) connect(ctx context.Context, op Op, a *access) (socket, Reply, error) {
	r, file, err := f.call(ctx, Request{Op: op, Case: Case{ID: a.id}}, nil)
	if file != nil {
		defer file.Close()
	}
	switch {
	case err != nil:
		return nil, r, unanswered(err)
	case ctx.Err() != nil:
		return nil, r, ctx.Err()
	case r.Refusal != nil:
		return nil, r, r.Refusal.refusal()
	case file == nil:
		return nil, r, unanswered(nil)
	}
	c, err := net.FileConn(file)
	if err != nil {
		return nil, r, err
	}
	s, ok := c.(socket)
	if !ok {
		c.Close()
		return nil, r, fmt.Errorf("a connection of type %T", c)
	}
	f.mu.Lock()
	if d := f.open[a.id]; d != nil && d.item != nil {
		d.item.Remote = r.Remote
	}
	f.mu.Unlock()
	return s, r, nil
}

func (f *far) checkUpward(ctx context.Context, a *access) error {
	r, _, err := f.call(ctx, Request{Op: OpUpward, Case: Case{ID: a.id}}, nil)
	switch {
	case err != nil:
		return unanswered(err)
	case r.Refusal != nil:
		return r.Refusal.refusal()
	}
	return nil
}

func (f *far) secrets() map[string]Secret {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.credentials
}

func (f *far) value(ctx context.Context, c Credential) (s credential.Secret, err error) {
	r, _, err := f.call(ctx, Request{Op: OpSecret, Name: c.Name, Source: c.Source}, nil)
	switch {
	case err != nil:
		return s, unanswered(err)
	case r.Refusal != nil && r.Refusal.Status != 0: // the rules have changed
		return s, r.Refusal.refusal()
	case r.Refusal != nil:
		return s, errors.New(r.Refusal.Message)
	}
	return credential.Known(r.Value), nil
}

func (f *far) sign(host string, key crypto.PublicKey) ([][]byte, error) {
	text, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, err
	}
	r, _, err := f.call(context.Background(), Request{Op: OpLeaf, Name: host, Key: text}, nil)
	switch {
	case err != nil:
		return nil, err
	case r.Refusal != nil:
		return nil, r.Refusal.refusal()
	case len(r.Chain) == 0 || slices.ContainsFunc(r.Chain, func(c []byte) bool { return len(c) == 0 }):
		return nil, errors.New("there is no certificate")
	}
	return r.Chain, nil
}

func (f *far) limited() bool { return f.limit.Load() }

func (f *far) lease(least int64) (int64, *refusal) {
	r, _, err := f.call(context.Background(), Request{Op: OpLease, Least: least}, nil)
	switch {
	case err != nil:
		return 0, unanswered(err)
	case r.Refusal != nil:
		return 0, r.Refusal.refusal()
	}
	return r.Bytes, nil
}
