package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
)

// pace is the time between two rounds of operations of a client: the processors have time for the next daemon, too.
const pace = 20 * time.Millisecond

// resident is a program that works in a view: with an open file, a lock, a mapping and the directory open.
type resident struct {
	dir, file int
	mapped    []byte
	made      int   // files that it has created and removed, with names of their own
	denied    int   // directories that it was denied, likewise
	refused   []int // those of them that a gap without a daemon has refused: they may be in the log

	mu     sync.Mutex
	waits  map[string]wait // the longest of each kind since the last taking
	errors []string
}

// wait is how long an operation took.
type wait struct {
	began time.Time
	took  time.Duration
}

func newResident(dir string) (c *resident, err error) {
	c = &resident{waits: map[string]wait{}}
	if c.dir, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if c.file, err = unix.Openat(c.dir, "open", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
		return nil, err
	}
	if err = unix.Ftruncate(c.file, 4096); err == nil {
		err = unix.Flock(c.file, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		c.mapped, err = unix.Mmap(c.file, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	}
	return c, err
}

// work does operations until end is closed, on a thread of its own.
func (c *resident) work(end <-chan struct{}) {
	runtime.LockOSThread()
	buf := make([]byte, 4096)
	var st unix.Stat_t
	for {
		made, no := "made-"+strconv.Itoa(c.made), "ro/no-"+strconv.Itoa(c.denied)
		begun := time.Now()
		for _, op := range []struct {
			kind string
			do   func() error
		}{
			{"stat", func() error { return unix.Fstatat(c.dir, "open", &st, 0) }},
			{"read", func() error { _, err := unix.Pread(c.file, buf[:100], 0); return err }},
			{"write", func() error { _, err := unix.Pwrite(c.file, buf[:100], 100); return err }},
			{"mapping", func() error { buf[0] = c.mapped[c.made%4096]; return nil }},
			{"open", func() error {
				fd, err := unix.Openat(c.dir, "open", unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Close(fd)
				}
				return err
			}},
			{"list", func() error {
				fd, err := unix.Openat(c.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				_, err = unix.Getdents(fd, buf)
				return err
			}},
			{"create", func() error {
				fd, err := unix.Openat(c.dir, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
				if err == nil {
					err = unix.Close(fd)
				}
				return err
			}},
			{"rename", func() error { return unix.Renameat(c.dir, made, c.dir, "new") }},
			{"remove", func() error { return unix.Unlinkat(c.dir, "new", 0) }},
			{"denied", func() error {
				err := unix.Mkdirat(c.dir, no, 0o700)
				switch err {
				case unix.EIO: // there was no daemon for long, to record it: docs/restart.md
					c.refused = append(c.refused, c.denied)
				case unix.EACCES:
				default:
					return cmp.Or(err, error(unix.ENOTRECOVERABLE))
				}
				return nil
			}},
		} {
			w := wait{began: time.Now()}
			err := op.do()
			w.took = time.Since(w.began)
			c.mu.Lock()
			if w.took > c.waits[op.kind].took {
				c.waits[op.kind] = w
			}
			if err != nil {
				c.errors = append(c.errors, op.kind+": "+err.Error())
			}
			c.mu.Unlock()
		}
		c.made, c.denied = c.made+1, c.denied+1
		select {
		case <-end:
			return
		case <-time.After(pace - time.Since(begun)):
		}
	}
}

// take returns the longest waits since the last call.
func (c *resident) take() map[string]wait {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.waits
	c.waits = map[string]wait{}
	return was
}

// restarts is a daemon that is restarted again and again.
type restarts struct {
	base     string
	programs []string // two builds
	program  int      // that runs
	cmd      *exec.Cmd
}

func (r *restarts) run(args ...string) (string, error) {
	out, err := exec.Command(r.programs[r.program], append(args, "--base", r.base)...).Output()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, e.Stderr)
	}
	return string(out), err
}

// start starts the daemon, and returns when all views are mounted.
func (r *restarts) start(views int) error {
	said, err := os.OpenFile(filepath.Join(r.base, "said"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer said.Close()
	r.cmd = exec.Command(r.programs[r.program], "daemon", "--base", r.base)
	r.cmd.Stderr = said
	if err := r.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		pids, err := r.views()
		if err == nil && len(pids) == views {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d of %d views: %w", len(pids), views, err)
		}
	}
}

// views returns the processes of the mounted views.
func (r *restarts) views() (pids map[string]int, err error) {
	out, err := r.run("ps", "--json")
	var all []struct {
		Agent, State string
		PID          int `json:"view_pid"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	pids = map[string]int{}
	for _, a := range all {
		if a.State == "mounted" {
			pids[a.Agent] = a.PID
		}
	}
	return pids, err
}

// end ends the daemon with a signal.
func (r *restarts) end(sig syscall.Signal) {
	_ = r.cmd.Process.Signal(sig)
	_ = r.cmd.Wait()
}

// processes returns the holder, the daemon, its logger, and a view.
func (r *restarts) processes(view int) (map[string]int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(r.base, "run/holder.sock")}); err != nil {
		return nil, fmt.Errorf("holder: %w", err)
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	all := map[string]int{"holder": int(peer.Pid), "daemon": r.cmd.Process.Pid, "view": view}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", r.cmd.Process.Pid))
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", r.cmd.Process.Pid))
	for _, name := range names {
		more, _ := os.ReadFile(name)
		children = append(children, more...)
	}
	for _, pid := range strings.Fields(string(children)) {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		if bytes.HasPrefix(line, []byte("scopefs-log\x00")) {
			all["logger"], err = strconv.Atoi(pid)
		}
	}
	return all, err
}

// held returns the descriptors of a process and its private memory in KiB.
func held(pid int) (files, kib int) {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			_, _ = fmt.Sscan(rest, &kib)
		}
	}
	return len(all), kib
}

// restartCompare measures what clients of views notice of restarts: rounds of each way to end a daemon, and as many in which
// the same clients work without a restart.
func restartCompare(args arguments) error {
	var rounds, agents, busy int
	if err := args.numbers(&rounds, &agents, &busy); err != nil {
		return err
	}
	r := &restarts{base: filepath.Join(args[3], "base")}
	text, err := os.ReadFile(args[4])
	if err != nil {
		return err
	}
	for i, build := range [][]byte{text, append(text, '\n')} { // elf(5) allows bytes at the end
		name := filepath.Join(args[3], strconv.Itoa(i), "scopefs")
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, build, 0o755)); err != nil {
			return err
		}
		r.programs = append(r.programs, name)
	}
	id := func(i int) string { return fmt.Sprintf("agent-%03d", i) }
	for i := range agents {
		front := "---\nname: " + id(i) + "\ndescription: measured\nview: {record: writes, paths: {\"ro/**\": read}}\n---\n"
		if err := errors.Join(os.MkdirAll(filepath.Join(r.base, "agents.d"), 0o755),
			os.MkdirAll(filepath.Join(r.base, "agents", id(i), "ro"), 0o755),
			os.WriteFile(filepath.Join(r.base, "agents.d", id(i)+".md"), []byte(front), 0o644)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(r.base, "scopefs.yaml"), []byte("log: {agent_day: 100GiB}\n"), 0o644); err != nil {
		return err
	}
	defer func() { _, _ = r.run("daemon", "--stop") }()
	if err := r.start(agents); err != nil {
		return err
	}
	before, err := r.views()
	if err != nil {
		return err
	}
	end := make(chan struct{})
	var working sync.WaitGroup
	var clients []*resident
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), busy+4)) // an operation that has ended waits for no other client
	for i := range busy {
		c, err := newResident(filepath.Join(r.base, "run/views", id(i)))
		if err != nil {
			return err
		}
		clients = append(clients, c)
		working.Go(func() { c.work(end) })
	}
	var once atomic.Bool
	stop := func() {
		if !once.Swap(true) {
			close(end)
			working.Wait()
		}
	}
	defer stop()

	ways := []string{"no restart", "SIGTERM", "SIGKILL", "upgrade"}
	longest := map[string]map[string][]time.Duration{} // of each round, by kind of operation and way
	out := map[string][]time.Duration{}                // of each round, from the signal to the next daemon with all views
	var first, last map[string][2]int
	for round := range rounds {
		for k := range ways {
			way := ways[(k+round)%len(ways)]
			for _, c := range clients {
				c.take()
			}
			began := time.Now()
			switch way {
			case ways[0]:
				time.Sleep(cmp.Or(median(slices.Concat(out["SIGTERM"], out["SIGKILL"], out["upgrade"])), time.Second/2))
			case "SIGKILL":
				r.end(syscall.SIGKILL)
			default:
				r.end(syscall.SIGTERM)
			}
			ended := time.Since(began)
			if way == "upgrade" {
				r.program = 1 - r.program
			}
			if way != ways[0] {
				if err := r.start(agents); err != nil {
					return fmt.Errorf("round %d, %s: %w", round, way, err)
				}
				out[way] = append(out[way], time.Since(began))
			}
			ready := time.Since(began)
			worst, what := wait{}, ""
			all := map[string]time.Duration{}
			for i, c := range clients {
				for kind, w := range c.take() {
					all[kind] = max(all[kind], w.took)
					if w.took > worst.took && kind != "denied" {
						worst, what = w, id(i)+" "+kind
					}
				}
			}
			for kind, took := range all {
				if longest[kind] == nil {
					longest[kind] = map[string][]time.Duration{}
				}
				longest[kind][way] = append(longest[kind][way], took)
			}
			fmt.Fprintf(os.Stderr, "round %d, %s: ended after %v, ready after %v; the longest but of a denial: %s, %v, begun after %v\n", round, way,
				ended.Round(time.Millisecond), ready.Round(time.Millisecond), what,
				worst.took.Round(100*time.Microsecond), worst.began.Sub(began).Round(time.Millisecond))
		}
		now := map[string][2]int{}
		pids, err := r.processes(before[id(0)])
		if err != nil {
			return err
		}
		for name, pid := range pids {
			files, kib := held(pid)
			now[name] = [2]int{files, kib}
		}
		if last = now; first == nil {
			first = now
		}
	}
	stop()
	after, err := r.views()
	if err != nil {
		return err
	}

	fmt.Printf("| longest wait of a round, ms: p50 (max) | %s |\n|---|%s\n", strings.Join(ways, " | "), strings.Repeat("---|", len(ways)))
	for _, kind := range slices.Sorted(maps.Keys(longest)) {
		fmt.Printf("| %s |", kind)
		for _, way := range ways {
			if of := longest[kind][way]; len(of) == 0 {
				fmt.Print(" – |")
			} else {
				fmt.Printf(" %.1f (%.1f) |", float64(median(of).Microseconds())/1e3, float64(slices.Max(of).Microseconds())/1e3)
			}
		}
		fmt.Println()
	}
	fmt.Printf("\n| process | descriptors after the first round | after the last | memory of its own, MiB | after the last |\n" +
		"|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(last)) {
		fmt.Printf("| %s | %d | %d | %.1f | %.1f |\n", name, first[name][0], last[name][0],
			float64(first[name][1])/1024, float64(last[name][1])/1024)
	}
	fmt.Println()
	for _, way := range ways[1:] {
		fmt.Printf("%s: from the signal until the next daemon has all views p50 %v, max %v, %d rounds.\n", way,
			median(out[way]).Round(time.Millisecond), slices.Max(out[way]).Round(time.Millisecond), len(out[way]))
	}
	replaced := 0
	for agent, pid := range before {
		if after[agent] != pid {
			replaced++
		}
	}
	var wrong []string
	for i, c := range clients {
		for _, e := range c.errors {
			wrong = append(wrong, id(i)+" "+e)
		}
	}
	if _, err := r.run("daemon", "--stop"); err != nil {
		return err
	}
	_ = r.cmd.Wait()
	acknowledged, lost, doubled, err := recorded(filepath.Join(r.base, "state", "audit"), clients, id)
	if err != nil {
		return err
	}
	if _, err := r.run("audit", "verify"); err != nil && !strings.HasPrefix(err.Error(), "exit status 4") { // no head is kept elsewhere
		return err
	}
	refused := 0
	for _, c := range clients {
		refused += len(c.refused)
	}
	fmt.Printf("%d views replaced, %d errors, %d denials refused with EIO without a daemon; "+
		"of %d operations that clients had an answer to, records lost: %d, doubled: %d; scopefs audit verify: ok.\n",
		replaced, len(wrong), refused, acknowledged, lost, doubled)
	if replaced+len(wrong)+lost+doubled > 0 {
		return fmt.Errorf("something has ended or is wrong: %q", wrong[:min(len(wrong), 10)])
	}
	return nil
}

// recorded compares the log with what the clients had answers to: creations and denials, each of a name of its own.
func recorded(log string, clients []*resident, id func(int) string) (acknowledged, lost, doubled int, err error) {
	counts := map[string]int{}
	for e, err := range audit.Read(context.Background(), log, audit.Filter{}, false) {
		if err != nil {
			return 0, 0, 0, err
		}
		if e.Event == audit.KindFile && (e.Op == "create" || e.Op == "mkdir") {
			counts[e.Agent+" "+e.Path]++
		}
	}
	count := func(agent, name string, n int, refused []int) {
		acknowledged += n - len(refused)
		for i := range n {
			switch got := counts[agent+" "+name+strconv.Itoa(i)]; {
			case got == 0 && !slices.Contains(refused, i):
				lost++
			case got > 1:
				doubled++
			}
		}
	}
	for i, c := range clients {
		count(id(i), "made-", c.made, nil)
		count(id(i), "ro/no-", c.denied, c.refused)
	}
	return acknowledged, lost, doubled, nil
}
