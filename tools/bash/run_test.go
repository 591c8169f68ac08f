package bash

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/sandbox"
)

func TestRun(t *testing.T) {
	s, _ := newTestShell(t)
	for name, c := range map[string]struct {
		in      runArgs
		want    runResult
		content string
	}{
		"silent":      {runArgs{Command: "true"}, runResult{status: status{ExitCode: code(0)}}, "(no output)"},
		"streams":     {runArgs{Command: "echo e >&2; echo o"}, runResult{status: status{ExitCode: code(0)}, Stdout: "o\n", Stderr: "e\n"}, "o\ne\n"},
		"fails":       {runArgs{Command: "printf x; exit 3"}, runResult{status: status{ExitCode: code(3)}, Stdout: "x"}, "x\nexit status 3\n"},
		"signal":      {runArgs{Command: "kill -TERM $$"}, runResult{status: status{ExitCode: code(143), Signal: "SIGTERM"}}, "exit status 143 (SIGTERM)\n"},
		"it is bash":  {runArgs{Command: "[[ x == x ]] && echo ${BASH_VERSION:+yes}"}, runResult{status: status{ExitCode: code(0)}, Stdout: "yes\n"}, "yes\n"},
		"stdin":       {runArgs{Command: "wc -c", Stdin: strings.Repeat("x", 1<<20)}, runResult{status: status{ExitCode: code(0)}, Stdout: "1048576\n"}, "1048576\n"},
		"stdin empty": {runArgs{Command: "cat"}, runResult{status: status{ExitCode: code(0)}}, "(no output)"},
		"unread":      {runArgs{Command: "sleep 0.01", Stdin: strings.Repeat("x", 1<<20)}, runResult{status: status{ExitCode: code(0)}}, "(no output)"},
		"root":        {runArgs{Command: "pwd"}, runResult{status: status{ExitCode: code(0)}, Stdout: "/workspace\n"}, "/workspace\n"},
		"cwd":         {runArgs{Command: "pwd", Cwd: "/tmp"}, runResult{status: status{ExitCode: code(0)}, Stdout: "/tmp\n"}, "/tmp\n"},
		"binary": {runArgs{Command: `printf 'a\xff\xfeb\0c'`}, runResult{status: status{ExitCode: code(0)}, Stdout: "a\uFFFDb\uFFFDc", Replaced: 3},
			"a\uFFFDb\uFFFDc\n[bytes that are NUL or not UTF-8, shown as \uFFFD: 3; base64 or xxd prints them]\n"},
		"UTF-8": {runArgs{Command: `printf 'é€𝄞'; printf 'ü' >&2`}, runResult{status: status{ExitCode: code(0)}, Stdout: "é€𝄞", Stderr: "ü"}, "é€𝄞\nü\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.run(context.Background(), env, c.in)
			require.NoError(t, err)
			assert.Equal(t, []tools.Content{{Text: c.content}}, got.Content())
			got.DurationMS = 0
			assert.Equal(t, c.want, got)
		})
	}
	assert.Empty(t, s.jobs)
}

func TestRunErrors(t *testing.T) {
	s, _ := newTestShell(t)
	bash(t, s, "echo x >plain; mkdir -m 0 closed; ln -s /root/x out")
	for name, c := range map[string]struct {
		in   runArgs
		code tools.Code
		path string
	}{
		"missing":      {runArgs{Command: "true", Cwd: "no/where"}, tools.NotFound, "no/where"},
		"in the view":  {runArgs{Command: "true", Cwd: "/workspace/nowhere"}, tools.NotFound, "nowhere"},
		"outside":      {runArgs{Command: "true", Cwd: "/root"}, tools.NotFound, "/root"},
		"above":        {runArgs{Command: "true", Cwd: "../root/x"}, tools.NotFound, "../root/x"},
		"a link out":   {runArgs{Command: "true", Cwd: "out"}, tools.NotFound, "out"},
		"a file":       {runArgs{Command: "true", Cwd: "plain"}, tools.Invalid, "plain"},
		"closed":       {runArgs{Command: "true", Cwd: "closed"}, tools.Denied, "closed"},
		"too long":     {runArgs{Command: ": " + strings.Repeat("x", 131070)}, tools.TooLarge, ""},
		"much too":     {runArgs{Command: strings.Repeat("x", 200<<10)}, tools.TooLarge, ""},
		"NUL":          {runArgs{Command: "echo a\x00b"}, tools.Invalid, ""},
		"NUL in a cwd": {runArgs{Command: "true", Cwd: "a\x00b"}, tools.Invalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.run(context.Background(), env, c.in)
			var e *tools.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, c.code, e.Code)
			assert.Equal(t, c.path, e.Path)
		})
	}
	assert.Zero(t, s.running)
}

func TestTimeout(t *testing.T) {
	s, _ := newTestShell(t)
	begin := time.Now()
	r, err := s.run(context.Background(), env, runArgs{Command: "echo early; (sleep " + seconds(1041) + "; true) & sleep " + seconds(1041) + "; true", TimeoutMS: 200})
	require.NoError(t, err)
	assert.Less(t, time.Since(begin), 15*time.Second)
	assert.Equal(t, status{ExitCode: code(137), Signal: "SIGKILL", TimedOut: true}, r.status)
	assert.Equal(t, "early\nexit status 137 (SIGKILL): timed out\n", r.Content()[0].Text)
	assert.Zero(t, runs(t, "sleep", seconds(1041)), "grandchildren, too")

	id := ""
	r, err = s.run(context.Background(), env, runArgs{Command: "sleep 1042", TimeoutMS: 100, Background: true})
	require.NoError(t, err)
	id = r.ProcessID
	got := read(t, s, readArgs{ID: id, WaitMS: 10000})
	assert.True(t, got.TimedOut)
}

func TestCancel(t *testing.T) {
	s, _ := newTestShell(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for runs(t, "sleep", seconds(1043)) < 2 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	_, err := s.run(ctx, env, runArgs{Command: "(sleep " + seconds(1043) + "; true) & set -m; (sleep " + seconds(1043) + "; true) & wait"})
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, runs(t, "sleep", seconds(1043)))
	_, err = s.run(ctx, env, runArgs{Command: "true"})
	assert.ErrorIs(t, err, context.Canceled)
	assert.Empty(t, s.jobs)
	assert.Zero(t, s.running)
}

func TestLongOutput(t *testing.T) {
	s, _ := newTestShell(t)
	r := bash(t, s, "seq 1000000; echo end >&2")
	assert.True(t, r.Truncated)
	assert.Equal(t, "end\n", r.Stderr)
	assert.InDelta(t, maxShown, len(r.Stdout), 100)
	assert.True(t, strings.HasPrefix(r.Stdout, "1\n2\n3\n"))
	assert.True(t, strings.HasSuffix(r.Stdout, "\n999999\n1000000\n"))
	assert.Contains(t, r.Stdout, "\n[6823360 bytes left out]\n")
	assert.Contains(t, r.Content()[0].Text, "process_read p1")

	first := read(t, s, readArgs{ID: "p1", Stream: "stdout", Offset: new(int64), Limit: 10})
	assert.Equal(t, readResult{ID: "p1", status: status{ExitCode: code(0)}, Output: "1\n2\n3\n4\n5\n", NextOffset: 10, More: true}, first)
	at := int64(6888896 - maxStream/2)
	rest := read(t, s, readArgs{ID: "p1", Stream: "stdout", Offset: &at, Limit: 256 << 10})
	assert.Equal(t, at, rest.Offset)
	assert.Len(t, rest.Output, 256<<10)
	lost := read(t, s, readArgs{ID: "p1", Stream: "stdout", Offset: ptr(chunkSize), Limit: 10})
	assert.Greater(t, lost.Offset, int64(6888896-maxStream))
	assert.Equal(t, "end\n", read(t, s, readArgs{ID: "p1", Stream: "stderr"}).Output)
}

func TestHugeOutput(t *testing.T) {
	s, _ := newTestShell(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := bash(t, s, "head -c 100M /dev/zero")
	runtime.ReadMemStats(&after)
	assert.True(t, r.Truncated)
	assert.Equal(t, maxShown, r.Replaced)
	assert.Less(t, len(r.Stdout), 100, "a row of zeros is one replacement")
	assert.InDelta(t, maxStream, maxKept-s.budget.free.Load(), 3*chunkSize, "kept")
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(50<<20), "allocated on the way")
}

func TestSandboxEnds(t *testing.T) {
	s, session := newTestShell(t)
	id := background(t, s, "echo last; sleep 1044")
	require.Equal(t, "last\n", read(t, s, readArgs{ID: id, WaitMS: 5000}).Output)
	ended := make(chan error)
	go func() {
		_, err := s.run(context.Background(), env, runArgs{Command: "sleep " + seconds(1045)})
		ended <- err
	}()
	require.Eventually(t, func() bool { return runs(t, "sleep", seconds(1045)) == 1 }, 20*time.Second, time.Millisecond)
	require.NoError(t, session.Close())
	assert.Equal(t, errEnded(), <-ended)
	_, err := s.run(context.Background(), env, runArgs{Command: "true"})
	assert.Equal(t, errEnded(), err)
	assert.False(t, read(t, s, readArgs{ID: id, WaitMS: 5000}).Running)
	r := read(t, s, readArgs{ID: id, Offset: new(int64)})
	assert.Equal(t, "last\n", r.Output)
	assert.Equal(t, status{ExitCode: code(137), Signal: "SIGKILL"}, r.status)
}

func TestTwoAtOnce(t *testing.T) {
	s, _ := newTestShell(t)
	done := make(chan string)
	for word, other := range map[string]string{"a": "b", "b": "a"} {
		go func() {
			r, _ := s.run(context.Background(), env, runArgs{Command: fmt.Sprintf("touch %s; until [ -e %s ]; do sleep 0.01; done; echo %s", word, other, word), TimeoutMS: 20_000})
			done <- r.Stdout
		}()
	}
	got := []string{<-done, <-done}
	slices.Sort(got)
	assert.Equal(t, []string{"a\n", "b\n"}, got)
}

// TestTag requires that a command carries the id of its call.
func TestTag(t *testing.T) {
	target := &fake{err: sandbox.ErrEnded}
	s := NewShell(target)
	_, err := s.run(context.Background(), env, runArgs{Command: "x", Cwd: "d"})
	assert.Equal(t, errEnded(), err)
	assert.Equal(t, []sandbox.Command{{Argv: []string{"bash", "-c", "x"}, Dir: "d", Tag: "c1"}}, target.got)
}

// BenchmarkRun compares the tool bash with a plain Exec of the same command.
func BenchmarkRun(b *testing.B) {
	s, session := newTestShell(b)
	took := map[string][]time.Duration{}
	cases := map[string]func(){
		"bash": func() {
			_, err := s.run(context.Background(), env, runArgs{Command: "true"})
			require.NoError(b, err)
		},
		"exec": func() {
			p, err := session.Exec(context.Background(), sandbox.Command{Argv: []string{"bash", "-c", "true"}})
			require.NoError(b, err)
			_, err = p.Wait()
			require.NoError(b, err)
			p.Close()
		},
	}
	for b.Loop() {
		for name, f := range cases {
			begin := time.Now()
			f()
			took[name] = append(took[name], time.Since(begin))
		}
	}
	for name, times := range took {
		slices.Sort(times)
		b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "p50-ms-"+name)
	}
}

func ptr(n int64) *int64 { return &n }
