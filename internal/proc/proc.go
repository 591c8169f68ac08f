// Package proc reads what /proc has of processes: proc(5). A process that ends meanwhile is an error, or missing in a list.
package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Stat holds fields of the stat file of a process or thread: proc_pid_stat(5).
type Stat struct {
	Name                                 string // may have any character
	State                                byte
	Parent, Session, Foreground          int
	Flags                                int
	User, System, ChildUser, ChildSystem int // ticks, 100 a second
	Start                                int // in ticks since the host booted
	Memory                               int // pages
	Pending                              int // signals
}

// ReadStat reads the fields of a process by its number in the caller's pid namespace.
func ReadStat(pid int) (Stat, error) { return readStat(fmt.Sprintf("/proc/%d/stat", pid)) }

// ReadThread reads the fields of a thread.
func ReadThread(pid, tid int) (Stat, error) {
	return readStat(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
}

func readStat(name string) (Stat, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Stat{}, err
	}
	return parseStat(text)
}

func parseStat(text []byte) (s Stat, err error) {
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return s, unix.EIO
	}
	// The manual page numbers the fields after the name from 3.
	f := strings.Fields(string(text[to+1:]))
	if len(f) < 29 {
		return s, unix.EIO
	}
	s.Name, s.State = string(text[from+1:to]), f[0][0]
	for i, field := range map[int]*int{
		1: &s.Parent, 3: &s.Session, 5: &s.Foreground, 6: &s.Flags, 11: &s.User, 12: &s.System, 13: &s.ChildUser, 14: &s.ChildSystem,
		19: &s.Start, 21: &s.Memory, 28: &s.Pending,
	} {
		if *field, err = strconv.Atoi(f[i]); err != nil {
			return Stat{}, unix.EIO
		}
	}
	return s, nil
}

// Ended reports whether the process has ended and waits to be reaped, or is gone.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Dying reports whether the process has ended, exits, or SIGKILL is pending, which the kernel
// gives to each thread (complete_signal, kernel/signal.c).
func (s Stat) Dying() bool {
	const exiting = 0x4 // PF_EXITING, linux/sched.h
	return s.Ended() || s.Flags&exiting != 0 || s.Pending&(1<<(unix.SIGKILL-1)) != 0
}

// Processes returns the processes of the caller's pid namespace.
func Processes() []int { return numbers("/proc") }

// Threads returns the threads of a process.
func Threads(pid int) []int { return numbers(fmt.Sprintf("/proc/%d/task", pid)) }

func numbers(dir string) (all []int) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			all = append(all, n)
		}
	}
	return all
}

// Children returns the children that a thread has started: proc_tid_children(5). That needs no capability.
func Children(pid, tid int) (all []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, tid))
	for word := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(word); err == nil {
			all = append(all, child)
		}
	}
	return all
}

// Name returns the name of a process or thread: proc_pid_comm(5).
func Name(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSuffix(string(text), "\n")
}

// Table is a file of lines KEY: WORDS, such as proc_pid_status(5) and proc_pid_io(5).
type Table string

// ReadTable reads the file of a process, such as status.
func ReadTable(pid int, file string) (Table, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	return Table(text), err
}

// Words returns the words of a key, nil without the key.
func (t Table) Words(key string) []string {
	for line := range strings.Lines(string(t)) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			return append([]string{}, strings.Fields(rest)...)
		}
	}
	return nil
}
