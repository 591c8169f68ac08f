package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// storeBench is a store with its server. Its calls go through the door of a daemon, and
// directly to the same kind of store by the library that the tools use.
type storeBench struct {
	name string
	// start starts the server, if the store has one, and returns the stores of
	// scopefs.yaml and the calls. dir is for its files. The store is left out if start
	// returns errAbsent.
	start func(dir string) (config string, ops []storeOp, stop func(), err error)
}

// storeOp is one row: the nth call of a tool, and the same without scopefs.
type storeOp struct {
	name, tool string
	args       func(n int) map[string]any
	direct     func(n int) error
}

// errAbsent is the error of a server that this machine does not have.
var errAbsent = errors.New("is not installed")

// storeBenches are the stores that are measured.
var storeBenches = []storeBench{
	{"kv, embedded", startKV},
	{"kv, Redis", startRedis},
	{"sql", startSQL},
	{"http", startHTTP},
	{"messages, embedded", startMessages},
	{"metrics, InfluxDB 1", startMetrics},
	{"objects, versitygw", startObjects},
	{"notify", startNotify},
}

// storesCompare measures calls of the stores' tools beside direct calls of the same
// libraries, in blocks that take turns.
func storesCompare(args arguments) error {
	var count, warm int
	if err := args.numbers(&count, &warm); err != nil {
		return err
	}
	fmt.Println("| store | call | direct µs, p50 (p99) | calls/s | scopefs µs, p50 (p99) | calls/s | ratio | more |\n|---|---|---|---|---|---|---|---|")
	for i, one := range storeBenches {
		dir := filepath.Join(args[2], fmt.Sprint("store", i))
		if err := one.measure(dir, args[3], count, warm); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

// measure prints the rows of a store.
func (s storeBench) measure(dir, scopefs string, count, warm int) error {
	base := filepath.Join(dir, "base")
	for _, d := range []string{"base/agents.d", "base/agents/bench"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	config, ops, stop, err := s.start(dir)
	if errors.Is(err, errAbsent) {
		fmt.Printf("| %s | %v | | | | | | |\n", s.name, err)
		return nil
	}
	if err != nil {
		return err
	}
	defer stop()
	for name, text := range map[string]string{"scopefs.yaml": "stores: {" + config + "}\n",
		"agents.d/bench.md": "---\nname: bench\ndescription: measured\n---\n"} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	side, end, err := startSide(scopefs, base)
	if err != nil {
		return err
	}
	defer end()
	for _, o := range ops {
		direct, door, err := o.measure(side, count, warm)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		d, s2 := median(direct), median(door)
		fmt.Printf("| %s | %s | %s | %s | %.1f× | %.0f µs |\n", s.name, o.name, percentiles(direct), percentiles(door), s2/d, s2-d)
	}
	return nil
}

// startSide starts a daemon and a client of the agent "bench". end ends both.
func startSide(scopefs, base string) (side *mcpSide, end func(), err error) {
	_, stop, err := startDaemon(scopefs, base)
	if err != nil {
		return nil, nil, err
	}
	if side, err = newMCPSide("raw", "", exec.Command(scopefs, "--base", base, "mcp", "--agent", "bench")); err != nil {
		stop()
		return nil, nil, err
	}
	return side, func() { side.close(); stop() }, nil
}

// measure returns the times of direct calls and of calls through the door, in
// microseconds.
func (o storeOp) measure(side *mcpSide, count, warm int) (direct, door []float64, err error) {
	r := call(o.tool, o.args)
	made := 0
	run := func(n int, keep bool) error {
		for i := range n {
			began := time.Now()
			if err := o.direct(made + i); err != nil {
				return fmt.Errorf("direct: %w", err)
			}
			if keep {
				direct = append(direct, float64(time.Since(began).Nanoseconds())/1e3)
			}
		}
		for i := range n {
			took, _, err := side.call(r, made+i)
			if err != nil {
				return err
			}
			if keep {
				door = append(door, float64(took.Nanoseconds())/1e3)
			}
		}
		made += n
		return nil
	}
	err = run(warm, false)
	for left := count; left > 0 && err == nil; left -= mcpBlock {
		err = run(min(mcpBlock, left), true)
	}
	return direct, door, err
}

// percentiles returns two cells: the median and the 99th of 100, and calls a second.
func percentiles(v []float64) string {
	slices.Sort(v)
	sum := 0.0
	for _, t := range v {
		sum += t
	}
	return fmt.Sprintf("%.0f (%.0f) | %.0f", v[len(v)/2], v[len(v)*99/100], 1e6*float64(len(v))/sum)
}

// startDaemon starts a daemon and waits until it answers.
func startDaemon(scopefs, base string) (pid int, end func(), err error) {
	cmd := exec.Command(scopefs, "daemon", "--base", base)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	}
	for range 600 {
		if err = exec.Command(scopefs, "--base", base, "ps").Run(); err == nil {
			return cmd.Process.Pid, end, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	end()
	return 0, nil, fmt.Errorf("the daemon does not answer: %w", err)
}
