package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/order"
	"github.com/scopefs/scopefs/internal/fleet/wire"
)

// fleetBench is a fleet on this machine: one server, nodes without views, and the commands of an operator.
type fleetBench struct {
	agents  int
	rate    float64 // events an hour, of an agent
	dir     string
	scopefs string

	server *natsd
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
	f := config.Fleet{NATS: fmt.Sprintf("nats://127.0.0.1:%d", b.server.port), Credential: &credential.Source{File: token}, Trust: []string{public}, Definitions: true, HeadEvery: time.Minute}
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
	}
	kv, err := b.js.KeyValue(context.Background(), "scopefs_nodes")
	if err != nil {
		return err
	}
	err = b.until("the nodes are there", func(ctx context.Context) (bool, error) {
		keys, err := kv.Keys(ctx, jetstream.IgnoreDeletes())
		if errors.Is(err, jetstream.ErrNoKeysFound) {
			return false, nil
		}
		return len(keys) == 2*nodes, err // the state and the beat of each
	})
	fmt.Printf("%d nodes with %d agents each, %.0f events an hour of each agent. All were there %.0f s after the start of the first.\n\n", nodes, b.agents, b.rate, time.Since(began).Seconds())
	return err
}

// connect connects this program to the server.
func (b *fleetBench) connect() error {
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", b.server.port), nats.Token(benchSecret), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
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
	return count, b.until("the events are there", func(ctx context.Context) (bool, error) {
		want, err := b.logged() // a late stream is an event, too
		if err != nil {
			return false, err
		}
		count, err = b.events(ctx)
		return count >= want, err
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

// reader is scopefs fleet audit -f, and how late it printed each event that was recorded after its first line.
type reader struct {
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	lines uint64    // that it has printed
	lags  []float64 // milliseconds
}

func (b *fleetBench) read() (*reader, error) {
	r := &reader{cmd: b.command("audit", "-f", "--json"), ended: make(chan struct{})}
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
func (r *reader) has(count uint64) error {
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

func (r *reader) stop() {
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
	began, spent := time.Now(), processor([]int{b.server.cmd.Process.Pid})
	shown, decided, err := b.approve(count, lasts)
	if err != nil {
		return err
	}
	time.Sleep(time.Until(began.Add(lasts)))
	used := (processor([]int{b.server.cmd.Process.Pid}) - spent).Seconds() / time.Since(began).Seconds()
	memServer, memReader := memory([]int{b.server.cmd.Process.Pid}), memory(append(exports(r.cmd.Process.Pid), r.cmd.Process.Pid))
	var programs []float64
	for _, pid := range exports(os.Getpid()) {
		programs = append(programs, memory([]int{pid}))
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
	}{{"an event, until `fleet audit -f` prints it", r.lags}, {"a request that waits, until the server has it", shown}, {"`fleet approvals approve`, until the node's answer", decided}} {
		slices.Sort(row.ms)
		if n := len(row.ms); n > 0 {
			fmt.Printf("| %s | %.0f ms | %.0f ms | %.0f ms | %d |\n", row.name, row.ms[n/2], row.ms[n*99/100], row.ms[n-1], n)
		}
	}
	slices.Sort(programs)
	if len(programs) == 0 {
		return errors.New("no node has a program")
	}
	fmt.Printf("\nMemory (PSS): server %.0f MiB, reader %.0f MiB, a node's program %.1f MiB (median of %d). The server used %.2f of a processor.\n",
		memServer, memReader, programs[len(programs)/2], len(programs), used)
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
