package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	// settleTimeout is how long TagOf waits for init to tell the pid of a command,
	// toldTimeout when there are several that it could be.
	settleTimeout = 10 * time.Millisecond
	toldTimeout   = 10 * settleTimeout
)

// TagOf says whether a process or thread of this host is one of the session,
// and the tag of the command that it belongs to: "" when that is not known. own
// is whether it is of the very process that was started. It may wait for 100 ms
// while a command is being started.
//
// A process belongs to the command whose session (credentials(7)) it is in. One
// that has made a session of its own belongs to its nearest ancestor's command;
// when it has no ancestor but init left, to none. What a command leaves running
// when it ends keeps its tag, of the last 4096 such commands, and so do children
// of that while it lives. All of this is as true as the session's init: a lie of
// it mixes up the tags of its own commands.
func (s *Session) TagOf(pid int) (tag string, own, ours bool) {
	l, ok := s.lineage(pid)
	if !ok {
		return "", false, false
	}
	tag, own, starting := s.tagOf(l)
	if len(starting) == 0 || !s.forked(l) {
		return tag, own, true
	}
	for begin := time.Now(); ; {
		select {
		case <-starting[0].started:
		case <-starting[0].exited:
		case <-time.After(settleTimeout):
			// It has not executed its program yet: init waits for that, and that for
			// whoever asks us.
			if len(starting) == 1 {
				return starting[0].tag, false, true
			}
			if time.Since(begin) > toldTimeout {
				return "", false, true
			}
		}
		if tag, own, starting = s.tagOf(l); len(starting) == 0 {
			return tag, own, true
		}
	}
}

// tagOf looks a process up. When its command is not known, it returns those that
// init has not told of yet.
func (s *Session) tagOf(l lineage) (tag string, own bool, starting []*Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range l.sessions {
		c := s.tags.commands[id]
		if c != nil && (c.ended == 0 || l.since(i, c.ended)) {
			return c.tag, i == 0 && l.own && c.ended == 0, nil
		}
	}
	if len(l.sessions) > 0 && !l.leader {
		return "", false, nil
	}
	for _, p := range s.procs {
		if !p.running {
			starting = append(starting, p)
		}
	}
	return "", false, starting
}

// forked says whether init, or what init has started, is the root of a lineage,
// and no orphan, whatever session that has made: the kernel gives those to the
// main thread of init, which starts nothing. Children are a thread's
// (proc_tid_children(5)), and nobody needs a capability to read them.
func (s *Session) forked(l lineage) bool {
	if len(l.processes) == 0 {
		return true
	}
	pid, init := strconv.Itoa(l.processes[len(l.processes)-1]), s.PID()
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", init))
	for _, name := range names {
		if name == fmt.Sprintf("/proc/%d/task/%[1]d/children", init) {
			continue
		}
		text, _ := os.ReadFile(name) // a thread that has ended has no children
		if slices.Contains(strings.Fields(string(text)), pid) {
			return true
		}
	}
	return false
}

// tags are those of commands by their pid in the sandbox, which is the id of
// their session: no other process gets that number while somebody is in the
// session (the kernel's struct pid). When nobody is, it may become that of others.
type tags struct {
	commands map[int]*tagged
	ended    []*tagged // oldest first
}

type tagged struct {
	pid   int
	tag   string
	ended int // when, in ticks; 0 while it runs
}

func (t *tags) started(pid int, tag string) *tagged {
	c := &tagged{pid: pid, tag: tag}
	t.commands[pid] = c
	return c
}

func (t *tags) exited(c *tagged) {
	c.ended = ticks()
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

// ticks is the time in the unit of /proc/PID/stat, of which there are 100 a
// second, since the host's start.
func ticks() int {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // cannot fail
	return int(now.Nano() / (10 * time.Millisecond).Nanoseconds())
}

// lineage is a process below init: the sessions, by their ids in the sandbox,
// that it and its ancestors are in, its own first.
type lineage struct {
	sessions  []int
	processes []int // their numbers on this host
	own       bool  // whether the process itself leads its session
	leader    bool  // whether the last ancestor does, as a command does
}

// since says whether the i-th session has been the same since a time at which a
// command led it: if one of it that the process comes from was there already.
// A later one has got its number only.
func (l lineage) since(i, time int) bool {
	for j := i; j < len(l.sessions) && l.sessions[j] == l.sessions[i]; j++ {
		if st, err := readStat(l.processes[j]); err == nil && st.start <= time {
			return true
		}
	}
	return false
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
		l.leader = st.session == st.inner
		l.own = l.leader && (len(l.sessions) == 0 || l.own)
		l.sessions, l.processes = append(l.sessions, st.session), append(l.processes, st.process)
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
