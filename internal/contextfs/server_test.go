package contextfs_test

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/internal/contextfs"
	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// TestDead ends the server while a client has its file open.
func TestDead(t *testing.T) {
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": "x"})()
	p := b.start("a", "bash", "-c", `exec 3</context/state.json; echo open; read; head -c1 <&3; cat /context/state.json; ls /context`)
	line := make([]byte, 5)
	_, err := p.Stdout.Read(line)
	require.NoError(t, err)
	require.Equal(t, "open\n", string(line))
	began := time.Now()
	b.mount.Close()
	_, err = p.Stdin.WriteString("\n")
	require.NoError(t, err)
	text, err := io.ReadAll(p.Stderr)
	require.NoError(t, err)
	for _, program := range []string{"head", "cat", "ls"} {
		assert.Regexp(t, program+":.*(not connected|abort)", string(text))
	}
	_, err = p.Wait()
	require.NoError(t, err)
	assert.Less(t, time.Since(began), 5*time.Second)
}

// TestHung has a server whose Owner never returns: a client waits two seconds at most,
// and later ones are served.
func TestHung(t *testing.T) {
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": "x"})()
	stall := make(chan struct{})
	b.mu.Lock()
	b.stall = stall
	b.mu.Unlock()
	began := time.Now()
	assert.Contains(t, b.run("a", "cat", "/context/state.json"), "Input/output error")
	assert.Less(t, time.Since(began), 2*time.Second)
	b.mu.Lock()
	b.stall = nil
	b.mu.Unlock()
	close(stall)
	assert.Equal(t, "x", b.run("a", "cat", "/context/state.json"))
}

// TestFlood has processes that send requests without end: the server takes a
// bounded number of them, and a client waits for a moment.
func TestFlood(t *testing.T) {
	need.Once(t)
	b := newBox(t)
	defer b.show("a", map[string]string{"state.json": "x"})()
	p := b.start("a", "scopefs:files", "flood")
	line := make([]byte, 5)
	_, err := p.Stdout.Read(line)
	require.NoError(t, err)
	before, began := b.asked.Load(), time.Now()
	for range 3 {
		once := time.Now()
		assert.Equal(t, "x", b.run("a", "cat", "/context/state.json"))
		assert.Less(t, time.Since(once), 10*time.Second) // a few requests, one after the other
	}
	require.Eventually(t, func() bool { return b.asked.Load() > before+2500 }, 20*time.Second, time.Millisecond)
	periods := int64(time.Since(began)/(250*time.Millisecond)) + 2
	assert.LessOrEqual(t, b.asked.Load()-before, 1000*periods)
}

// TestMany has a thousand calls, some at the same time. Each reads its own context.
func TestMany(t *testing.T) {
	need.Long(t, "it starts hundreds of programs")
	b := newBox(t)
	turn := make(chan struct{}, 8)
	var all sync.WaitGroup
	for i := range need.Rounds("SCOPEFS_TEST_CONTEXTS", 250, 1000) {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			call, text := fmt.Sprint("call", i), fmt.Sprintf("<%d>", i)
			defer b.show(call, map[string]string{"state.json": text})()
			assert.Equal(t, text, b.run(call, "cat", "/context/state.json"))
		})
	}
	all.Wait()
}

// flood sends requests until it is killed.
func flood([]string) error {
	for range 4 {
		go func() {
			for {
				_, _ = os.Stat(state)
			}
		}()
	}
	fmt.Println("ready")
	select {}
}

// TestCloseLate closes a mount whose device number another mount has meanwhile.
func TestCloseLate(t *testing.T) {
	need.Root(t, "it mounts")
	control := fusemount.OpenControl()
	defer control.Close()
	open := func() (*contextfs.Mount, uint32) {
		m, err := contextfs.Open(contextfs.Options{
			Program: program, Control: control, Logger: slog.New(slog.DiscardHandler), Ready: func(int) {}, Died: func(*sandbox.Session, error) {},
		})
		require.NoError(t, err)
		var st unix.Statx_t
		require.NoError(t, unix.Statx(int(m.Root.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st))
		return m, st.Dev_minor
	}
	for range 20 {
		gone, minor := open()
		require.NoError(t, gone.Root.Close())
		next, other := open()
		gone.Close()
		var st unix.Statx_t
		assert.NoError(t, unix.Statx(int(next.Root.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_ALL, &st))
		next.Close()
		if minor == other {
			return
		}
	}
	t.Log("the kernel reused no number")
}
