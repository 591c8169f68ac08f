package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// StateOf returns the state of a process: R, S, T and so on, see proc_pid_stat(5); 0 if the
// process is gone.
func StateOf(pid int) byte {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return text[bytes.LastIndexByte(text, ')')+2]
}

// Running returns the processes of the whole machine whose command line ends in these words.
func Running(words ...string) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if strings.HasSuffix("\x00"+string(text), "\x00"+strings.Join(words, "\x00")+"\x00") && StateOf(pid) != 'Z' {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Seconds returns a time that no other test process sleeps, for the command line of sleep(1).
func Seconds(n int) string { return fmt.Sprintf("471%d.%d", n, os.Getpid()) }

// ProcessesOf returns the command lines that contain the base directory of a host.
func ProcessesOf(base string) (found []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.Contains(string(text), base) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// ChildrenOf returns the processes of a name that a process has started.
func ChildrenOf(parent int, name string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		text, _ := os.ReadFile(file)
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat"))
		fields := strings.Fields(string(stat))
		if arg, _, _ := strings.Cut(string(text), "\x00"); (arg == name || filepath.Base(arg) == name) &&
			len(fields) > 3 && fields[3] == strconv.Itoa(parent) && fields[2] != "Z" {
			var pid int
			_, _ = fmt.Sscan(fields[0], &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

// Sandboxed returns the process in a sandbox that has a word in its command line, the last
// started one, or 0. Tests run side by side: no other may use the word (Seconds).
func (m *Way) Sandboxed(word string) int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	found := 0
	for _, name := range names {
		text, _ := os.ReadFile(name)
		dir, _ := os.Readlink(filepath.Join(filepath.Dir(name), "cwd"))
		if dir != "/workspace" && dir != "/" || !bytes.Contains(text, []byte(word)) || bytes.Contains(text, []byte(Program)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil && pid > found {
			if StateOf(pid) != 'Z' {
				found = pid
			}
		}
	}
	return found
}

// Executable writes a program that somebody is about to execute. A process that the test starts meanwhile would have the file open for
// writing until it executes its own program: execve(2) of this one answered ETXTBSY.
func Executable(t testing.TB, path string, text []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, text, 0o755))
}
