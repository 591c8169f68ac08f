package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// egressSide is a way from a client to the server: none, or a proxy.
type egressSide struct {
	name string
	url  string // without a path
	*egressProcess
}

// egressProcess is a client that runs, and the proxies behind it.
type egressProcess struct {
	in   *json.Encoder
	out  *bufio.Scanner
	stop func()
	pids func() []int // of the proxies
}

// startClient starts a client by a command, which may be that of a sandbox.
func startClient(cmd *exec.Cmd, pids func() []int) (*egressProcess, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	return &egressProcess{in: json.NewEncoder(in), out: lines, pids: pids, stop: func() {
		in.Close()
		_ = cmd.Wait()
	}}, nil
}

// do has the client do a job.
func (s egressSide) do(job egressJob) (r egressResult, err error) {
	job.URL = s.url + job.URL
	if err := s.in.Encode(job); err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	if !s.out.Scan() {
		return r, fmt.Errorf("%s: the client has ended: %w", s.name, errors.Join(s.out.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(s.out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%s: %w", s.name, err)
	}
	if r.Err != "" {
		return r, fmt.Errorf("%s: %s", s.name, r.Err)
	}
	return r, nil
}

func whole(r egressResult) []float64 { return r.Micros }
func begin(r egressResult) []float64 { return r.First }

// egressCompare measures requests of 1 KiB, streamed answers and downloads directly and
// through proxies, in blocks that take turns, and the memory of idle tunnels.
func egressCompare(args arguments) error {
	var count, rounds, size, idle int
	if err := args.numbers(&count, &rounds, &size, &idle); err != nil {
		return err
	}
	origin, err := startOrigin()
	if err != nil {
		return err
	}
	defer origin.Close()
	sides, stop, err := startSides(origin, args[4], args[5], args[6], args[7], args[8])
	defer stop()
	if err != nil {
		return err
	}
	if count > 0 {
		if err := egressLatencies(sides, origin.ca, count); err != nil {
			return err
		}
	}
	if rounds > 0 {
		if err := egressDownloads(sides, origin.ca, rounds, size); err != nil {
			return err
		}
	}
	if idle > 0 {
		return egressIdle(sides, origin.ca, idle)
	}
	return nil
}

// egressLatencies prints the times of requests.
func egressLatencies(sides []egressSide, ca string, count int) error {
	block := min(50, count)
	for _, row := range []struct {
		name string
		egressJob
		of func(egressResult) []float64
	}{
		{"a request of 1 KiB on an open connection", egressJob{URL: "/bytes?n=1024", Connections: 1}, whole},
		{"the same, 64 connections at a time", egressJob{URL: "/bytes?n=1024", Connections: 64}, whole},
		{"a request on a new connection", egressJob{URL: "/bytes?n=1024", Connections: 1, Fresh: true}, whole},
		{"the first byte of a streamed answer", egressJob{URL: "/stream", Connections: 1}, begin},
	} {
		times := make([][]float64, len(sides))
		row.CA = ca
		for done := -block; done < count; done += block { // the first block does not count
			for i := range sides {
				k := (i + max(done, 0)/block) % len(sides) // nobody is always first
				row.Count = block
				if row.Connections > 1 {
					row.Count *= 8
				}
				r, err := sides[k].do(row.egressJob)
				if err != nil {
					return fmt.Errorf("%s: %w", row.name, err)
				}
				if done >= 0 {
					times[k] = append(times[k], row.of(r)...)
				}
			}
		}
		fmt.Printf("| %s | µs, p50 | p99 | ratio | added p50 | added p99 |\n|---|---|---|---|---|---|\n", row.name)
		at := func(k, percent int) float64 { slices.Sort(times[k]); return times[k][len(times[k])*percent/100] }
		for k, s := range sides {
			fmt.Printf("| %s | %.0f | %.0f | %.1f× | %+.0f | %+.0f |\n", s.name, at(k, 50), at(k, 99),
				at(k, 50)/at(0, 50), at(k, 50)-at(0, 50), at(k, 99)-at(0, 99))
		}
		fmt.Println()
	}
	return nil
}

// egressDownloads prints how fast one answer comes, of size MiB.
func egressDownloads(sides []egressSide, ca string, rounds, size int) error {
	fmt.Printf("| a download of %d MiB | MB/s | of direct | seconds of processor of the proxy for 1 GiB |\n|---|---|---|---|\n", size)
	speeds, ratios, costs := make([][]float64, len(sides)), make([][]float64, len(sides)), make([][]float64, len(sides))
	for range rounds {
		for k, s := range sides {
			before := processor(s.pids())
			r, err := s.do(egressJob{URL: fmt.Sprintf("/bytes?n=%d", size<<20), CA: ca, Connections: 1, Count: 1})
			if err != nil {
				return err
			}
			if r.Bytes != int64(size)<<20 {
				return fmt.Errorf("%s: %d bytes", s.name, r.Bytes)
			}
			speeds[k] = append(speeds[k], float64(r.Bytes)/r.Seconds/1e6)
			ratios[k] = append(ratios[k], speeds[k][len(speeds[k])-1]/speeds[0][len(speeds[0])-1])
			costs[k] = append(costs[k], (processor(s.pids())-before).Seconds()*1024/float64(size))
		}
	}
	for k, s := range sides {
		fmt.Printf("| %s | %.0f | %.2f | %.2f |\n", s.name, median(speeds[k]), median(ratios[k]), median(costs[k]))
	}
	return nil
}

// egressIdle prints what idle tunnels add to the memory of the proxies.
func egressIdle(sides []egressSide, ca string, idle int) error {
	fmt.Printf("\n| %d idle tunnels | MiB of the proxy's memory before | added |\n|---|---|---|\n", idle)
	for _, s := range sides[1:] {
		before := memory(s.pids())
		if _, err := s.do(egressJob{URL: "/bytes?n=1", CA: ca, Hold: idle, Fresh: false}); err != nil {
			fmt.Printf("| %s | %.0f | %v |\n", s.name, before, err) // a proxy may have a bound
			continue
		}
		time.Sleep(time.Duration(idle) * 2 * time.Millisecond) // for garbage collections
		fmt.Printf("| %s | %.0f | %+.0f |\n", s.name, before, memory(s.pids())-before)
		if _, err := s.do(egressJob{URL: "/bytes?n=1", CA: ca, Connections: 1, Count: 1}); err != nil {
			return err
		}
	}
	return nil
}
