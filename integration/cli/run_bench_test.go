package cli

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	// stopwatch runs a command whenever it is told to, and says how long it took:
	// a process that is already where and who the command is to be.
	harness.Roles["stopwatch"] = func(argv []string) error {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Stderr = os.Stderr
			began := time.Now()
			if err := cmd.Run(); err != nil {
				return err
			}
			fmt.Println(time.Since(began).Nanoseconds())
		}
		return nil
	}
}

// BenchmarkRunStartup measures what it takes to run true, against a plain bubblewrap.
// It asserts nothing about time.
func BenchmarkRunStartup(b *testing.B) {
	const rounds = 50
	a := map[string]string{"a": ""}
	h := harness.NewHost(b, a)
	root, user := harness.Embed(b, 0, a), harness.Embed(b, 1234, a)
	self := harness.TestBinary(b, h)
	bwrap := []string{"bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"}
	names := []string{"bwrap, root", "bwrap, user", "scopefs run, daemon", "scopefs run, embedded, root", "scopefs run, embedded, user"}
	watches := []*exec.Cmd{
		exec.Command(self, bwrap...),
		harness.AsUser(b, 1234, append([]string{self}, bwrap...)...),
		exec.Command(self, harness.Program, "--base", h.Base, "run", "a", "true"),
		exec.Command(self, harness.Program, "--base", root.Base, "run", "a", "true"),
		harness.AsUser(b, 1234, self, harness.Program, "--base", user.Base, "run", "a", "true"),
	}
	tell, hear, took := make([]io.WriteCloser, len(watches)), make([]*bufio.Reader, len(watches)), make([][]time.Duration, len(watches))
	for i, cmd := range watches {
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = append(cmd.Env, harness.RoleEnv+"=stopwatch", "TMPDIR=/tmp")
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(b, err)
		out, err := cmd.StdoutPipe()
		require.NoError(b, err)
		require.NoError(b, cmd.Start())
		tell[i], hear[i] = in, bufio.NewReader(out)
	}
	for range rounds {
		for i := range watches {
			fmt.Fprintln(tell[i])
			line, err := hear[i].ReadString('\n')
			require.NoError(b, err, names[i])
			ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
			require.NoError(b, err)
			took[i] = append(took[i], time.Duration(ns))
		}
	}
	for i, cmd := range watches {
		tell[i].Close()
		require.NoError(b, cmd.Wait())
		slices.Sort(took[i])
		at := func(q int) float64 { return took[i][q*(rounds-1)/100].Seconds() * 1000 }
		fmt.Printf("%-30s median %6.1f ms  p10 %6.1f  p90 %6.1f\n", names[i], at(50), at(10), at(90))
	}
}
