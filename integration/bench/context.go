package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// contextOp is one row: the same call without a context and with one of 1 MiB.
type contextOp struct {
	name          string
	without, with request
}

// contextText is the text of the one message of the context: 1 MiB.
var contextText = strings.Repeat("0123456789abcdef", 1<<16)

func contextOps() []contextOp {
	plain := func(tool string, args map[string]any) request {
		return call(tool, func(int) map[string]any { return args })
	}
	scoped := func(args map[string]any) map[string]any {
		more := map[string]any{"_scopes": []string{"state"}}
		for k, v := range args {
			more[k] = v
		}
		return more
	}
	quiet := map[string]any{"command": ":"}
	inside := plain("bash", scoped(quiet))
	inside.meta = map[string]any{"scopefs/context": []any{map[string]any{"type": "state", "text": contextText}}}
	return []contextOp{
		{"bash :, the session's context", plain("bash", quiet), plain("bash", scoped(quiet))},
		{"bash :, the context in the call", plain("bash", quiet), inside},
		{"bash cat FILE >/dev/null, in /workspace and in /context",
			plain("bash", map[string]any{"command": "cat state.json >/dev/null"}),
			plain("bash", scoped(map[string]any{"command": "cat /context/state.json >/dev/null"}))},
		{"a program of activities.d", plain("program", nil), plain("program", scoped(nil))},
	}
}

// contextCompare measures what a context of 1 MiB adds to calls, and reads of /context
// beside those of other files. Without self, the path of this program, it leaves out the
// latter.
func contextCompare(args arguments) error {
	var count, warm int
	if err := args.numbers(&count, &warm); err != nil {
		return err
	}
	dir, scopefs, self := args[2], args[3], args[4]
	base := filepath.Join(dir, "context")
	err := os.MkdirAll(filepath.Join(base, "agents/bench"), 0o755)
	for name, text := range map[string]string{
		"agents.d/bench.md":         "---\nname: bench\ndescription: measured\nscopes: {enum: [state], set: [state]}\n---\n",
		"activities.d/program.json": `{"description": "does nothing", "inputSchema": {"type": "object", "properties": {"_scopes": {"type": "array", "items": {"enum": ["state"]}}}}}`,
		"activities.d/program":      "#!/bin/sh\n",
		"agents/bench/state.json":   contextText,
	} {
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(base, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(base, name), []byte(text), 0o755)
		}
	}
	if err != nil {
		return err
	}
	side, end, err := startSide(scopefs, base)
	if err != nil {
		return err
	}
	defer end()
	set := call("context_set", func(int) map[string]any {
		return map[string]any{"messages": []any{map[string]any{"type": "state", "text": contextText}}}
	})
	if _, _, err := side.call(set, 0); err != nil {
		return err
	}
	fmt.Println("| call | without µs, p50 (p99) | with 1 MiB | added p50 | added p99 |\n|---|---|---|---|---|")
	for _, o := range contextOps() {
		if err := o.measure(side, count, warm); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if self == "" {
		return nil
	}
	return measureReads(side, self, filepath.Join(base, "agents/bench"), count)
}

// measure prints the row of a call.
func (o contextOp) measure(side *mcpSide, count, warm int) error {
	var times [2][]float64
	run := func(k, n int, keep bool) error {
		for range n {
			took, _, err := side.call([]request{o.without, o.with}[k], 0)
			if err != nil {
				return err
			}
			if keep {
				times[k] = append(times[k], float64(took.Nanoseconds())/1e3)
			}
		}
		return nil
	}
	for k := range times {
		if err := run(k, warm, false); err != nil {
			return err
		}
	}
	const block = 20
	for done := 0; done < count; done += block {
		for k := range times {
			if err := run(k, min(block, count-done), true); err != nil {
				return err
			}
		}
	}
	at := func(k, percent int) float64 { slices.Sort(times[k]); return times[k][len(times[k])*percent/100] }
	fmt.Printf("| %s | %.0f (%.0f) | %.0f (%.0f) | %+.0f | %+.0f |\n", o.name, at(0, 50), at(0, 99), at(1, 50),
		at(1, 99), at(1, 50)-at(0, 50), at(1, 99)-at(0, 99))
	return nil
}

// measureReads has this program read files inside the sandbox.
func measureReads(side *mcpSide, self, scope string, count int) error {
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(filepath.Join(scope, "bench"), text, 0o755)
	}
	if err != nil {
		return err
	}
	run := call("bash", func(int) map[string]any {
		return map[string]any{"_scopes": []string{"state"},
			"command": fmt.Sprintf("cp state.json /tmp && ./bench reads %d /tmp/state.json /workspace/state.json /context/state.json >reads", count)}
	})
	if _, _, err := side.call(run, 0); err != nil {
		return err
	}
	table, err := os.ReadFile(filepath.Join(scope, "reads"))
	fmt.Printf("\n%s", table)
	return err
}

// reads measures stat(2) of files, and open, read to the end and close.
func reads(args arguments) error {
	var count int
	if err := args.numbers(&count); err != nil {
		return err
	}
	fmt.Println("| file of 1 MiB | stat µs, p50 (p99) | open, read, close µs, p50 (p99) |\n|---|---|---|")
	for _, name := range args[1:] {
		row := "| " + name + " |"
		for _, do := range []func() error{
			func() error { _, err := os.Stat(name); return err },
			func() error { _, err := os.ReadFile(name); return err },
		} {
			var times []float64
			for range count {
				began := time.Now()
				if err := do(); err != nil {
					return err
				}
				times = append(times, float64(time.Since(began).Nanoseconds())/1e3)
				time.Sleep(2 * time.Millisecond) // /context serves a bounded number of requests a second
			}
			slices.Sort(times)
			row += fmt.Sprintf(" %.0f (%.0f) |", times[count/2], times[count*99/100])
		}
		fmt.Println(row)
	}
	return nil
}
