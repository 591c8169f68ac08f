// Command bench compares file systems on the same operations, in one run:
//
//	bench [-rounds N] [-only TEXT] [-smoke] NAME=DIR...
//
// The first is the one the others are compared with. Rounds are interleaved,
// figures are medians in microseconds, ratios are to the first. The last column
// names the fastest of the others.
//
// It also has the parts of work.sh, scale.sh and mcp.sh that a shell cannot do well:
//
//	bench PART ARGUMENT...
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// op is one row. prepare is not timed; run is called n times in a round.
type op struct {
	name    string
	n       int
	prepare func(dir string, n int) error
	run     func(dir string, i int) error
	divide  int // entries that one run stands for
}

func main() {
	if len(os.Args) > 1 && parts[os.Args[1]].run != nil {
		if err := parts[os.Args[1]].main(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	rounds := flag.Int("rounds", 15, "rounds")
	only := flag.String("only", "", "rows whose name holds this")
	smoke := flag.Bool("smoke", false, "one round with a hundredth of the operations, which measures nothing")
	flag.Parse()
	var names, dirs []string
	for _, arg := range flag.Args() {
		name, dir, ok := strings.Cut(arg, "=")
		if !ok {
			fmt.Fprintln(os.Stderr, "usage: bench NAME=DIR...")
			os.Exit(2)
		}
		names, dirs = append(names, name), append(dirs, dir)
	}
	fmt.Printf("| operation | %s µs |", names[0])
	for _, name := range names[1:] {
		fmt.Printf(" %s |", name)
	}
	fmt.Printf(" fastest |\n|---|%s\n", strings.Repeat("---|", len(names)+1))
	for _, o := range ops {
		if *smoke {
			o.n, *rounds = max(o.n/100, 1), 1
		}
		if strings.Contains(o.name, *only) {
			row(o, names, dirs, *rounds)
		}
	}
}

func row(o op, names, dirs []string, rounds int) {
	times := make([][]float64, len(dirs))
	for r := range rounds {
		for i := range dirs {
			k := (i + r) % len(dirs) // nobody is always first
			t, err := measure(o, dirs[k])
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s in %s: %v\n", o.name, dirs[k], err)
				os.Exit(1)
			}
			times[k] = append(times[k], t)
		}
	}
	base, best, fastest := median(times[0]), math.Inf(1), ""
	fmt.Printf("| %s | %.2f |", o.name, base)
	for i, t := range times[1:] {
		fmt.Printf(" %.2f× |", median(t)/base)
		if median(t) < best {
			best, fastest = median(t), names[i+1]
		}
	}
	fmt.Printf(" %s |\n", fastest)
}

func measure(o op, top string) (micros float64, err error) {
	dir, err := os.MkdirTemp(top, "bench")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if o.prepare != nil {
		if err := o.prepare(dir, o.n); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for i := range o.n {
		if err := o.run(dir, i); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(began).Nanoseconds()) / 1e3 / float64(o.n*max(o.divide, 1)), nil
}

func median[T cmp.Ordered](v []T) (m T) {
	slices.Sort(v)
	if len(v) > 0 {
		m = v[len(v)/2]
	}
	return m
}

func file(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("f%05d", i)) }

var block = make([]byte, 4096)

func makeFiles(dir string, n int) error {
	for i := range n {
		if err := os.WriteFile(file(dir, i), block, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// openOnce opens one file and keeps it for the round.
var open int

func openFile(dir string, _ int) (err error) {
	if open > 0 {
		syscall.Close(open)
	}
	if err := os.WriteFile(file(dir, 0), make([]byte, 1<<20), 0o644); err != nil {
		return err
	}
	open, err = syscall.Open(file(dir, 0), syscall.O_RDWR, 0)
	return err
}

var large = make([]byte, 128<<10)

// openLarge is openFile with 256 MiB in the file.
func openLarge(dir string, n int) error {
	if err := openFile(dir, n); err != nil {
		return err
	}
	for i := range n {
		if _, err := syscall.Pwrite(open, large, int64(i)*int64(len(large))); err != nil {
			return err
		}
	}
	return nil
}

var ops = []op{
	{name: "create + write 4 KiB + close", n: 300, run: func(dir string, i int) error {
		fd, err := syscall.Open(file(dir, i), syscall.O_CREAT|syscall.O_WRONLY|syscall.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = syscall.Write(fd, block)
		return errors.Join(err, syscall.Close(fd))
	}},
	{name: "stat, cached", n: 2000, prepare: makeOne, run: func(dir string, _ int) error {
		var st syscall.Stat_t
		return syscall.Stat(file(dir, 0), &st)
	}},
	{name: "stat of absent, again", n: 2000, run: func(dir string, _ int) error {
		var st syscall.Stat_t
		if err := syscall.Stat(file(dir, 0), &st); err != syscall.ENOENT {
			return fmt.Errorf("want ENOENT, got %w", err)
		}
		return nil
	}},
	{name: "open + read 4 KiB + close", n: 500, prepare: makeFiles, run: func(dir string, i int) error {
		var buf [4096]byte
		fd, err := syscall.Open(file(dir, i), syscall.O_RDONLY, 0)
		if err != nil {
			return err
		}
		_, err = syscall.Read(fd, buf[:])
		return errors.Join(err, syscall.Close(fd))
	}},
	{name: "pread 4 KiB, open file", n: 5000, prepare: openFile, run: func(_ string, i int) error {
		var buf [4096]byte
		_, err := syscall.Pread(open, buf[:], int64(i%256)*4096)
		return err
	}},
	{name: "pwrite 4 KiB, open file", n: 5000, prepare: openFile, run: func(_ string, i int) error {
		_, err := syscall.Pwrite(open, block, int64(i%256)*4096)
		return err
	}},
	{name: "write 128 KiB, sequentially", n: 2048, prepare: openFile, run: func(_ string, i int) error {
		_, err := syscall.Pwrite(open, large, int64(i)*int64(len(large)))
		return err
	}},
	{name: "read 128 KiB, sequentially", n: 2048, prepare: openLarge, run: func(_ string, i int) error {
		_, err := syscall.Pread(open, large, int64(i)*int64(len(large)))
		return err
	}},
	{name: "readdir + lstat, an entry", n: 1, divide: 1000, prepare: func(dir string, _ int) error { return makeFiles(dir, 1000) }, run: func(dir string, _ int) error {
		names, err := readNames(dir)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		for _, name := range names {
			if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
				return err
			}
		}
		return nil
	}},
	{name: "rename", n: 300, prepare: makeFiles,
		run: func(dir string, i int) error { return syscall.Rename(file(dir, i), file(dir, i+100000)) }},
	{name: "mkdir + rmdir", n: 300, run: func(dir string, i int) error {
		if err := syscall.Mkdir(file(dir, i), 0o755); err != nil {
			return err
		}
		return syscall.Rmdir(file(dir, i))
	}},
	{name: "unlink", n: 300, prepare: makeFiles, run: func(dir string, i int) error { return syscall.Unlink(file(dir, i)) }},
}

func makeOne(dir string, _ int) error { return makeFiles(dir, 1) }

func readNames(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}
