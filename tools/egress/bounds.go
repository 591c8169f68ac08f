package egress

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/limit"
)

// Limits bounds the proxies of one agent. Zero values have the defaults.
type Limits struct {
	Connections int           // at a time; more are closed at once; default 2048
	Requests    int           // under way, in all connections; more are refused; default 1024
	Speak       time.Duration // for a client to send a request's head, or a handshake, and to take a refusal; default 10 s
	Idle        time.Duration // without a byte in either direction; default 15 min
	Approve     time.Duration // for the operator; default 5 min
}

// Bounds are the slots of what an agent has under way in the daemon. All proxies of the agent
// share them, so that no number of sandboxes, connections and streams fills the daemon's memory.
// Make them by [NewBounds].
type Bounds struct {
	share       *limit.Share // what its connections, handshakes and requests take of a processor before they are decided
	connections *limit.Slots
	secure      *limit.Slots // connections whose TLS the proxy terminates
	multiplexed *limit.Slots // connections with HTTP/2, which are secure, too
	handshakes  *limit.Pace  // TLS handshakes with clients
	shaking     *limit.Slots // those under way
	requests    *limit.Slots // requests under way in HTTP/1
	streams     *limit.Slots // requests under way in HTTP/2
	refusing    *limit.Slots // answers to requests that have no slot
	long        *limit.Slots // requests with a head of more than shortHead bytes
}

// The bounds that Limits does not have. A connection with HTTP/2 costs the most memory: it has
// buffers, a table of HPACK, and a head that is not complete. A client that gets none of them speaks HTTP/1.1.
const (
	maxSecure      = 512
	maxMultiplexed = 32
	maxShaking     = 16
	maxRequests2   = 256 // in HTTP/2
	maxRefusing    = 64
	maxLong        = 64

	handshakesPerSecond = 100 // each takes shakeTime

	// maxStreams is for one connection. Clients open 100 streams before they know the bound (RFC 9113, section 6.5.2).
	maxStreams = 100

	// maxWindow limits the bytes of a body that HTTP/2 buffers, for one request or one connection of a client.
	maxWindow = 256 << 10
)

// withDefaults returns the limits with their defaults.
func (l Limits) withDefaults() Limits {
	l.Speak, l.Idle = cmp.Or(l.Speak, 10*time.Second), cmp.Or(l.Idle, 15*time.Minute)
	l.Approve = cmp.Or(l.Approve, 5*time.Minute)
	l.Connections, l.Requests = cmp.Or(l.Connections, 2048), cmp.Or(l.Requests, 1024)
	return l
}

// NewBounds returns free slots. Requests have a share of a processor; nil: as much as there is.
func NewBounds(l Limits, share *limit.Share) *Bounds {
	l = l.withDefaults()
	return &Bounds{
		share:       share,
		connections: limit.NewSlots(l.Connections),
		secure:      limit.NewSlots(min(l.Connections, maxSecure)),
		multiplexed: limit.NewSlots(min(l.Connections, maxMultiplexed)),
		handshakes:  limit.NewPace(handshakesPerSecond, 2*handshakesPerSecond, nil),
		shaking:     limit.NewSlots(maxShaking),
		requests:    limit.NewSlots(l.Requests),
		streams:     limit.NewSlots(min(l.Requests, maxRequests2)),
		refusing:    limit.NewSlots(maxRefusing),
		long:        limit.NewSlots(maxLong),
	}
}

// connectTime is what a connection takes of a processor until its first byte is parsed, shakeTime what a TLS handshake takes, headTime
// what a request takes until it is decided, and byteTime what each byte of its head adds.
const (
	connectTime = 100 * time.Microsecond
	shakeTime   = 500 * time.Microsecond
	headTime    = 100 * time.Microsecond
	byteTime    = 15 * time.Nanosecond
)

// wait returns when the time for a request is earned, or ctx ends. It waits also for a request that its client has reset: net/http ends
// a connection of HTTP/2 with too many of those.
func (b *Bounds) wait(ctx context.Context, r *http.Request) {
	_ = b.share.Wait(ctx, headTime+byteTime*time.Duration(headSize(r.Host+r.RequestURI, r.Header)))
}

// take takes the slots of a request. many is the refusal of a request that gets none.
func (b *Bounds) take(r *http.Request) (release func(), many *refusal) {
	slots := b.requests
	if r.ProtoMajor == 2 {
		slots = b.streams
	}
	free, ok := slots.Try()
	if !ok {
		return nil, tooMany("requests")
	}
	if headSize(r.Host+r.RequestURI, r.Header) <= shortHead {
		return free, nil
	}
	freeLong, ok := b.long.Try()
	if !ok {
		free()
		return nil, tooMany("long heads")
	}
	return func() { freeLong(); free() }, nil
}

// folds counts the refusals that a bound causes: they come faster than the log takes them. The
// log has a line for the first refusal of a host, or of a directory of its paths, by a rule, and in each later minute one
// with the number of the others.
type folds struct {
	mu     sync.Mutex
	counts map[foldKey]*folded
}

// maxFolds limits the hosts and rules that are counted. The refusals of further hosts have one
// number together.
const maxFolds = 256

// maxBelow limits the directories of a host that are counted for a rule. The other paths have one number together.
const maxBelow = 16

// foldTime is the time from one line of a host and a rule to the next.
const foldTime = time.Minute

type foldKey struct {
	op, host string
	port     uint16
	rule     string
	below    string // the first component of a path; "": other paths, or a connection
}

// folded has refusals that are recorded together.
type folded struct {
	access  *access
	refusal *refusal
	more    int64 // since the last line
}

// foldRefusal records a refusal that a bound causes, at once or with the next number.
func (p *Proxy) foldRefusal(ctx context.Context, a *access, r *refusal) {
	if !p.folds.add(a, r) {
		_ = p.authority.deny(ctx, summary(a), r) // it is refused whether recorded or not
	}
}

// add counts a refusal. It returns false for the first one of its key.
func (f *folds) add(a *access, r *refusal) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := foldKey{a.op, a.host, a.port, r.Rule, below(a.path)}
	if f.counts[key] == nil && f.directories(key) >= maxBelow {
		key.below = ""
	}
	if len(f.counts) >= maxFolds && f.counts[key] == nil {
		key.host, key.port, key.below = "", 0, ""
	}
	if kept := f.counts[key]; kept != nil {
		kept.more++
		return true
	}
	if f.counts == nil {
		f.counts = map[foldKey]*folded{}
	}
	kept := *r
	switch {
	case key.host != a.host:
		kept.Message = "requests to many hosts: " + r.Rule
	case a.op == "request" && r.verdict == audit.Deny && r.kind != scope.KindRate: // by the rules
		kept.Message = key.requests(a.scheme) + " are not allowed"
	case a.op == "request":
		kept.Message += ": " + key.requests(a.scheme)
	}
	f.counts[key] = &folded{summary(a), &kept, 0}
	return false
}

// directories returns how many directories of a key's host are counted for its rule.
func (f *folds) directories(key foldKey) (n int) {
	for other := range f.counts {
		below := other.below
		if other.below = key.below; other == key && below != "" {
			n++
		}
	}
	return n
}

// maxComponent limits a directory that is counted, in bytes.
const maxComponent = 100

// below returns the first component of a path, with slashes around it; "" if nothing is below one.
func below(path string) string {
	if i := strings.IndexByte(strings.TrimPrefix(path, "/"), '/'); i > 0 && i <= maxComponent {
		return path[:i+2]
	}
	return ""
}

// requests names what is counted.
func (k foldKey) requests(scheme string) string {
	host := scheme + "://" + authorityOf(k.host, k.port, scheme)
	if k.below == "" {
		return "requests to other paths of " + host
	}
	return "requests to " + host + k.below + "*"
}

// summary returns an access of the same host without method and path.
func summary(a *access) *access {
	return &access{in: &incoming{}, op: a.op, way: a.way, at: a.at, host: a.host, port: a.port, began: a.began, many: true}
}

// recordFolds records the numbers, and forgets the hosts that have none.
func (p *Proxy) recordFolds(ctx context.Context) {
	p.folds.mu.Lock()
	var due []folded
	for key, kept := range p.folds.counts {
		if kept.more == 0 {
			delete(p.folds.counts, key)
			continue
		}
		due = append(due, *kept)
		kept.more = 0
	}
	p.folds.mu.Unlock()
	for _, kept := range due {
		kept.access.unrecorded = kept.more - 1
		_ = p.authority.deny(ctx, kept.access, kept.refusal) // they are refused whether recorded or not
	}
}

// keepFolds records the numbers until ctx ends, and then the last ones.
func (p *Proxy) keepFolds(ctx context.Context) {
	tick := time.NewTicker(foldTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.recordFolds(ctx)
		case <-ctx.Done():
			p.recordFolds(context.WithoutCancel(ctx))
			return
		}
	}
}

// overload answers a request that has no slot. The rules decide first: the log has the rule of what they
// deny, whatever the load. The answer waits for a slot of its own, and the request's head does not wait with it: the
// wait slows down a client that sends too much. A client that does not get a slot in time loses its connection.
func (p *Proxy) overload(w http.ResponseWriter, r *http.Request, a *access, wrong, many *refusal) {
	if wrong == nil {
		wrong = p.authority.judge(r.Context(), a)
	}
	wrong = cmp.Or(wrong, many)
	p.foldRefusal(r.Context(), a, wrong)
	if len(wrong.Message) > shortMessage {
		wrong = many
	}
	r.Header, r.URL, r.RequestURI = nil, &url.URL{}, ""
	ctx, cancel := context.WithTimeout(r.Context(), p.Limits.Speak)
	defer cancel()
	release, err := p.bounds.refusing.Take(ctx)
	if err != nil {
		a.in.Close()
		panic(http.ErrAbortHandler)
	}
	defer release()
	p.refuse(w, a, wrong)
}

// shortMessage limits what an answer without a slot repeats of its request, in bytes.
const shortMessage = 512

// refuse writes the answer to a refused request. It ends the connection of a client that does
// not take the answer in time: an answer waits for a window of HTTP/2 for ever, with the request's head.
func (p *Proxy) refuse(w http.ResponseWriter, a *access, wrong *refusal) {
	control := http.NewResponseController(w)
	late := time.Now().Add(p.Limits.Speak)
	_ = control.SetReadDeadline(late) // net/http may read the body first
	if a.proto == 2 {
		_ = control.SetWriteDeadline(late) // of HTTP/1 framedConn has it
	}
	if wrong.write(w, a) != nil || control.Flush() != nil {
		a.in.Close()
	}
}

// watch ends a connection when no byte of the exchange's bodies moves for the idle time, or twice as
// long at most: a client that reads nothing keeps its slot no longer.
func (p *Proxy) watch(a *access) (stop func()) {
	var mu sync.Mutex // of the others
	var timer *time.Timer
	var last int64
	over := false
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(p.Limits.Idle, func() {
		mu.Lock()
		defer mu.Unlock()
		moved := a.sent.Load() + a.got.Load()
		switch {
		case over:
		case moved != last:
			last = moved
			timer.Reset(p.Limits.Idle)
		default:
			a.stopped.CompareAndSwap(nil, &refusal{Message: "nothing has moved for " + p.Limits.Idle.String(), status: http.StatusGatewayTimeout})
			a.in.Close()
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}
