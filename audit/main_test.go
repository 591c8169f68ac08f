package audit

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// childEnv is the environment variable that names the function a copy of the test binary runs instead of the tests.
const childEnv = "AUDIT_TEST_CHILD"

var children = map[string]func(dir string) error{
	"append":  childAppend,
	"forever": childForever,
	"serve":   childServe,
}

func TestMain(m *testing.M) {
	if run, ok := children[os.Getenv(childEnv)]; ok {
		if err := run(os.Getenv("AUDIT_TEST_DIR")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child returns a command that runs the named function of children.
func child(t *testing.T, name, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name, "AUDIT_TEST_DIR="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

const (
	perChild   = 8   // goroutines
	perRoutine = 500 // events
)

// childAppend appends from several goroutines.
func childAppend(dir string) error {
	l, err := Open(dir, Options{SegmentBytes: 64 << 10})
	if err != nil {
		return err
	}
	errs := make([]error, perChild)
	var wg sync.WaitGroup
	for g := range perChild {
		wg.Go(func() {
			last := uint64(0)
			for i := range perRoutine {
				seq, err := l.Append(noCtx, Event{Event: KindFile, Op: "open", Path: strconv.Itoa(i), PID: os.Getpid()})
				if err == nil && seq <= last {
					err = fmt.Errorf("%d after %d", seq, last)
				}
				if err != nil {
					errs[g] = err
					return
				}
				last = seq
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return l.Close()
}

// childForever appends until it is killed, and prints each sequence number that Append returned.
func childForever(dir string) error {
	l, err := Open(dir, Options{SegmentBytes: 64 << 10})
	if err != nil {
		return err
	}
	failed := make(chan error)
	for range 4 {
		go func() {
			for {
				seq, err := l.Append(noCtx, Event{Event: KindFile, Op: "open", Path: "some/path"})
				if err == nil {
					_, err = fmt.Fprintln(os.Stdout, seq)
				}
				if err != nil {
					failed <- err
				}
			}
		}()
	}
	return <-failed
}

// numbers reads the output of childForever without a partial last line.
func numbers(t *testing.T, r io.Reader) []uint64 {
	t.Helper()
	var all []uint64
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return all
		}
		require.NoError(t, err)
		n, err := strconv.ParseUint(line[:len(line)-1], 10, 64)
		require.NoError(t, err)
		all = append(all, n)
	}
}
