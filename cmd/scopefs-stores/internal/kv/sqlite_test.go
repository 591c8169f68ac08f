package kv

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/need"
	"github.com/scopefs/scopefs/tools"
	door "github.com/scopefs/scopefs/tools/kv"
)

// crashFile in the environment makes the test program write to a store until it
// is killed.
const crashFile = "SCOPEFS_TEST_KV_FILE"

func TestMain(m *testing.M) {
	if file := os.Getenv(crashFile); file != "" {
		writeUntilKilled(file)
	}
	os.Exit(m.Run())
}

// writeUntilKilled prints "writer number version" after each change.
func writeUntilKilled(file string) {
	s, err := OpenSQLite(file, Limits{})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				e, err := s.Set(context.Background(), Change{Part: "a:", Name: fmt.Sprintf("a:%d", w)}, crashValue(n), 0)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Printf("%d %d %d\n", w, n, e.Version) // one write(2)
			}
		})
	}
	wg.Wait()
}

// crashValue takes several pages of the file.
func crashValue(n int) string { return fmt.Sprintf("%d %s", n, strings.Repeat("x", 20_000)) }

// TestSQLiteCrash: what a process was told that it had set is there after the
// process was killed, values are whole, and no version is given twice.
func TestSQLiteCrash(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kv.db")
	var last int64
	for round := range 4 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashFile+"="+file)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		told := map[int]int{}
		lines := bufio.NewScanner(out)
		for i := 0; lines.Scan(); i++ {
			var w, n int
			var version int64
			_, err := fmt.Sscan(lines.Text(), &w, &n, &version)
			require.NoError(t, err)
			told[w] = n
			last = max(last, version)
			if i == 20+7*round {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		assert.Error(t, cmd.Wait(), "it was killed")

		s, err := OpenSQLite(file, Limits{})
		require.NoError(t, err)
		for w, n := range told {
			e, err := s.Get(t.Context(), fmt.Sprintf("a:%d", w))
			require.NoError(t, err)
			var has int
			fmt.Sscan(e.Value, &has)
			assert.GreaterOrEqual(t, has, n)
			assert.Equal(t, crashValue(has), e.Value)
		}
		e, err := s.Set(t.Context(), Change{Part: "a:", Name: "a:new"}, "", 0)
		require.NoError(t, err)
		assert.Greater(t, e.Version, last)
		last = e.Version
		conn, err := s.take(t.Context())
		require.NoError(t, err)
		var sums, check string
		require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&check))
		require.NoError(t, conn.QueryRowContext(t.Context(),
			"SELECT (SELECT keys || ' ' || bytes FROM parts) = (SELECT count(*) || ' ' || sum(length(name) + length(value)) FROM entries)").Scan(&sums))
		s.free <- conn
		assert.Equal(t, []string{"ok", "1"}, []string{check, sums})
		require.NoError(t, s.Close())
	}
}

// TestSQLiteInterrupted: a caller whose context ends at any moment leaves no transaction behind.
func TestSQLiteInterrupted(t *testing.T) {
	t.Parallel()
	s := openSQLite(t, filepath.Join(inMemory(t), "kv.db"), Limits{})
	c := Change{Part: "a:", Name: "a:k"}
	for i := range 2000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond/4)
		_, _ = s.Set(ctx, c, "v", 0)
		cancel()
	}
	_, err := s.Set(t.Context(), c, "last", 0)
	require.NoError(t, err)
	e, err := s.Get(t.Context(), c.Name)
	require.NoError(t, err)
	assert.Equal(t, "last", e.Value)
}

// TestSQLiteFile: the file is the daemon's user's alone, expired entries leave it
// when it is opened, and a file that is no store is an error.
func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "kv.db")
	s, err := OpenSQLite(file, Limits{})
	require.NoError(t, err)
	_, err = s.Set(t.Context(), Change{Part: "a:", Name: "a:k"}, "v", time.Millisecond)
	require.NoError(t, err)
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.NotEmpty(t, files)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode(), f.Name())
	}
	require.NoError(t, s.Close())
	require.Eventually(t, func() bool { // not before the millisecond is over
		s, err := OpenSQLite(file, Limits{Keys: 1})
		require.NoError(t, err)
		defer s.Close()
		conn, err := s.take(t.Context())
		require.NoError(t, err)
		defer func() { s.free <- conn }()
		n := int64(-1)
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT count(*) + (SELECT bytes FROM parts) FROM entries").Scan(&n))
		return n == 0
	}, 10*time.Second, time.Millisecond)

	other := filepath.Join(dir, "other.db")
	require.NoError(t, os.WriteFile(other, []byte(strings.Repeat("no database ", 1000)), 0o600))
	_, err = OpenSQLite(other, Limits{})
	assert.ErrorContains(t, err, other)
	require.NoError(t, os.Symlink(file, filepath.Join(dir, "link.db")))
	_, err = OpenSQLite(filepath.Join(dir, "link.db"), Limits{})
	assert.Error(t, err)

	conn, err := connect(t.Context(), file, "mode=rw")
	require.NoError(t, err)
	require.NoError(t, conn.exec(t.Context(), "PRAGMA user_version = 2"))
	require.NoError(t, conn.Close())
	_, err = OpenSQLite(file, Limits{})
	assert.ErrorContains(t, err, "version 2")
}

// TestCheckFile: a check finds what OpenSQLite would, and leaves the directory as it is.
func TestCheckFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	s := openSQLite(t, in("open.db"), Limits{})
	other, err := OpenSQLite(in("other.db"), Limits{})
	require.NoError(t, err)
	require.NoError(t, other.Close())
	conn, err := connect(t.Context(), in("version.db"), "mode=rwc")
	require.NoError(t, err)
	require.NoError(t, conn.exec(t.Context(), "PRAGMA user_version = 2"))
	require.NoError(t, conn.Close())
	require.NoError(t, os.WriteFile(in("text"), []byte(strings.Repeat("no database ", 1000)), 0o600))
	require.NoError(t, os.Symlink("other.db", in("link")))
	require.NoError(t, os.Mkdir(in("directory"), 0o700))
	before, err := os.ReadDir(dir)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"open.db": "", "other.db": "", "none.db": "", "version.db": "version 2", "text": "not a database", "link": "regular", "directory": "regular",
	} {
		err := CheckFile(t.Context(), in(name))
		if want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorContains(t, err, want, name)
			assert.ErrorContains(t, err, in(name))
		}
	}
	after, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Equal(t, before, after)
	assert.NoError(t, s.Ping(t.Context()))
}

// TestSQLiteBusy: a file that another process has locked can be read and is unavailable to
// writers, and nobody waits for ever.
func TestSQLiteBusy(t *testing.T) {
	t.Parallel()
	need.Long(t, "waits for a time limit")
	file := filepath.Join(t.TempDir(), "kv.db")
	s := openSQLite(t, file, Limits{})
	a := newClient(t, s, "a", "")
	must[set](t, a, "kv_set", args{"key": "k", "value": "v"})
	conn, err := connect(t.Context(), file, "mode=rw")
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.exec(t.Context(), "BEGIN IMMEDIATE"))
	must[got](t, a, "kv_get", args{"key": "k"})
	began := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			assert.Equal(t, tools.Unavailable, code(a.call(t, "kv_set", args{"key": "k", "value": "w"}, nil)))
		})
	}
	wg.Wait()
	assert.Less(t, time.Since(began), door.Patience+5*time.Second)
	require.NoError(t, conn.exec(t.Context(), "ROLLBACK"))
	must[set](t, a, "kv_set", args{"key": "k", "value": "w"})
}
