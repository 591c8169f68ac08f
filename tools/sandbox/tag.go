package sandbox

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/boottime"
	"github.com/scopefs/scopefs/internal/proc"
)

const (
	// maxEnded is the number of ended commands whose tags are kept.
	maxEnded = 4096
	// maxDepth bounds the ancestors of a process. A process with more belongs to no
	// command.
	maxDepth = 256
	// settleTimeout is how long TagOf waits for init to report the pid of a command,
	// toldTimeout when several commands are starting, reportTimeout for a process whose
	// command has executed its program: init then waits for a processor alone.
	settleTimeout = 10 * time.Millisecond
	toldTimeout   = 10 * settleTimeout
	reportTimeout = time.Second
	// maxChildren is the number of init's children that OnlyTag looks at.
	maxChildren = 64
)

// TagOf reports whether a process or thread of this host belongs to the session, and
// the tag of its command: "" when the command is not known. own reports whether it is
// a thread of the command's own process. TagOf may wait while a command is starting: for
// 100 ms, and for an orphan for a second.
//
// A process belongs to the command whose session (credentials(7)) it is in. A process
// in a session of its own belongs to the command of its nearest ancestor, and to none
// when init is its only ancestor. Processes that a command leaves behind keep its tag,
// for the last 4096 such commands, and so do their children while the parent lives.
// TagOf trusts the session's init: a false report exchanges the tags of its own
// commands.
func (s *Session) TagOf(pid int) (tag string, own, ours bool) {
	l, ok := s.lineage(pid)
	if !ok {
		return "", false, false
	}
	tag, own, starting := s.tagOf(l)
	if len(starting) == 0 {
		return tag, own, true
	}
	forked, timeout := s.forked(l), s.reportTimeout
	if forked {
		timeout = toldTimeout
	}
	for begin := time.Now(); len(starting) > 0 && time.Since(begin) < timeout; tag, own, starting = s.tagOf(l) {
		select {
		case <-starting[0].started:
		case <-starting[0].exited:
		case <-time.After(settleTimeout):
			// The child has not executed its program yet. It blocks in exec on our caller,
			// and init blocks on the child.
			if forked && len(starting) == 1 {
				return starting[0].tag, false, true
			}
		}
	}
	return tag, own, true
}

// OnlyTag returns the tag of the command that every process of the session belongs to
// now, but for processes with the tag except. It returns "" if there is no process, if
// processes belong to several commands or to none, if init has more than 64 children, or if
// the children of init change while it looks, three times. Like TagOf it may wait for a second
// while a command is starting.
func (s *Session) OnlyTag(except string) string {
	if !s.tagged(except) {
		return "" // without a look at /proc, which takes 15 files: each connection waits for it
	}
	for range 3 {
		if only, steady := s.onlyTag(except); steady {
			return only
		}
	}
	return ""
}

func (s *Session) onlyTag(except string) (only string, steady bool) {
	children := childrenOf(s.PID())
	if len(children) > maxChildren {
		return "", true
	}
	for _, pid := range children {
		tag, _, ours := s.TagOf(pid)
		switch {
		case !ours: // it has ended: init inherits its children, which are not in our list
			return "", false
		case tag == except:
		case tag == "" || only != "" && tag != only:
			return "", true
		default:
			only = tag
		}
	}
	return only, slices.Equal(childrenOf(s.PID()), children)
}

// tagged reports whether a command of the session has a tag, but for except.
func (s *Session) tagged(except string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := func(tag string) bool { return tag != "" && tag != except }
	for _, c := range s.tags.commands {
		if other(c.tag) {
			return true
		}
	}
	for _, p := range s.procs {
		if other(p.tag) {
			return true
		}
	}
	return false
}

// childrenOf returns the children of a process, by the threads that started them.
func childrenOf(pid int) (pids []int) {
	for _, tid := range proc.Threads(pid) {
		pids = append(pids, proc.Children(pid, tid)...)
	}
	return pids
}

// tagOf looks up the command of a process. When it is not known, tagOf returns the
// commands that init has not reported as started. Such a command may run, and have left
// orphans behind.
func (s *Session) tagOf(l lineage) (tag string, own bool, starting []*Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range l.sessions {
		c := s.tags.commands[id]
		if c != nil && (c.ended == 0 || l.since(i, c.ended)) {
			return c.tag, i == 0 && l.own && c.ended == 0, nil
		}
	}
	for _, p := range s.procs {
		if !p.running {
			starting = append(starting, p)
		}
	}
	return "", false, starting
}

// forked reports whether the root of a lineage was started by init and is no orphan.
// The kernel reparents orphans to the main thread of init, which starts no command.
func (s *Session) forked(l lineage) bool {
	if len(l.processes) == 0 {
		return true
	}
	root, init := l.processes[len(l.processes)-1], s.PID()
	return slices.ContainsFunc(proc.Threads(init), func(tid int) bool { return tid != init && slices.Contains(proc.Children(init, tid), root) })
}

// tags holds the tags of commands by their pid in the sandbox, which is the id of
// their session. The kernel does not reuse the number while a process is in the
// session (struct pid).
type tags struct {
	commands map[int]*tagged
	ended    []*tagged // oldest first
}

type tagged struct {
	pid   int
	tag   string
	ended int // time in ticks; 0 while it runs
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

// ticks returns the time since boot in the unit of /proc/PID/stat: 100 a second.
func ticks() int { return int(boottime.Now() / (10 * time.Millisecond)) }

// lineage is a process and its ancestors below init, itself first.
type lineage struct {
	sessions  []int // ids in the sandbox
	processes []int // pids on this host
	own       bool  // whether the process itself leads its session
}

// since reports whether the i-th session existed at a time, when a command led it: a
// process of the lineage in that session had started by then. Otherwise a later
// session has reused the number.
func (l lineage) since(i, time int) bool {
	for j := i; j < len(l.sessions) && l.sessions[j] == l.sessions[i]; j++ {
		if st, err := proc.ReadStat(l.processes[j]); err == nil && st.Start <= time {
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
	for range 3 { // an ancestor may end meanwhile: init inherits its children
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
		if st.session == 0 { // it is being reaped
			return l, unix.ESRCH
		}
		l.own = st.session == st.inner && (len(l.sessions) == 0 || l.own)
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

// procStatus holds fields of /proc/TID/status (proc_pid_status(5)).
type procStatus struct {
	process, parent int // on this host
	inner, session  int // in the innermost pid namespace
}

func readStatus(tid int) (st procStatus, err error) {
	status, err := proc.ReadTable(tid, "status")
	if err != nil {
		return st, err
	}
	for key, field := range map[string]*int{"Tgid": &st.process, "PPid": &st.parent, "NStgid": &st.inner, "NSsid": &st.session} {
		numbers := status.Words(key)
		if len(numbers) == 0 {
			return st, unix.EIO
		}
		if *field, err = strconv.Atoi(numbers[len(numbers)-1]); err != nil {
			return procStatus{}, err
		}
	}
	return st, nil
}
