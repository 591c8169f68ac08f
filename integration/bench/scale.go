package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// threads prints how many files a second so many threads look at: each file is
// stated, opened, read and closed once, by one thread.
func threads(args arguments) error {
	var count, dirs, files int
	if err := args.numbers(&count, &dirs, &files); err != nil {
		return err
	}
	// A thread that waits in a system call must not keep others from theirs.
	runtime.GOMAXPROCS(max(count, runtime.NumCPU()))
	failed := make(chan error, count)
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for t := range count {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-start
			for i := t; i < dirs*files; i += count {
				if err := look(gridFile(args[3], i/files, i%files)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	ready.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	took := time.Since(began)
	close(failed)
	for err := range failed {
		return err
	}
	fmt.Printf("%.0f\n", float64(dirs*files)/took.Seconds())
	return nil
}

func look(name string) error {
	var st syscall.Stat_t
	if err := syscall.Lstat(name, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	var buf [4096]byte
	if _, err := syscall.Read(fd, buf[:]); err != nil {
		return &os.PathError{Op: "read", Path: name, Err: err}
	}
	return syscall.Close(fd)
}

// Of one round of single.
const (
	opened = 10  // files that the kernel does not know are opened
	asked  = 100 // times one that it knows is asked for
)

// single prints for each directory the median time of an open of a file that
// the kernel has forgotten, and of a stat of one that it knows. The directory
// they are in is known in both.
func single(args arguments) error {
	var rounds, dirs, files int
	if err := args.numbers(&rounds, &dirs, &files); err != nil {
		return err
	}
	tops := args[3:]
	opens, stats := make([][]float64, len(tops)), make([][]float64, len(tops))
	for r := range rounds {
		for i := range tops {
			k := (i + r) % len(tops)
			if err := forgetAll(); err != nil {
				return err
			}
			if _, err := os.Stat(filepath.Dir(gridFile(tops[k], dirs-1, 0))); err != nil {
				return err
			}
			for f := range min(opened, files) {
				name := gridFile(tops[k], dirs-1, files-1-f)
				open, stat, err := openThenStat(name)
				if err != nil {
					return &os.PathError{Op: "open or stat", Path: name, Err: err}
				}
				opens[k], stats[k] = append(opens[k], open), append(stats[k], stat)
			}
		}
	}
	for k := range tops {
		fmt.Printf("%.2f %.2f\n", median(opens[k]), median(stats[k]))
	}
	return nil
}

func openThenStat(name string) (open, stat float64, err error) {
	began := time.Now()
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	open = micros(time.Since(began))
	if err := syscall.Close(fd); err != nil {
		return 0, 0, err
	}
	var st syscall.Stat_t
	began = time.Now()
	for range asked {
		if err := syscall.Stat(name, &st); err != nil {
			return 0, 0, err
		}
	}
	return open, micros(time.Since(began)) / asked, nil
}

// forgetAll makes the kernel forget names and inodes; drop_caches in proc_sys_vm(5).
func forgetAll() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) }
