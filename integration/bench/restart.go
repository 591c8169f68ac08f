package main

import (
	"bytes"
	"cmp"
	"context"
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
)

// restarts is a daemon that is restarted again and again.
type restarts struct {
	base     string
	programs []string // two builds
	program  int      // that runs
	cmd      *exec.Cmd
	others   []other // whose descriptors and memory are counted, too
}

// other is the process of a client.
type other struct {
	name string
	pid  int
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
			text, _ := os.ReadFile(said.Name())
			return fmt.Errorf("%d of %d views: %w; the daemon: %s", len(pids), views, err, text)
		}
	}
}

// views returns the processes of the mounted views. It starts no program: that would cost what is measured.
func (r *restarts) views() (pids map[string]int, err error) {
	all, err := api.NewClient(config.Paths{Base: r.base, State: r.base + "/state", Run: r.base + "/run"}).Agents(context.Background())
	pids = map[string]int{}
	for _, a := range all {
		if a.State == api.Mounted {
			pids[string(a.ID)] = a.ViewPID
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
	for _, o := range r.others {
		all[o.name] = o.pid
	}
	return all, err
}

// held returns the descriptors of a process, its private memory and its share of all memory, in KiB.
func held(pid int) (h [3]int) {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	h[0] = len(all)
	for i, from := range [][2]string{{"status", "RssAnon:"}, {"smaps_rollup", "Pss:"}} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, from[0]))
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, from[1]); ok {
				_, _ = fmt.Sscan(rest, &h[1+i])
			}
		}
	}
	return h
}

// restartCompare measures what clients of views notice of restarts: rounds of each way to end a daemon, and as many in which
// the same clients work without a restart. A quarter of the programs is in sandboxes, and one client of scopefs mcp makes calls.
func restartCompare(args arguments) error {
	var rounds, agents, busy int
	if err := args.numbers(&rounds, &agents, &busy); err != nil {
		return err
	}
	r := &restarts{base: filepath.Join(args[3], "base")}
	programs, err := filepath.Glob(filepath.Join(filepath.Dir(args[4]), "scopefs*"))
	if err != nil {
		return err
	}
	for _, name := range programs {
		program := filepath.Base(name)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for i, build := range [][]byte{text, append(text, '\n')} { // elf(5) allows bytes at the end
			name := filepath.Join(args[3], strconv.Itoa(i), program)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, build, 0o755)); err != nil {
				return err
			}
			if program == "scopefs" {
				r.programs = append(r.programs, name)
			}
		}
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
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), busy+4)) // an operation that has ended waits for no other client
	var clients []worker
	var once sync.Once
	var did []residentCount
	stop := func() {
		once.Do(func() {
			for _, c := range clients {
				count, err := c.end()
				if err != nil {
					count.Errors = append(count.Errors, "its end: "+err.Error())
				}
				did = append(did, count)
			}
		})
	}
	defer stop()
	boxed := (busy + 3) / 4 // the last ones
	for i := range busy {
		var c worker
		if i < busy-boxed {
			c, err = newLocal(filepath.Join(r.base, "run/views", id(i)), args[3], args[5])
		} else if err = copyProgram(args[5], filepath.Join(r.base, "agents", id(i), "bench")); err == nil {
			cmd := exec.Command(r.programs[0], "run", id(i), "--base", r.base, "--", "/workspace/bench", "resident")
			if c, err = newRemote(cmd); err == nil {
				r.others = append(r.others, other{"scopefs run", cmd.Process.Pid})
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", id(i), err)
		}
		clients = append(clients, c)
	}
	cmd := exec.Command(r.programs[0], "mcp", "--agent", id(0), "--base", r.base)
	cmd.Stderr = os.Stderr
	calls, err := newCaller(cmd)
	if err != nil {
		return err
	}
	r.others = append(r.others, other{"scopefs mcp", calls.cmd.Process.Pid})
	clients = append(clients, calls)

	ways := []string{"no restart", "SIGTERM", "SIGKILL", "upgrade"}
	longest := map[string]map[string][]time.Duration{} // of each round, by kind of operation and way
	sums := map[string]map[string]wait{}               // of all rounds, likewise
	out := map[string][]time.Duration{}                // of each round, from the signal to the next daemon with all views
	var first, last map[string][3]int
	for round := range rounds {
		for k := range ways {
			way := ways[(k+round)%len(ways)]
			for _, c := range clients {
				if _, err := c.take(); err != nil {
					return err
				}
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
			if err := calls.settle(); err != nil {
				return fmt.Errorf("round %d, %s: %w", round, way, err)
			}
			worst, what := wait{}, ""
			all := map[string]wait{}
			for i, c := range clients {
				took, err := c.take()
				if err != nil {
					return fmt.Errorf("round %d, %s: %w", round, way, err)
				}
				for kind, w := range took {
					all[kind] = all[kind].add(w)
					if w.Took > worst.Took && kind != "denied" && kind != callKind {
						worst, what = w, id(i)+" "+kind
					}
				}
			}
			for kind, w := range all {
				if longest[kind] == nil {
					longest[kind], sums[kind] = map[string][]time.Duration{}, map[string]wait{}
				}
				longest[kind][way], sums[kind][way] = append(longest[kind][way], w.Took), sums[kind][way].add(w)
			}
			fmt.Fprintf(os.Stderr,
				"round %d, %s: ended after %v, ready after %v; the longest in a view but of a denial: %s, %v, begun after %v\n", round, way,
				ended.Round(time.Millisecond), ready.Round(time.Millisecond), what,
				worst.Took.Round(100*time.Microsecond), worst.Began.Sub(began).Round(time.Millisecond))
		}
		now := map[string][3]int{}
		pids, err := r.processes(before[id(0)])
		if err != nil {
			return err
		}
		for name, pid := range pids {
			now[name] = held(pid)
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

	fmt.Printf("| longest wait of a round, ms: p50 (max); waits over 20 ms | %s |\n|---|%s\n",
		strings.Join(ways, " | "), strings.Repeat("---|", len(ways)))
	for _, kind := range slices.Sorted(maps.Keys(longest)) {
		fmt.Printf("| %s |", kind)
		for _, way := range ways {
			if of := longest[kind][way]; len(of) == 0 {
				fmt.Print(" – |")
			} else {
				sum := sums[kind][way]
				fmt.Printf(" %.1f (%.1f); %.2f %% |", float64(median(of).Microseconds())/1e3, float64(slices.Max(of).Microseconds())/1e3,
					100*float64(sum.Over)/float64(sum.Count))
			}
		}
		fmt.Println()
	}
	fmt.Print("\n| process | descriptors after the first round | after the last | memory of its own, MiB | after the last | Pss, MiB | after the last |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(last)) {
		of := [2][3]int{first[name], last[name]}
		fmt.Printf("| %s | %d | %d |", name, of[0][0], of[1][0])
		for i := 1; i < 3; i++ {
			fmt.Printf(" %.1f | %.1f |", float64(of[0][i])/1024, float64(of[1][i])/1024)
		}
		fmt.Println()
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
	for i, c := range did {
		for _, e := range c.Errors {
			wrong = append(wrong, id(i)+" "+e)
		}
	}
	if _, err := r.run("daemon", "--stop"); err != nil {
		return err
	}
	_ = r.cmd.Wait()
	acknowledged, lost, doubled, err := recorded(filepath.Join(r.base, "state", "audit"), did, id)
	if err != nil {
		return err
	}
	if _, err := r.run("audit", "verify"); err != nil && !strings.HasPrefix(err.Error(), "exit status 4") { // no head is kept elsewhere
		return err
	}
	refused := 0
	for _, c := range did[:busy] {
		refused += len(c.Refused)
	}
	fmt.Printf("%d views replaced, %d errors, %d denials refused with EIO without a daemon; of %d calls %d in flight failed with an unknown effect; "+
		"of %d operations and calls with an answer, records lost: %d, doubled: %d; scopefs audit verify: ok.\n",
		replaced, len(wrong), refused, did[busy].Made, len(did[busy].Refused), acknowledged, lost, doubled)
	if replaced+len(wrong)+lost+doubled > 0 {
		return fmt.Errorf("something has ended or is wrong: %q", wrong[:min(len(wrong), 10)])
	}
	return nil
}

// recorded compares the log with what the clients had answers to: creations, denials and calls, each of a name of its own.
func recorded(log string, did []residentCount, id func(int) string) (acknowledged, lost, doubled int, err error) {
	counts := map[string]int{}
	for e, err := range audit.Read(context.Background(), log, audit.Filter{}, false) {
		if err != nil {
			return 0, 0, 0, err
		}
		if e.Event == audit.KindFile && (e.Op == "create" || e.Op == "mkdir") || e.Event == audit.KindCall && e.Outcome != audit.OutcomeBegin {
			counts[e.Event+" "+e.Agent+" "+e.Path]++
		}
	}
	count := func(name string, n int, refused []int) {
		acknowledged += n - len(refused)
		for i := range n {
			switch got := counts[name+strconv.Itoa(i)]; {
			case got == 0 && !slices.Contains(refused, i):
				lost++
			case got > 1:
				doubled++
			}
		}
	}
	for i, c := range did[:len(did)-1] {
		count(audit.KindFile+" "+id(i)+" made-", c.Made, nil)
		count(audit.KindFile+" "+id(i)+" ro/no-", c.Denied, c.Refused)
	}
	calls := did[len(did)-1]
	count(audit.KindCall+" "+id(0)+" called-", calls.Made, calls.Refused)
	return acknowledged, lost, doubled, nil
}
