package outlive

import (
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/holder"
	"github.com/scopefs/scopefs/internal/holder/wire"
	"github.com/scopefs/scopefs/scope"
)

// webProtocol is the number of webPlace, and of the files of Sessions.
const webProtocol = 1

// maxState bounds what is kept about a session over HTTP, in bytes. A session with more ends with its daemon.
const maxState = 8 << 10

// Web has the sessions over HTTP that outlive a daemon. They are files of the run directory: clients make sessions faster than
// the holder takes messages. The files are valid as long as the holder has the name of their directory, and the tokens of
// clients have the same key.
type Web struct {
	Claim string // by which the sandboxes of their clients are known: see Sandbox.Web

	dir    string // has a directory for each agent
	holder *holder.Holder
	meta   []byte // of place
	once   sync.Once
	place  *holder.Place // nil before once: a holder that has nothing ends with its daemon
	idle   time.Duration
	leaves func() bool // reports whether the daemon leaves its sessions to the next one now
	logger *slog.Logger

	mu  sync.Mutex
	all map[scope.ID]*Sessions

	calls atomic.Int64 // bytes of the requests of calls, of all agents
}

// webPlace is what the holder keeps.
type webPlace struct {
	Protocol int    `json:"protocol"`
	Dir      string `json:"dir"`
	Claim    string `json:"claim"`
}

// WebOptions says how sessions over HTTP are kept.
type WebOptions struct {
	Holder  *holder.Holder
	Dir     string // of all daemons of a run directory
	Claim   string // changes with the key of clients' tokens
	Idle    time.Duration
	Leaves  func() bool
	Defined func(scope.ID) bool // reports whether there is an agent
	Logger  *slog.Logger
}

// OpenWeb continues with the sessions of places that the last daemon has left, and removes what it cannot continue with.
func OpenWeb(opt WebOptions, left []*holder.Place) (*Web, error) {
	w := &Web{Claim: opt.Claim, holder: opt.Holder, idle: opt.Idle, leaves: opt.Leaves, logger: opt.Logger, all: map[scope.ID]*Sessions{}}
	var name string
	for _, p := range left {
		var of webPlace
		if w.place != nil || json.Unmarshal(p.Meta, &of) != nil || of.Protocol != webProtocol || of.Claim != opt.Claim || !isName(of.Dir) {
			p.Remove()
			continue
		}
		name, w.place = of.Dir, p
	}
	RemoveWeb(opt.Dir, name)
	if name == "" {
		name = rand.Text()
	}
	w.dir = filepath.Join(opt.Dir, name)
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if w.meta, err = json.Marshal(webPlace{webProtocol, name, opt.Claim}); err != nil {
		return nil, err
	}
	agents, err := os.ReadDir(w.dir)
	for _, e := range agents {
		if id, err := scope.ParseID(e.Name()); err == nil && opt.Defined(id) {
			w.Of(id).expect()
		} else {
			os.RemoveAll(filepath.Join(w.dir, e.Name()))
		}
	}
	return w, err
}

// RemoveWeb removes the directories of sessions in dir but one.
func RemoveWeb(dir, but string) {
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		if e.Name() != but {
			os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
}

// isName reports whether a text has the form of rand.Text.
func isName(text string) bool {
	return len(text) == 26 && !strings.ContainsFunc(text, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '2' || r > '7') })
}

// Of returns the sessions of an agent's clients.
func (w *Web) Of(id scope.ID) *Sessions {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.all[id]
	if s == nil {
		s = &Sessions{web: w, dir: filepath.Join(w.dir, string(id)), left: map[string]struct{}{}}
		s.calls.of = s
		w.all[id] = s
	}
	return s
}

// End removes the sessions of an agent, unless they are left to the next daemon.
func (w *Web) End(id scope.ID) {
	if w.leaves() {
		return
	}
	w.mu.Lock()
	s := w.all[id]
	delete(w.all, id)
	w.mu.Unlock()
	if s != nil {
		s.end()
	}
}

// keep has the holder keep the place of the sessions, from the first one on.
func (w *Web) keep() {
	w.once.Do(func() {
		if w.place == nil {
			w.place = w.holder.Keep(wire.Web, os.Getpid(), w.meta, nil)
		}
	})
}

// Close removes all sessions, unless they are left to the next daemon.
func (w *Web) Close() {
	if w.leaves() {
		return
	}
	w.once.Do(func() {}) // none is kept any more
	if w.place != nil {
		w.place.Remove()
	}
	os.RemoveAll(w.dir)
}

// Sessions are those of one agent's clients. They implement mcp.Sessions.
type Sessions struct {
	web *Web
	dir string // has a file for each session; it may not be there

	mu    sync.Mutex
	left  map[string]struct{} // by the last daemon, and not resumed yet
	ended bool
	calls calls
}

// expect finds the sessions that the last daemon has left. Those that are not resumed end.
func (s *Sessions) expect() {
	all, _ := os.ReadDir(s.dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range all {
		switch info, err := e.Info(); {
		case isName(e.Name()):
			s.left[e.Name()] = struct{}{}
		case err == nil && (isCall(e.Name()) || s.isContext(e.Name())):
			s.calls.expect(e.Name(), info.Size())
		default: // the last daemon was killed before it had removed it
			os.Remove(filepath.Join(s.dir, e.Name()))
		}
	}
	time.AfterFunc(s.web.idle, s.expire)
	time.AfterFunc(callTime, s.calls.expire)
}

// expire removes the sessions that were not resumed.
func (s *Sessions) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.left {
		os.Remove(filepath.Join(s.dir, id))
		s.calls.drop(id)
	}
	clear(s.left)
}

// Left returns the number of sessions that Take can return.
func (s *Sessions) Left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.left)
}

// Take returns the state of a session that the last daemon has left, once.
func (s *Sessions) Take(id string) (state []byte, ok bool) {
	s.mu.Lock()
	_, ok = s.left[id]
	delete(s.left, id)
	s.mu.Unlock()
	if !ok {
		return nil, false
	}
	state, err := os.ReadFile(filepath.Join(s.dir, id))
	return state, err == nil
}

// Keep stores the state of a session.
func (s *Sessions) Keep(id string, state []byte) {
	if !isName(id) {
		return
	}
	s.web.keep()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if len(state) > maxState {
		os.Remove(filepath.Join(s.dir, id))
		return
	}
	err := os.MkdirAll(s.dir, 0o700)
	if err == nil {
		err = s.write(id, state)
	}
	if err != nil {
		s.web.logger.Warn("a session over HTTP will end with the daemon", "dir", s.dir, "err", err)
	}
}

// write replaces a file. A daemon that is killed leaves the one of before, or the next one.
func (s *Sessions) write(name string, text []byte) error {
	return durable.ReplaceAt(filepath.Join(s.dir, name), text, durable.Options{Unsynced: true})
}

// Drop removes a session that has ended, unless the daemon leaves it to the next one.
func (s *Sessions) Drop(id string) {
	if !isName(id) || s.web.leaves() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	os.Remove(filepath.Join(s.dir, id))
	s.calls.drop(id)
}

// end removes all.
func (s *Sessions) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	clear(s.left)
	s.calls.drop("")
	os.RemoveAll(s.dir)
}
