package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// session is what the bridge knows of the client's session, so that it can make
// the same with another daemon. Its methods need the bridge's lock.
type session struct {
	initialize  []byte // the client's request, as a line; nil: none
	version     string // of the protocol, as the first daemon answered; "": no answer yet
	initialized []byte // the client's notification
	setLevel    []byte // the client's last request

	open      map[string]request // requests of the client that the daemon has not answered, by key
	questions map[string]jsonID  // requests of the daemon that the client has not answered: our ID and theirs
	asked     int                // how many questions there were, of all daemons

	held      []held // messages that wait for a connection
	heldBytes int
}

// request is a request that the daemon has, or had.
type request struct {
	id     jsonID
	method string
	line   []byte // of a subscription, which is made again
	ours   bool   // the client knows nothing of it
}

// held is a message that the client sent while there was no connection.
type held struct {
	message
	line []byte
	at   time.Time
}

// The bounds of what waits for a connection.
const (
	maxHeld      = 256
	maxHeldBytes = 16 << 20
)

// send notes a message that goes to the daemon, and returns it as the daemon
// gets it; nil is one that it must not get.
func (s *session) send(m message, line []byte) []byte {
	switch {
	case m.response():
		var id string
		_ = json.Unmarshal(m.ID, &id)
		theirs, ok := s.questions[id]
		if !ok { // of a daemon that has gone: for this one it would be the answer to another question
			return nil
		}
		delete(s.questions, id)
		answer, err := withID(line, theirs)
		if err != nil {
			return nil
		}
		return answer
	case m.request():
		r := request{id: slices.Clone(m.ID), method: m.Method}
		switch m.Method {
		case methodInitialize:
			s.initialize, s.version, s.initialized = slices.Clone(line), "", nil
		case methodSetLevel:
			s.setLevel = slices.Clone(line)
		case methodListen:
			r.line = slices.Clone(line)
		}
		s.open[m.key()] = r
	case m.Method == methodInitialized:
		s.initialized = slices.Clone(line)
	}
	return line
}

// receive notes a message of the daemon, and returns it as the client gets it;
// nil is one that it must not get.
func (s *session) receive(m message, line []byte) []byte {
	switch {
	case m.response():
		r := s.open[m.key()]
		delete(s.open, m.key())
		if r.method == methodInitialize && s.version == "" {
			s.version = versionOf(line)
		}
		if r.ours {
			return nil
		}
	case m.request():
		// The next daemon may use the same ID again, so the client never sees it.
		s.asked++
		id := fmt.Sprintf("scopefs-%d", s.asked)
		text, _ := json.Marshal(id)
		asked, err := withID(line, text)
		if err != nil {
			return nil
		}
		s.questions[id] = slices.Clone(m.ID)
		return asked
	}
	return line
}

// waiting reports whether the client waits for an answer.
func (s *session) waiting() bool {
	for _, r := range s.open {
		if r.method != methodListen {
			return true
		}
	}
	return false
}

// lose returns what the client is to hear when the daemon has gone: the end of
// each request but subscriptions, which the next connection makes again.
func (s *session) lose(why string, refused bool) (lines [][]byte, failed int) {
	for key, r := range s.open {
		if r.method == methodListen {
			continue
		}
		switch {
		case r.ours:
		case refused:
			lines = append(lines, failure(r.id, why, false))
		default:
			failed++
			lines = append(lines, failure(r.id, fmt.Sprintf("%s while %s was under way: whether it had an effect is unknown, look before you send it again", why, r.method), true))
		}
		delete(s.open, key)
	}
	for id := range s.questions {
		lines = append(lines, notification(methodCancelled, object{"requestId": id, "reason": why}))
	}
	clear(s.questions)
	if s.version == "" { // the client has to begin anew
		s.initialize = nil
	}
	return lines, failed
}

// hold keeps a message until there is a connection. It returns the answer to one
// for which there is no room.
func (s *session) hold(m message, line []byte, now time.Time) []byte {
	switch {
	case m.response():
		return nil
	case m.Method == methodCancelled:
		key := cancels(line)
		s.drop(func(h held) bool { return h.request() && h.key() == key })
		return nil
	case len(s.held) >= maxHeld || s.heldBytes+len(line) > maxHeldBytes:
		if m.request() {
			return notSent(m, "too much waits for the daemon already")
		}
		return nil
	}
	m.ID = slices.Clone(m.ID)
	s.held = append(s.held, held{m, slices.Clone(line), now})
	s.heldBytes += len(line)
	return nil
}

// expire returns the answers to requests that have been held since before a time.
func (s *session) expire(before time.Time, why string) (lines [][]byte) {
	s.drop(func(h held) bool {
		old := h.at.Before(before) && h.request()
		if old {
			lines = append(lines, notSent(h.message, why))
		}
		return old
	})
	return lines
}

// drop removes some of what is held.
func (s *session) drop(which func(held) bool) {
	s.held = slices.DeleteFunc(s.held, func(h held) bool {
		gone := which(h)
		if gone {
			s.heldBytes -= len(h.line)
		}
		return gone
	})
}

func notSent(m message, why string) []byte {
	return failure(m.ID, fmt.Sprintf("%s: %s was not sent, try again", why, m.Method), false)
}

// take returns what was held, and holds it no more.
func (s *session) take() []held {
	all := s.held
	s.held, s.heldBytes = nil, 0
	return all
}

// listens returns the subscriptions that are open.
func (s *session) listens() (all []request) {
	for _, r := range s.open {
		if r.method == methodListen {
			all = append(all, r)
		}
	}
	return all
}
