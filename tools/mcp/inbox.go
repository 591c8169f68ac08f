package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/scopefs/scopefs/internal/rpc"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
)

// Inbox bounds what the clients of an agent send, over all its Faces, before a message reaches the SDK. The SDK queues
// messages without a bound, while a handler waits for a client that does not read, and after the client has disconnected.
type Inbox struct {
	time *limit.Share // of a processor: see turn
	long *limit.Slots // of messages of more than shortMessage bytes, from their arrival until a door bounds them
	read *limit.Queue // the turn to be parsed: see turn
	held limit.Budget // bytes of the messages that the SDK has
	rest limit.Budget // bytes that calls under way have beside their arguments

	waiting atomic.Int32 // messages that wait for long

	buffer weak.Pointer[[]byte] // for the message that has the turn of long; a sync.Pool would have one for each processor
}

// NewInbox returns the bounds of an agent, whose share of a processor is share.
func NewInbox(share *limit.Share) *Inbox {
	return &Inbox{time: share, long: limit.NewSlots(1), read: limit.NewQueue(1, 1, readTime)}
}

const (
	shortMessage = 64 << 10         // bytes that each client may have sent of a message
	longTime     = 30 * time.Second // for the rest of a longer message; an agent sends one longer message at a time
	turnTime     = 5 * time.Second  // for it while another client waits with one
	readTime     = 50 * time.Millisecond
	maxInbox     = 32 << 20              // bytes of an agent's messages that the SDK has, without calls under way
	maxRest      = 32 << 20              // bytes that calls under way have beside their arguments, which the set's door bounds
	otherTime    = time.Millisecond      // of a processor, for a request that is no call: its answer may list all tools
	refusedTimes = 4                     // how often the time to parse a call is for its refusal: the door parses it again, and says why
	largeMessage = 1 << 20               // bytes of a message that keeps its buffer, and whose memory is collected at once
	largeRoom    = 16 << 20              // bytes that a large message may take before memory is collected for it
	collectTime  = 20 * time.Millisecond // that the collection counts at most: it may have waited for a processor
	maxNotes     = 64                    // notifications of a session over HTTP that the SDK has
)

// errSlow is the error of a client that does not complete a message.
var errSlow = errors.New("a message was not complete within 30 s, or within 5 s while another client waits")

// errFull is the error of a message for which an agent's clients have left no room.
var errFull = errors.New("rate_limited: too many bytes in messages that wait: send it again")

// errInFlight is the error of a request with the id of another one.
var errInFlight = errors.New("a request with this id is in flight")

// initialized is the method of the notification that ends a handshake.
const initialized = "notifications/initialized"

// wanted reports whether the SDK needs a notification, and reduces the notification to what the SDK reads of it. Others
// have no effect here.
func wanted(r *jsonrpc.Request) bool {
	switch r.Method {
	case initialized:
		r.Params = nil
		return true
	case cancelled:
		id := cancelledID(r.Params)
		if text, _ := id.Raw().(string); !id.IsValid() || len(text) > maxID+len(idMark) {
			return false
		}
		var err error
		r.Params, err = json.Marshal(map[string]any{"requestId": id.Raw()})
		return err == nil
	}
	return false
}

// cancelledID returns the id of the request that a notification cancels; it is not valid if the parameters have none.
func cancelledID(params json.RawMessage) (id jsonrpc.ID) {
	var p struct {
		ID any `json:"requestId"`
	}
	if json.Unmarshal(params, &p) == nil {
		id, _ = jsonrpc.MakeID(p.ID)
	}
	return id
}

// isCall reports whether the set's door bounds a message: a tool is called, at once or in the end.
func isCall(method string) bool {
	switch method {
	case methodCall, "resources/read", "resources/list", "completion/complete":
		return true
	}
	return strings.HasPrefix(method, rpc.ResumePrefix)
}

// turn waits until the time to parse a message of so many bytes is earned, and no other message of the agent is parsed. Whatever an
// agent sends, and by how many clients, it is one goroutine among those of other agents, for a part of the time, until the door bounds
// its calls: we parse a message before that, and so does the SDK. done ends the turn, which ends by itself after readTime: the SDK may
// have to wait for a client.
func (b *Inbox) turn(life context.Context, size int) (done func(), err error) {
	if err := b.time.Wait(life, tools.ParseTime(size)); err != nil {
		return nil, err
	}
	return b.read.Take(life, "")
}

// tally counts the values of a message that has its turn. cost is the time to parse it.
func (b *Inbox) tally(text []byte) (cost time.Duration, err error) {
	var t tools.Tally
	err = t.Add(text)
	cost = t.Time()
	b.time.Spend(cost - tools.ParseTime(len(text)))
	return cost, err
}

// admit waits until the time to parse the head of a request over HTTP is earned.
func (b *Inbox) admit(r *http.Request) error {
	size := len(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return b.time.Wait(r.Context(), tools.ParseTime(size))
}

// other spends the time of a request that is no call.
func (b *Inbox) other() { b.time.Spend(otherTime) }

// refused spends the time of a call that was refused for its arguments, by the door or by the SDK.
func (b *Inbox) refused(cost time.Duration) { b.time.Spend(refusedTimes * cost) }

// errRest is the error of a call for which other calls have left no room.
var errRest = tools.Errorf(tools.RateLimited, "too many bytes beside the arguments of calls under way").
	Suggest("send less in _meta, or call again when others have ended")

// call has the door bound the arguments of a message in place of held, whose bytes free releases. The SDK keeps the message and
// its decoded _meta while the call runs.
func (b *Inbox) call(size, arguments int, free func()) (end func(), err error) {
	end = func() {}
	if size -= arguments; size > shortMessage {
		ok := false
		if end, ok = b.rest.Hold(size, maxRest); !ok {
			return nil, errRest
		}
	}
	free()
	return end, nil
}

// begin takes the agent's turn for a long message, and a buffer that begins with the part of the message that has arrived.
// cut is called when the rest does not arrive in time.
func (b *Inbox) begin(ctx context.Context, part []byte, cut func()) (*long, error) {
	b.waiting.Add(1)
	done, err := b.long.Take(ctx)
	b.waiting.Add(-1)
	if err != nil {
		return nil, err
	}
	turn, arrived := context.WithCancel(ctx)
	began := time.Now()
	look := time.AfterFunc(turnTime, func() { b.late(turn, began, cut) })
	kept := b.buffer.Value()
	if kept == nil || *kept == nil { // whole at once: a buffer that grows leaves garbage, and pages that nothing has written take no memory
		whole := make([]byte, 0, maxMessage+1)
		kept = &whole
		b.buffer = weak.Make(kept)
	}
	return &long{kept: kept, text: append((*kept)[:0], part...), arrived: func() { arrived(); look.Stop() }, done: done, time: b.time}, nil
}

// long is a message that has the turn of long.
type long struct {
	kept    *[]byte
	text    []byte
	arrived func() // it is complete, or its client is gone
	large   bool   // room counts it
	done    func()
	time    *limit.Share
}

// whole notes that the message is complete, or its client gone.
func (m *long) whole() {
	m.arrived()
	if m.large = len(m.text) > largeMessage; m.large {
		room.count(1)
	}
}

// room is the soft limit of the process's memory while it has large messages: the SDK copies one several times, and the collector
// would wait until the copies are as much as all that lives.
var room rooms

type rooms struct {
	mu       sync.Mutex
	messages int64
	before   int64 // bytes of memory before the first of them
	limit    int64 // the process's own
}

// count counts large messages in, or out.
func (r *rooms) count(by int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.messages == 0 {
		used := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
		metrics.Read(used)
		r.before, r.limit = int64(used[0].Value.Uint64()-used[1].Value.Uint64()), debug.SetMemoryLimit(-1)
	}
	now := r.limit
	if r.messages += by; r.messages > 0 {
		now = min(r.limit, r.before+r.messages*largeRoom)
	}
	debug.SetMemoryLimit(now)
}

// end gives back the turn and the buffer. A large message keeps the buffer; the next one finds the memory of that before collected.
func (m *long) end() {
	if m.arrived(); !m.large {
		*m.kept = m.text[:0]
		m.done()
		return
	}
	*m.kept, m.text = nil, nil
	go func() {
		defer m.done()
		began := time.Now()
		debug.FreeOSMemory()
		room.count(-1)
		m.time.Spend(min(time.Since(began), collectTime))
	}()
}

// late calls cut if the message is not complete, and another one waits or longTime is over; else it looks again after turnTime.
func (b *Inbox) late(turn context.Context, began time.Time, cut func()) {
	switch {
	case turn.Err() != nil:
	case b.waiting.Load() > 0, time.Since(began) >= longTime:
		cut()
	default:
		time.AfterFunc(turnTime, func() { b.late(turn, began, cut) })
	}
}

// readLine reads a client's next line. release gives back what the line takes; the line must not be used any more. Before
// longTime is over, the connection of a client that does not complete a line ends.
func (b *Inbox) readLine(ctx context.Context, l *lines) (line []byte, release func(), err error) {
	line, err = rpc.ReadPart(l.in, l.line[:0], shortMessage)
	if l.line = line; !errors.Is(err, rpc.ErrTooLong) {
		return line, func() {}, err
	}
	if l.line = nil; line[len(line)-1] == '\n' { // it is complete: nothing more belongs to it
		return line, func() {}, nil
	}
	var late atomic.Bool
	m, err := b.begin(ctx, line, func() { late.Store(true); l.Close() })
	if err != nil { // the connection was closed meanwhile
		return nil, func() {}, io.EOF
	}
	m.text, err = rpc.ReadPart(l.in, m.text, maxMessage)
	m.whole()
	if err != nil && late.Load() {
		err = errSlow
	}
	return m.text, sync.OnceFunc(m.end), err
}

// handOver returns what releases a call that the SDK has, which has the turn of a long one if size says so: release gives it back when
// the door bounds the call, or after turnTime: the SDK may have to wait for a client. free releases the rest.
func handOver(size int, free, release func()) func() {
	if size <= shortMessage {
		release()
		return sync.OnceFunc(free)
	}
	late := time.AfterFunc(turnTime, release)
	return sync.OnceFunc(func() {
		late.Stop()
		free()
		release()
	})
}

// readBody reads a message over HTTP, and a byte more than one may have. release gives back what the text takes; the text
// must not be used any more. setDeadline is of reads of the body: a turn may begin when the time for the whole body is over.
func (b *Inbox) readBody(ctx context.Context, body io.Reader, setDeadline func(time.Time)) (text []byte, release func(), err error) {
	part, err := io.ReadAll(io.LimitReader(body, shortMessage+1))
	if err != nil || len(part) <= shortMessage {
		return part, func() {}, err
	}
	m, err := b.begin(ctx, part, func() { setDeadline(time.Now()) })
	if err != nil {
		return nil, func() {}, err
	}
	setDeadline(time.Now().Add(longTime))
	into := bytes.NewBuffer(m.text)
	_, err = into.ReadFrom(io.LimitReader(body, maxMessage-shortMessage))
	m.text = into.Bytes()
	m.whole()
	return m.text, sync.OnceFunc(m.end), err
}

// notes counts the notifications of sessions over HTTP that the SDK has.
type notes struct {
	mu sync.Mutex
	of map[string]int
}

// add counts a notification of a session. It reports false beyond maxNotes.
func (n *notes) add(session string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[session] >= maxNotes {
		return false
	}
	if n.of == nil || len(n.of) > maxSessions { // of sessions that have ended
		n.of = map[string]int{}
	}
	n.of[session]++
	return true
}

// done notes that the SDK has handled a notification.
func (n *notes) done(session string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of[session] > 1 {
		n.of[session]--
	} else {
		delete(n.of, session)
	}
}

// handled releases what a notification takes.
func (f *Face) handled(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == initialized || method == cancelled {
			if src := sourceOf(req); src != nil {
				defer src.free()
			} else {
				defer f.notes.done(req.GetSession().ID())
			}
		}
		return next(ctx, method, req)
	}
}

// keep makes a message independent of the line of size bytes that it was read from. What is the most of a large line keeps it: whoever
// accounts for the message accounts for the half of the line at least.
func keep(m jsonrpc.Message, id []byte, size int) (jsonrpc.Message, []byte) {
	own := func(part []byte) []byte {
		if size > largeMessage && len(part) > size/2 {
			return part
		}
		return bytes.Clone(part)
	}
	switch m := m.(type) {
	case *jsonrpc.Request:
		m.Params = own(m.Params)
	case *jsonrpc.Response:
		m.Result = own(m.Result)
	}
	return m, bytes.Clone(id)
}
