package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/reader"
	"github.com/scopefs/scopefs/internal/fleet/wire"
)

// fleetBench is a fleet on this machine: one server, nodes without views, and the commands of an operator.
type fleetBench struct {
	agents  int
	rate    float64 // events an hour, of an agent
	dir     string
	scopefs string

	server *natsd
	fleet  config.Fleet // an operator's
	nodes  []*fleetNode
	js     jetstream.JetStream
	key    string // the file of the operator's key
}

// fleetCompare measures a fleet: how late events are, a round of approvals, a definition for all, and what a cut of the server costs.
func fleetCompare(args arguments) (err error) {
	var nodes, agents, rate, seconds, approvals, cut int
	if err := args.numbers(&nodes, &agents, &rate, &seconds, &approvals, &cut); err != nil {
		return err
	}
	b := &fleetBench{agents: agents, rate: float64(rate), dir: args[6], scopefs: args[7]}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(nodes); err != nil {
		return err
	}
	if err := b.steady(ctx, time.Duration(seconds)*time.Second, approvals); err != nil {
		return err
	}
	if err := b.define(); err != nil {
		return err
	}
	if err := b.board(ctx); err != nil {
		return err
	}
	if err := b.away(time.Hour); err != nil {
		return err
	}
	if err := b.restart(); err != nil {
		return err
	}
	return b.cut(time.Duration(cut) * time.Minute)
}

// start starts the server and the nodes, and waits until each has shown itself.
func (b *fleetBench) start(nodes int) error {
	b.server = &natsd{dir: filepath.Join(b.dir, "nats")}
	if err := b.server.start(); err != nil {
		return err
	}
	private, public, err := order.NewKey("ada")
	if err != nil {
		return err
	}
	b.key = filepath.Join(b.dir, "key")
	token := filepath.Join(b.dir, "token")
	f := config.Fleet{NATS: fmt.Sprintf("nats://127.0.0.1:%d", b.server.port),
		Credential: &credential.Source{File: token}, Trust: []string{public}, Definitions: true}
	b.fleet = config.Fleet{NATS: f.NATS, Credential: f.Credential}
	settings := fmt.Sprintf("fleet: {nats: '%s', credential: {file: '%s'}}\n", f.NATS, token)
	for file, text := range map[string]string{b.key: private, token: benchSecret, filepath.Join(b.dir, "scopefs.yaml"): settings} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if out, err := b.command("init").CombinedOutput(); err != nil {
		return fmt.Errorf("fleet init: %w: %s", err, out)
	}
	if err := b.connect(); err != nil {
		return err
	}
	began := time.Now()
	watch, err := b.beats()
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }()
	there := map[string]bool{}
	for i := range nodes {
		f.Name = fmt.Sprintf("node-%04d", i)
		n, err := startFleetNode(filepath.Join(b.dir, f.Name), f, b.agents)
		if err != nil {
			return err
		}
		b.nodes = append(b.nodes, n)
		if err := n.record(context.Background()); err != nil {
			return err
		}
		// Hosts start by themselves: on this one a few at a time.
		if _, err := heard(watch, there, len(b.nodes)-startsAtOnce); err != nil {
			return err
		}
	}
	if _, err := heard(watch, there, nodes); err != nil {
		return err
	}
	all := time.Since(began)
	spent := float64(processor(exports(os.Getpid())).Milliseconds()) / float64(nodes)
	fmt.Printf("%d nodes with %d agents each, %.0f events an hour of each agent. All were there %.0f s after the start of the first, and their programs had used %.0f ms of a processor each.\n\n",
		nodes, b.agents, b.rate, all.Seconds(), spent)
	return nil
}

// startsAtOnce is how many nodes start at a time.
const startsAtOnce = 16

// beats watches for signs of life of nodes.
func (b *fleetBench) beats() (jetstream.KeyWatcher, error) {
	kv, err := b.js.KeyValue(context.Background(), "scopefs_nodes")
	if err != nil {
		return nil, err
	}
	return kv.Watch(context.Background(), "beat.*", jetstream.UpdatesOnly(), jetstream.IgnoreDeletes())
}

// heard waits until a number of nodes were heard, and returns when each was that was not before.
func heard(watch jetstream.KeyWatcher, there map[string]bool, want int) (when []time.Time, err error) {
	for late := time.After(10 * time.Minute); len(there) < want; {
		select {
		case e, open := <-watch.Updates():
			if !open {
				return nil, errors.New("the connection ended")
			}
			if !there[e.Key()] {
				there[e.Key()] = true
				when = append(when, time.Now())
			}
		case <-late:
			return nil, fmt.Errorf("%d of %d nodes are there", len(there), want)
		}
	}
	return when, nil
}

// connect connects this program to the server.
func (b *fleetBench) connect() error {
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", b.server.port), nats.Token(benchSecret),
		nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err == nil {
		b.js, err = jetstream.New(conn)
	}
	return err
}

func (b *fleetBench) close() (err error) {
	for _, n := range b.nodes {
		err = errors.Join(err, n.close())
	}
	if b.js != nil {
		b.js.Conn().Close()
	}
	return errors.Join(err, b.server.stop())
}

func (b *fleetBench) command(words ...string) *exec.Cmd {
	cmd := exec.Command(b.scopefs, append(append([]string{"fleet"}, words...), "--base", b.dir)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// until waits up to an hour for a condition on the server.
func (b *fleetBench) until(what string, f func(context.Context) (bool, error)) error {
	for began := time.Now(); time.Since(began) < time.Hour; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		ok, err := f(ctx)
		cancel()
		if ok {
			return nil
		}
		if err != nil && b.js.Conn().IsConnected() {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fmt.Errorf("%s: not within an hour", what)
}

// events returns how many events the server has.
func (b *fleetBench) events(ctx context.Context) (uint64, error) {
	s, err := b.js.Stream(ctx, "scopefs_events")
	if err != nil {
		return 0, err
	}
	return s.CachedInfo().State.Msgs, nil
}

// logged returns how many events the logs of the nodes have.
func (b *fleetBench) logged() (sum uint64, err error) {
	for _, n := range b.nodes {
		last, err := n.last()
		if err != nil {
			return 0, err
		}
		sum += last
	}
	return sum, nil
}

// arrived waits until the server has all events of the logs, which do not grow. It returns how many.
func (b *fleetBench) arrived() (count uint64, err error) {
	want := uint64(0)
	return count, b.until("the events are there", func(ctx context.Context) (_ bool, err error) {
		if count, err = b.events(ctx); err != nil || count < want {
			return false, err
		}
		want, err = b.logged() // again: a late stream is an event, too
		return err == nil && count >= want, err
	})
}

// record records an event of a node at a time, in turns, for as long as ctx lasts.
func (b *fleetBench) record(ctx context.Context) error {
	a := float64(len(b.nodes)*b.agents) * b.rate / 3600 // events a second
	began, done := time.Now(), 0
	for ctx.Err() == nil {
		for ; float64(done) < a*time.Since(began).Seconds(); done++ {
			if err := b.nodes[done%len(b.nodes)].record(context.Background()); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// tail is scopefs fleet audit -f, and how late it printed each event that was recorded after its first line.
type tail struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines uint64    // that it has printed
	lags  []float64 // milliseconds
}

func (b *fleetBench) read() (*tail, error) {
	r := &tail{cmd: b.command("audit", "-f", "--json"), ended: make(chan struct{})}
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(r.ended)
		began := time.Time{} // of its first line: what was there before is no measure
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var one struct{ Event struct{ Time time.Time } }
			if json.Unmarshal(lines.Bytes(), &one) != nil {
				continue
			}
			if began.IsZero() {
				began = time.Now()
			}
			r.mu.Lock()
			if r.lines++; one.Event.Time.After(began) {
				r.lags = append(r.lags, float64(time.Since(one.Event.Time).Microseconds())/1000)
			}
			r.mu.Unlock()
		}
	}()
	return r, nil
}

// has waits until the reader has printed a number of events.
func (r *tail) has(count uint64) error {
	for range 6000 {
		r.mu.Lock()
		lines := r.lines
		r.mu.Unlock()
		if lines >= count {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("fleet audit -f has not printed %d events", count)
}

func (r *tail) stop() {
	_ = r.cmd.Process.Signal(os.Interrupt)
	<-r.ended
	_ = r.cmd.Wait()
}

// steady measures the fleet while all agents work, and while an operator decides about requests.
func (b *fleetBench) steady(ctx context.Context, lasts time.Duration, count int) error {
	r, err := b.read()
	if err != nil {
		return err
	}
	if err := r.has(1); err != nil {
		return err
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	recorded := make(chan error, 1)
	go func() { recorded <- b.record(work) }()
	programs := exports(os.Getpid())
	began, spent := time.Now(), b.spent(programs)
	shown, decided, err := b.approve(count, lasts)
	if err != nil {
		return err
	}
	time.Sleep(time.Until(began.Add(lasts)))
	used := b.spent(programs)
	for i := range used {
		used[i] = (used[i] - spent[i]) / time.Since(began).Seconds()
	}
	memServer, memReader := memory([]int{b.server.cmd.Process.Pid}), memory(append(exports(r.cmd.Process.Pid), r.cmd.Process.Pid))
	var sizes []float64
	for _, pid := range programs {
		sizes = append(sizes, memory([]int{pid}))
	}
	stop()
	if err := <-recorded; err != nil {
		return err
	}
	sent, err := b.arrived()
	if err == nil {
		err = r.has(sent)
	}
	if err != nil {
		return err
	}
	r.stop()
	if len(r.lags) == 0 {
		return errors.New("fleet audit has read no events")
	}
	fmt.Println("| | p50 | p99 | most | of |\n|---|---|---|---|---|")
	for _, row := range []struct {
		name string
		ms   []float64
	}{{"an event, until `fleet audit -f` prints it", r.lags}, {"a request that waits, until the server has it", shown},
		{"`fleet approvals approve`, until the node's answer", decided}} {
		slices.Sort(row.ms)
		if n := len(row.ms); n > 0 {
			fmt.Printf("| %s | %.0f ms | %.0f ms | %.0f ms | %d |\n", row.name, row.ms[n/2], row.ms[n*99/100], row.ms[n-1], n)
		}
	}
	slices.Sort(sizes)
	if len(sizes) == 0 {
		return errors.New("no node has a program")
	}
	each := 1000 / float64(len(b.nodes))
	fmt.Printf("\nMemory (PSS): server %.0f MiB, reader %.0f MiB, a node's program %.1f MiB (median of %d), this process %.1f MiB a node.\n",
		memServer, memReader, sizes[len(sizes)/2], len(sizes), memory([]int{os.Getpid()})/float64(len(b.nodes)))
	fmt.Printf("Processors: server %.2f, the nodes' programs %.2f, this process %.2f. For a node a second: server %.2f ms, its program %.2f ms, its part of a daemon and its work %.2f ms.\n",
		used[0], used[1], used[2], used[0]*each, used[1]*each, used[2]*each)
	return nil
}

// spent returns the seconds of a processor that the server, the programs of nodes, and this process have used.
func (b *fleetBench) spent(programs []int) [3]float64 {
	return [3]float64{processor([]int{b.server.cmd.Process.Pid}).Seconds(), processor(programs).Seconds(),
		processor([]int{os.Getpid()}).Seconds()}
}

// board measures what an operator's look at all nodes costs, by command and by a console's daemon.
func (b *fleetBench) board(ctx context.Context) error {
	began := time.Now()
	ps := b.command("ps", "--json")
	var text counter
	ps.Stdout = &text
	if err := ps.Run(); err != nil {
		return fmt.Errorf("fleet ps: %w", err)
	}
	took, most := time.Since(began), ps.ProcessState.SysUsage().(*syscall.Rusage).Maxrss>>10
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes := map[int]bool{}
	for _, pid := range exports(os.Getpid()) {
		nodes[pid] = true
	}
	mux, failed, seen := http.NewServeMux(), error(nil), api.Fleet{}
	reader.NewBoard(ctx, b.fleet, os.Stderr).Handle(mux, func(_ http.ResponseWriter, v any) { seen = v.(api.Fleet) },
		func(_ http.ResponseWriter, err error) { failed = err })
	var looks []float64
	for range 5 {
		began := time.Now()
		mux.ServeHTTP(nil, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/fleet", nil))
		if failed != nil {
			return fmt.Errorf("a look of the console: %w", failed)
		}
		looks = append(looks, float64(time.Since(began).Milliseconds()))
		time.Sleep(2100 * time.Millisecond) // an answer is as old as that
	}
	if len(seen.Nodes) != len(b.nodes) {
		return fmt.Errorf("the console sees %d of %d nodes", len(seen.Nodes), len(b.nodes))
	}
	reads := slices.DeleteFunc(exports(os.Getpid()), func(pid int) bool { return nodes[pid] })
	slices.Sort(looks)
	fmt.Printf("\n`fleet ps --json`: %.1f s, its larger process has %d MiB at most. A look of the console: %.0f ms (median of %d), the program for it has %.0f MiB.\n",
		took.Seconds(), most, looks[len(looks)/2], len(looks), memory(reads))
	return nil
}

// away measures how one node catches up, after a time without its process.
func (b *fleetBench) away(lasts time.Duration) error {
	n, count := b.nodes[0], max(int(float64(b.agents)*b.rate*lasts.Hours()), 1)
	n.cut()
	for range count {
		if err := n.record(context.Background()); err != nil {
			return err
		}
	}
	began := time.Now()
	n.connect()
	if _, err := b.arrived(); err != nil {
		return err
	}
	fmt.Printf("\nOne node was cut off for %v: %d events. All were there %.1f s after the start of its program.\n",
		lasts, count, time.Since(began).Seconds())
	return nil
}

// restart measures how soon nodes are back after the server has been restarted.
func (b *fleetBench) restart() error {
	if err := b.server.stop(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.server.start(); err != nil {
		return err
	}
	up := time.Since(began)
	if err := b.until("the server is back", func(context.Context) (bool, error) { return b.js.Conn().IsConnected(), nil }); err != nil {
		return err
	}
	watch, err := b.beats()
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }()
	spent := processor([]int{b.server.cmd.Process.Pid})
	when, err := heard(watch, map[string]bool{}, len(b.nodes))
	if err != nil {
		return err
	}
	spent = processor([]int{b.server.cmd.Process.Pid}) - spent
	fmt.Printf("\nThe server was restarted, and was up after %.1f s: half of the nodes were back %.1f s after that, all %.1f s. That took %.0f ms of the server's processor a node.\n",
		up.Seconds(), when[len(when)/2].Sub(began.Add(up)).Seconds(), when[len(when)-1].Sub(began.Add(up)).Seconds(),
		float64(spent.Milliseconds())/float64(len(b.nodes)))
	return nil
}

// approve has requests wait, one after the other in a time, and approves each by the operator's command. It returns how long each took.
func (b *fleetBench) approve(count int, within time.Duration) (shown, decided []float64, err error) {
	kv, err := b.js.KeyValue(context.Background(), "scopefs_approvals")
	if err != nil {
		return nil, nil, err
	}
	watch, err := kv.WatchAll(context.Background(), jetstream.UpdatesOnly(), jetstream.IgnoreDeletes())
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = watch.Stop() }()
	for i := range count {
		began := time.Now()
		if err := b.nodes[i*7919%len(b.nodes)].ask(i); err != nil {
			return nil, nil, err
		}
		var w wire.SeenWait
		select {
		case e := <-watch.Updates():
			if err := json.Unmarshal(e.Value(), &w); err != nil {
				return nil, nil, err
			}
		case <-time.After(time.Minute):
			return nil, nil, errors.New("a request that waits does not reach the server")
		}
		shown = append(shown, float64(time.Since(began).Microseconds())/1000)
		sent := time.Now()
		if out, err := b.command("approvals", "approve", w.Node, w.ID, "--key", b.key, "--shown", w.Digest()).CombinedOutput(); err != nil {
			return nil, nil, fmt.Errorf("fleet approvals approve: %w: %s", err, out)
		}
		decided = append(decided, float64(time.Since(sent).Microseconds())/1000)
		time.Sleep(within/time.Duration(count) - time.Since(began))
	}
	return shown, decided, nil
}

// define puts a definition to all nodes, and measures when each shows that it has it.
func (b *fleetBench) define() error {
	kv, err := b.js.KeyValue(context.Background(), "scopefs_nodes")
	if err != nil {
		return err
	}
	watch, err := kv.WatchAll(context.Background(), jetstream.UpdatesOnly(), jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = watch.Stop() }()
	file := filepath.Join(b.dir, "reviewer.md")
	text := "---\nname: reviewer\ndescription: of all nodes\nview: {paths: {'docs/**': read}}\n---\nReview.\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	began := time.Now()
	if out, err := b.command("definitions", "put", file, "--key", b.key).CombinedOutput(); err != nil {
		return fmt.Errorf("fleet definitions put: %w: %s", err, out)
	}
	put := time.Since(began)
	has, after := map[string]bool{}, []float64{}
	for late := time.After(10 * time.Minute); len(has) < len(b.nodes); {
		select {
		case e := <-watch.Updates():
			var n wire.Node
			if json.Unmarshal(e.Value(), &n) != nil || has[n.Name] {
				continue // a beat
			}
			for _, d := range n.Definitions {
				if d.Name == "reviewer" && d.Holds {
					has[n.Name] = true
					after = append(after, time.Since(began).Seconds())
				}
			}
		case <-late:
			return fmt.Errorf("%d of %d nodes show the definition", len(has), len(b.nodes))
		}
	}
	fmt.Printf("\nA definition, from the start of `fleet definitions put` (which ended after %.1f s): half of the nodes showed it after %.1f s, all after %.1f s.\n",
		put.Seconds(), after[len(after)/2], after[len(after)-1])
	return nil
}

// cut stops the server for the events of a time, and measures how the nodes catch up.
func (b *fleetBench) cut(lasts time.Duration) error {
	if err := b.server.stop(); err != nil {
		return err
	}
	each := max(int(float64(b.agents)*b.rate*lasts.Hours()), 1)
	for _, n := range b.nodes {
		for range each {
			if err := n.record(context.Background()); err != nil {
				return err
			}
		}
	}
	before, err := b.server.stored()
	if err != nil {
		return err
	}
	wire := received()
	if err := b.server.start(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.until("the server is back", func(context.Context) (bool, error) { return b.js.Conn().IsConnected(), nil }); err != nil {
		return err
	}
	count, err := b.arrived()
	if err != nil {
		return err
	}
	took := time.Since(began)
	wire = received() - wire
	sent := float64(each * len(b.nodes))
	var size int64
	for _, n := range b.nodes[:1] {
		if size, err = n.bytes(); err != nil {
			return err
		}
	}
	last, err := b.nodes[0].last()
	if err != nil {
		return err
	}
	after := memory([]int{b.server.cmd.Process.Pid})
	began = time.Now()
	read := b.command("audit", "--json")
	var lines counter
	read.Stdout = &lines
	if err := read.Run(); err != nil {
		return fmt.Errorf("fleet audit: %w", err)
	}
	reading := time.Since(began)
	if uint64(lines) != count {
		return fmt.Errorf("fleet audit prints %d events, and the server has %d", lines, count)
	}
	if err := b.server.stop(); err != nil { // which writes what it holds
		return err
	}
	stored, err := b.server.stored()
	if err == nil {
		err = b.server.start()
	}
	fmt.Printf("\nA cut of %v: %d events a node, %.0f in all. All were there %.1f s after the server's return (%.0f a second).\n",
		lasts, each, sent, took.Seconds(), sent/took.Seconds())
	fmt.Printf("An event: %.0f bytes in the log, %.0f on the wire (both ways, with TCP/IP), %.0f on the server's disk. Server then: %.0f MiB.\n",
		float64(size)/float64(last), float64(wire)/sent, float64(stored-before)/sent, after)
	fmt.Printf("`fleet audit --json` of all %d: %.1f s (%.0f a second).\n", count, reading.Seconds(), float64(count)/reading.Seconds())
	return err
}

// exports returns the children of a process that are scopefs-export, by the names that they were started with.
func exports(pid int) (found []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file) // a thread that has ended has none
		for _, word := range strings.Fields(string(text)) {
			child, _ := strconv.Atoi(word)
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); strings.HasPrefix(string(line), driver.Export) {
				found = append(found, child)
			}
		}
	}
	return found
}

// counter counts lines.
type counter uint64

func (c *counter) Write(text []byte) (int, error) {
	*c += counter(bytes.Count(text, []byte("\n")))
	return len(text), nil
}

// received returns the bytes that the loopback interface of this network namespace has received, with all headers.
func received() (sum int64) {
	text, _ := os.ReadFile("/proc/self/net/dev")
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] == "lo:" {
			sum, _ = strconv.ParseInt(words[1], 10, 64)
		}
	}
	return sum
}
