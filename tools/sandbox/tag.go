package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxEnded is how many commands that have ended keep their tags.
	maxEnded = 4096
	// maxDepth bounds the ancestors that are looked at. A process with more of
	// them is nobody's.
	maxDepth = 256
	// settleTimeout is how long TagOf waits for init to tell the pid of a command.
	settleTimeout = 10 * time.Millisecond
)

// TagOf says whether a process or thread of this host is one of the session,
// and the tag of the command that it belongs to: "" when that is not known. It
// may wait for 10 ms while a command is being started.
//
// A process belongs to the command whose session (credentials(7)) it is in. One
// that has made a session of its own belongs to its nearest ancestor's command;
// when it has no ancestor but init left, to none. What a command leaves running
// when it ends keeps its tag, of the last 4096 such commands. All of this is as
// true as the session's init: a lie of it mixes up the tags of its own commands.
func (s *Session) TagOf(pid int) (tag string, ours bool) {
	l, ok := s.lineage(pid)
	if !ok {
		return "", false
	}
	timeout := time.NewTimer(settleTimeout)
	defer timeout.Stop()
	for {
		tag, starting := s.tagOf(l)
		if starting == nil {
			return tag, true
		}
		if len(l.sessions) == 0 { // init itself, that looks for the program
			return starting.tag, true
		}
		select {
		case <-starting.started:
		case <-starting.exited:
		case <-timeout.C:
			// It has not executed its program yet: init waits for that, and that for
			// whoever asks us. Init starts commands one after the other.
			return starting.tag, true
		}
	}
}

// tagOf looks a process up. When its command is not known but could be the one
// that init starts now, it returns that.
func (s *Session) tagOf(l lineage) (tag string, starting *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range l.sessions {
		if c := s.tags.commands[id]; c != nil {
			return c.tag, nil
		}
	}
	if len(l.sessions) > 0 && !l.leader {
		return "", nil
	}
	for _, p := range s.procs {
		if !p.running && (starting == nil || p.id < starting.id) {
			starting = p
		}
	}
	return "", starting
}

// tags are those of commands by their pid in the sandbox, which is the id of
// their session: no other process gets that number while somebody is in the
// session (the kernel's struct pid).
type tags struct {
	commands map[int]*tagged
	ended    []*tagged // oldest first
}

type tagged struct {
	pid int
	tag string
}

func (t *tags) started(pid int, tag string) *tagged {
	c := &tagged{pid, tag}
	t.commands[pid] = c
	return c
}

func (t *tags) exited(c *tagged) {
	t.ended = append(t.ended, c)
	if len(t.ended) <= maxEnded {
		return
	}
	oldest := t.ended[0]
	t.ended = t.ended[1:]
	if t.commands[oldest.pid] == oldest { // and not a later command
		delete(t.commands, oldest.pid)
	}
}

// lineage is a process below init: the sessions, by their ids in the sandbox,
// that it and its ancestors are in, its own first.
type lineage struct {
	sessions []int
	leader   bool // whether the last ancestor leads its session, as a command does
}

var errForeign = errors.New("not of this session")

func (s *Session) lineage(pid int) (l lineage, ours bool) {
	s.mu.Lock()
	init, ended := s.pid, s.ended
	s.mu.Unlock()
	if ended || pid <= 0 {
		return l, false
	}
	for range 3 { // an ancestor may end meanwhile: its children pass to init
		l, err := climb(pid, init)
		if err == nil {
			return l, true
		}
		if errors.Is(err, errForeign) || len(l.sessions) == 0 {
			break
		}
	}
	return l, false
}

func climb(pid, init int) (l lineage, err error) {
	for range maxDepth {
		st, err := readStatus(pid)
		if err != nil {
			return l, err
		}
		if st.process == init {
			return l, nil
		}
		if st.session == 0 { // it is being reaped, and has its numbers no more
			return l, unix.ESRCH
		}
		l.sessions, l.leader = append(l.sessions, st.session), st.session == st.inner
		if st.parent == init {
			return l, nil
		}
		if st.parent == 0 {
			break
		}
		pid = st.parent
	}
	return l, errForeign
}

// procStatus is what we read of /proc/TID/status (proc_pid_status(5)).
type procStatus struct {
	process, parent int // numbers of this host
	inner, session  int // numbers of the innermost pid namespace
}

func readStatus(tid int) (procStatus, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return procStatus{}, err
	}
	st := procStatus{}
	fields := map[string]*int{"Tgid": &st.process, "PPid": &st.parent, "NStgid": &st.inner, "NSsid": &st.session}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		field := fields[key]
		numbers := strings.Fields(value)
		if field == nil || len(numbers) == 0 {
			continue
		}
		if *field, err = strconv.Atoi(numbers[len(numbers)-1]); err != nil {
			return procStatus{}, err
		}
		delete(fields, key)
	}
	if len(fields) > 0 {
		return procStatus{}, unix.EIO
	}
	return st, nil
}
