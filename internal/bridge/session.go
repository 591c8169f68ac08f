package bridge

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/scopefs/scopefs/internal/rpc"
)

// session is the state of the client's session, as needed to restore it with
// another daemon. The caller of its methods holds Bridge.mu.
type session struct {
	initialize  []byte // the client's request as a line, or nil
	version     string // the protocol version in the first daemon's response; "" before it
	initialized []byte // the client's notification
	setLevel    []byte // the client's last request

	open           map[string]request // the client's requests in flight, by key
	openBytes      int                // of the lines of calls among them
	serverRequests map[string]jsonID  // the daemon's requests in flight: the bridge's ID to the daemon's ID
	serverIDs      int                // number of requests by all daemons

	held      []queued // messages that wait for a connection
	heldBytes int
}

// request is a request of the client in flight.
type request struct {
	id     jsonID
	method string
	line   []byte // of a subscription, which the bridge repeats, and of a call; nil: it was too long
	ours   bool   // the bridge made the request; the client does not know its ID

	there     bool   // the daemon of the present connection has the subscription
	call      string // the daemon's id of a call that outlives it; "": it does not
	away      bool   // the call is to be resumed with the next daemon
	cancelled bool   // of a subscription, whose end is a response
}

// queued is a message that the client sent while there was no connection.
type queued struct {
	message
	line []byte
	at   time.Time
}

// The limits of the held messages: their number and their size in bytes.
const (
	maxHeld      = 256
	maxHeldBytes = 16 << 20
)

// send records a message to the daemon and returns it in the form for the
// daemon, or nil if the daemon must not receive it.
func (s *session) send(m message, line []byte) []byte {
	switch {
	case m.response():
		id, theirs := s.asked(m)
		if theirs == nil { // for an earlier daemon; this one may use the ID for another request
			return nil
		}
		delete(s.serverRequests, id)
		return withID(line, theirs)
	case m.request():
		r := request{id: slices.Clone(m.ID), method: m.Method}
		switch m.Method {
		case methodInitialize:
			s.initialize, s.version, s.initialized = slices.Clone(line), "", nil
		case methodSetLevel:
			s.setLevel = slices.Clone(line)
		case methodListen:
			r.line, r.there = slices.Clone(line), true
		case methodCall:
			if s.openBytes+len(line) <= maxHeldBytes {
				r.line = slices.Clone(line)
				s.openBytes += len(line)
			}
		}
		s.close(m.key())
		s.open[m.key()] = r
	case m.Method == methodCancelled:
		key := key(contentOf(line).Params.RequestID)
		switch r, open := s.open[key]; {
		case !open, r.method == methodInitialize: // the daemon does not cancel it
		case r.method == methodListen:
			r.cancelled = true
			s.open[key] = r
		default: // the daemon sends no response (MCP, Cancellation)
			s.close(key)
		}
	case m.Method == methodInitialized:
		s.initialized = slices.Clone(line)
	}
	return line
}

// asked returns the ID of a response, and the daemon's ID for its request: nil if the
// present daemon made no such request.
func (s *session) asked(m message) (id string, theirs jsonID) {
	_ = json.Unmarshal(m.ID, &id)
	return id, s.serverRequests[id]
}

// receive records a message from the daemon and returns it in the form for the
// client, or nil if the client must not receive it.
func (s *session) receive(m message, line []byte) []byte {
	switch {
	case m.response():
		r := s.close(m.key())
		if r.method == methodInitialize && s.version == "" {
			s.version = contentOf(line).Result.ProtocolVersion
		}
		if r.ours {
			return nil
		}
	case m.request():
		// The next daemon may reuse the ID, so the client gets another one.
		s.serverIDs++
		id := fmt.Sprintf("scopefs-%d", s.serverIDs)
		text, _ := json.Marshal(id)
		s.serverRequests[id] = slices.Clone(m.ID)
		return withID(line, text)
	}
	return line
}

// close removes a request in flight, and returns it.
func (s *session) close(key string) request {
	r := s.open[key]
	delete(s.open, key)
	if r.method == methodCall {
		s.openBytes -= len(r.line)
	}
	return r
}

// kept notes that the call of a request outlives the daemon.
func (s *session) kept(id jsonID, call string) {
	if r, open := s.open[key(id)]; open && r.method == methodCall && r.line != nil && call != "" {
		r.call = call
		s.open[key(id)] = r
	}
}

// leave makes the next connection resume the calls of the last one.
func (s *session) leave() {
	for key, r := range s.open {
		r.away = r.call != ""
		s.open[key] = r
	}
}

// resume returns the requests that resume calls with a new daemon, or, if they ended with the last one, the errors for the client.
func (s *session) resume(same bool) (requests, errors [][]byte) {
	for key, r := range s.open {
		if !r.away {
			continue
		}
		if !same {
			errors = append(errors, failedCall(r, "the call has ended with the sandbox"))
			s.close(key)
			continue
		}
		r.away = false
		s.open[key] = r
		method := encode(rpc.ResumePrefix + r.call)
		requests = append(requests, rpc.Replace(r.line, "method", func([]byte) []byte { return bytes.TrimSpace(method) }))
	}
	return requests, errors
}

// abandon returns the errors for calls that no daemon resumes.
func (s *session) abandon(why string) (lines [][]byte) {
	for key, r := range s.open {
		if r.away {
			lines = append(lines, failedCall(r, why))
			s.close(key)
		}
	}
	return lines
}

func failedCall(r request, why string) []byte {
	return failure(r.id,
		fmt.Sprintf("%s while %s was in flight: whether it had an effect is unknown, check before you send it again", why, r.method), true)
}

// waiting reports whether the client waits for a response.
func (s *session) waiting() bool {
	for _, r := range s.open {
		if r.method != methodListen {
			return true
		}
	}
	return false
}

const whyCancelled = "the subscription is cancelled"

// lose returns the messages to the client after the connection is lost: an
// error for each request in flight except subscriptions, which the bridge
// repeats, and calls that outlive the daemon. failed is the number of requests with an unknown effect.
func (s *session) lose(why string, refused bool) (lines [][]byte, failed int) {
	for key, r := range s.open {
		if r.method == methodListen && !r.cancelled {
			r.there = false
			s.open[key] = r
			continue
		}
		switch {
		case r.method == methodListen:
			lines = append(lines, failure(r.id, whyCancelled, false))
		case r.ours:
		case r.call != "":
			r.away = true
			s.open[key] = r
			continue
		case refused:
			lines = append(lines, failure(r.id, why, false))
		default:
			failed++
			lines = append(lines, failedCall(r, why))
		}
		s.close(key)
	}
	for id := range s.serverRequests {
		lines = append(lines, notification(methodCancelled, object{"requestId": id, "reason": why}))
	}
	clear(s.serverRequests)
	if s.version == "" { // the client never got a response and must initialize again
		s.initialize = nil
	}
	return lines, failed
}

// hold holds a message until there is a connection, or until flush has sent those that
// came before it. If the limits are exceeded it returns an error response for the client.
func (s *session) hold(m message, line []byte, now time.Time) []byte {
	if m.response() {
		if _, theirs := s.asked(m); theirs == nil {
			return nil
		}
	}
	if m.Method == methodCancelled {
		key := key(contentOf(line).Params.RequestID)
		var answer []byte
		s.drop(func(q queued) bool {
			gone := q.request() && q.key() == key
			if gone && q.Method == methodListen {
				answer = failure(q.ID, whyCancelled, false)
			}
			return gone
		})
		r, sent := s.open[key]
		switch {
		case !sent:
			return answer
		case r.method == methodListen && !r.there:
			return failure(s.close(key).id, whyCancelled, false)
		}
	}
	if m.request() && s.open[m.key()].away {
		return failNotSent(m, "a call with this id is in flight")
	}
	if len(s.held) >= maxHeld || s.heldBytes+len(line) > maxHeldBytes {
		if m.request() {
			return failNotSent(m, "too many messages wait for the daemon")
		}
		return nil
	}
	m.ID = slices.Clone(m.ID)
	s.held = append(s.held, queued{m, slices.Clone(line), now})
	s.heldBytes += len(line)
	return nil
}

// expire returns the error responses to requests held since before the given
// time.
func (s *session) expire(before time.Time, why string) (lines [][]byte) {
	s.drop(func(q queued) bool {
		old := q.at.Before(before) && q.request()
		if old {
			lines = append(lines, failNotSent(q.message, why))
		}
		return old
	})
	return lines
}

// drop removes the selected held messages.
func (s *session) drop(which func(queued) bool) {
	s.held = slices.DeleteFunc(s.held, func(q queued) bool {
		gone := which(q)
		if gone {
			s.heldBytes -= len(q.line)
		}
		return gone
	})
}

func failNotSent(m message, why string) []byte {
	return failure(m.ID, fmt.Sprintf("%s: %s was not sent, try again", why, m.Method), false)
}

// take removes and returns the held messages.
func (s *session) take() []queued {
	all := s.held
	s.held, s.heldBytes = nil, 0
	return all
}

// repeat returns the open subscriptions as lines for a new daemon.
func (s *session) repeat() (text []byte) {
	for key, r := range s.open {
		if r.method == methodListen {
			r.there = true
			s.open[key] = r
			text = append(text, r.line...)
		}
	}
	return text
}

// listens returns the open subscriptions.
func (s *session) listens() (all []request) {
	for _, r := range s.open {
		if r.method == methodListen {
			all = append(all, r)
		}
	}
	return all
}
