// Command progress prints what go test -json reports, as it happens: each package's own closing line as the package ends, the whole output
// of a test that failed, and a line at least each 15 seconds with the number of tests that have passed and the tests that run. It exits
// with 1 if anything failed, nothing ran, or the report ends before its tests do. With a limit it is what go test -exec starts:
//
//	go test -json -exec 'progress -limit 10m' ./... | progress
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// event is a line of test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

// key names a test; Test "" is its package.
type key struct{ Package, Test string }

// quiet bounds the time without a line.
const quiet = 15 * time.Second

// progress is what was read. Its lock guards all of it, and standard output.
type progress struct {
	mu      sync.Mutex
	last    time.Time       // of a line
	begun   map[string]bool // packages that have not ended
	running map[key]time.Time
	output  map[key]string
	passed  int
	skipped map[string]int // by reason
	failed  int
	broken  bool // a package did not build
}

func main() {
	limit := flag.Duration("limit", 0, "run the tests of a package, and end them when they print nothing for so long")
	memory := flag.Bool("memory", false, "with -limit: the package's TMPDIR is a file system in memory")
	flag.Parse()
	if *limit > 0 {
		os.Exit(limited(*limit, *memory, flag.Arg(0), flag.Args()[1:]))
	}
	signal.Ignore(syscall.SIGINT) // it ends go test, whose report ends then
	p := &progress{last: time.Now(), begun: map[string]bool{}, running: map[key]time.Time{}, output: map[key]string{}, skipped: map[string]int{}}
	go p.beat()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			p.take(line)
		}
		if err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.begun { // go test was killed
		p.print(fmt.Sprintf("%s: has not ended: %s\n", name, strings.Join(p.runs(name), ", ")))
		p.end(key{Package: name}, "fail")
	}
	for _, why := range slices.Sorted(maps.Keys(p.skipped)) {
		fmt.Printf("skipped %d: %s\n", p.skipped[why], why)
	}
	fmt.Printf("%d passed, %d failed\n", p.passed, p.failed)
	if p.failed > 0 || p.broken || p.passed == 0 {
		os.Exit(1)
	}
}

func (p *progress) take(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		p.print(line) // of go itself
		return
	}
	k := key{e.Package, e.Test}
	if e.Package != "" {
		p.begun[e.Package] = true
	}
	switch e.Action {
	case "build-output":
		p.print(e.Output)
	case "build-fail":
		p.broken = true
	case "run", "cont":
		p.running[k] = time.Now()
	case "pause": // for t.Parallel
		delete(p.running, k)
	case "output":
		p.output[k] += e.Output
	case "pass", "skip", "fail":
		p.end(k, e.Action)
	}
}

func (p *progress) end(k key, how string) {
	said := p.output[k]
	delete(p.output, k)
	delete(p.running, k)
	switch {
	case k.Test == "":
		delete(p.begun, k.Package)
		p.broken = p.broken || how == "fail"
		if how == "fail" {
			for other, text := range p.output { // tests that a crash ended
				if other.Package == k.Package {
					p.print(text)
					delete(p.output, other)
					delete(p.running, other)
				}
			}
			p.print(said)
		} else if all := strings.Split(strings.TrimSpace(said), "\n"); !strings.Contains(all[len(all)-1], "[no test files]") {
			_, spent, _ := strings.Cut(said, processor)
			spent, _, _ = strings.Cut(spent, "\n")
			p.print(strings.TrimSuffix(all[len(all)-1]+"\t"+processor+spent, "\t"+processor) + "\n")
		}
	case how == "fail":
		p.failed++
		p.print(said)
	case how == "skip":
		for line := range strings.Lines(said) {
			if _, why, ok := strings.Cut(strings.TrimSpace(line), ".go:"); ok {
				_, why, _ = strings.Cut(why, ": ")
				p.skipped[why]++
			}
		}
	default:
		p.passed++
	}
}

func (p *progress) print(text string) {
	fmt.Print(text)
	p.last = time.Now()
}

// beat prints how far the tests are when nothing else was printed.
func (p *progress) beat() {
	for range time.Tick(time.Second) {
		p.mu.Lock()
		if time.Since(p.last) >= quiet {
			names := p.runs("")
			p.print(fmt.Sprintf("… %d passed, %d failed; running: %s\n", p.passed, p.failed, strings.Join(names[:min(len(names), 4)], ", ")))
		}
		p.mu.Unlock()
	}
}

// runs returns the tests of a package, or of all, that run, and for how long: the longest first, and no test that waits for a part of its
// own.
func (p *progress) runs(of string) (names []string) {
	all := slices.SortedFunc(maps.Keys(p.running), func(a, b key) int { return cmp.Compare(p.running[a].Unix(), p.running[b].Unix()) })
	for _, k := range all {
		waits := slices.ContainsFunc(all, func(o key) bool { return o.Package == k.Package && strings.HasPrefix(o.Test, k.Test+"/") })
		if !waits && (of == "" || k.Package == of) {
			names = append(names, fmt.Sprintf("%s %.0f s", k.Test, time.Since(p.running[k]).Seconds()))
		}
	}
	return names
}
