package sandbox

import (
	"context"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkStart compares, in turns, a session that runs true with a bubblewrap
// that does, and both with a further command of a session that is there.
func BenchmarkStart(b *testing.B) {
	h, err := Open(Config{})
	require.NoError(b, err)
	defer h.Close()
	spec := newSpec(b)
	limited := spec
	limited.Limits = Limits{Memory: 1 << 30, PIDs: 100, CPU: 1}
	there, err := h.Start(context.Background(), spec)
	require.NoError(b, err)

	run := func(s *Session) {
		p, err := s.Exec(context.Background(), Command{Argv: []string{"true"}})
		require.NoError(b, err)
		_, err = p.Wait()
		require.NoError(b, err)
		p.Close()
	}
	start := func(spec Spec) func() {
		return func() {
			s, err := h.Start(context.Background(), spec)
			require.NoError(b, err)
			run(s)
			go s.Close()
		}
	}
	cases := map[string]func(){
		"session+true": start(spec), "limited+true": start(limited), "true": func() { run(there) },
		"bwrap+true": func() {
			cmd := exec.Command("bwrap", "--unshare-all", "--unshare-user", "--disable-userns",
				"--new-session", "--clearenv", "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
				"--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
				"--bind", spec.View.Name(), Workspace, "/usr/bin/true")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: agentUID, Gid: agentUID}}
			require.NoError(b, cmd.Run())
		},
	}
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, f := range cases {
			begin := time.Now()
			f()
			took[name] = append(took[name], time.Since(begin))
		}
	}
	for name, times := range took {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms-"+name)
	}
}
