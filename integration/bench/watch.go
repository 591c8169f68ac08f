package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how long an event may take before it counts as lost.
const patience = 10 * time.Second

// event is the name of a file that was written, and when its watcher woke.
type event struct {
	name string
	at   time.Time
	err  error
}

// inotify prints the median time from the begin of a write into a directory
// until a thread that waits for it has read the event.
func inotify(args arguments) error {
	var count int
	if err := args.numbers(&count); err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, args[1], unix.IN_MODIFY); err != nil {
		return err
	}
	events := make(chan event)
	go watch(fd, events)
	var times []float64
	for i := range count {
		began, err := writeOnce(file(args[1], i))
		if err != nil {
			return err
		}
		select {
		case e := <-events:
			if e.err != nil {
				return e.err
			}
			if want := fmt.Sprintf("f%05d", i); e.name != want {
				return fmt.Errorf("an event of %q, want %q", e.name, want)
			}
			times = append(times, micros(e.at.Sub(began)))
		case <-time.After(patience):
			return fmt.Errorf("no event of file %d within %v", i, patience)
		}
	}
	fmt.Printf("%.2f\n", median(times))
	return nil
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// writeOnce makes a file and writes once to it, and returns when it did that.
func writeOnce(name string) (time.Time, error) {
	f, err := os.Create(name)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	began := time.Now()
	_, err = f.Write(block)
	return began, err
}

// watch sends the events of fd; inotify(7). It ends with the process.
func watch(fd int, to chan<- event) {
	runtime.LockOSThread()
	var buf [4096]byte
	for {
		n, err := unix.Read(fd, buf[:])
		at := time.Now()
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			to <- event{err: err}
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			head := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			end := unix.SizeofInotifyEvent + int(head.Len)
			to <- event{name: string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:end], "\x00")), at: at}
			rest = rest[end:]
		}
	}
}

// rebuild starts a compiler that watches, and prints the median time from a
// change of the file until the compiler says that it waits again.
func rebuild(args arguments) error {
	var count int
	if err := args.numbers(&count); err != nil {
		return err
	}
	cmd := exec.Command(args[2], args[3:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	waits := make(chan error)
	go listen(out, waits)
	if err := within(waits); err != nil {
		return err
	}
	var times []float64
	for i := range count {
		began, err := appendLine(args[1], fmt.Sprintf("export const added%d = %d;\n", i, i))
		if err != nil {
			return err
		}
		if err := within(waits); err != nil {
			return err
		}
		times = append(times, micros(time.Since(began)))
	}
	fmt.Printf("%.2f\n", median(times))
	return nil
}

// listen sends nil each time the compiler waits, after a build without errors.
func listen(out io.Reader, to chan<- error) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch line := lines.Text(); {
		case strings.Contains(line, "Found 0 errors. Watching"):
			to <- nil
		case strings.Contains(line, "error"):
			to <- errors.New(line)
		}
	}
	to <- errors.New("the compiler ended")
}

func within(waits <-chan error) error {
	select {
	case err := <-waits:
		return err
	case <-time.After(6 * patience):
		return fmt.Errorf("the compiler did not notice within %v", 6*patience)
	}
}

func appendLine(name, line string) (time.Time, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	began := time.Now()
	_, err = f.WriteString(line)
	return began, err
}
