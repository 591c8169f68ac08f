package audit

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/audit/segment"
)

// TestReadLarge measures reading a large log. AUDIT_TEST_LINES is its number of lines; one line in AUDIT_TEST_DENIED
// is a denial. It waits until the segments are packed, unless AUDIT_TEST_PLAIN is set. Without the variables the log is
// small and only correctness is checked.
func TestReadLarge(t *testing.T) {
	lines, _ := strconv.Atoi(cmp.Or(os.Getenv("AUDIT_TEST_LINES"), "200000"))
	every, _ := strconv.Atoi(cmp.Or(os.Getenv("AUDIT_TEST_DENIED"), "1000"))
	dir := cmp.Or(os.Getenv("AUDIT_TEST_DIR"), filepath.Join(t.TempDir(), "log"))
	if _, err := os.Stat(dir); err != nil {
		generate(t, dir, lines, every)
	}
	if os.Getenv("AUDIT_TEST_PLAIN") == "" {
		l, err := Open(dir, Options{Sync: 50 * time.Millisecond})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return packed(dir) }, 10*time.Minute, 50*time.Millisecond)
		require.NoError(t, l.Close())
	}
	size := int64(0)
	names, err := filepath.Glob(filepath.Join(dir, "0*"))
	require.NoError(t, err)
	for _, name := range names {
		info, err := os.Stat(name)
		require.NoError(t, err)
		size += info.Size()
	}
	t.Logf("%d lines, %d MB on disk", lines, size/1e6)
	for _, c := range []struct {
		name   string
		filter Filter
		want   int
	}{
		{"denied", Filter{Denied: true}, lines / every},
		{"since, the last thousandth", Filter{Since: generated(lines - lines/1000)}, lines/1000 + 1},
		{"number", Filter{Seq: uint64(lines / 2)}, 1},
	} {
		began, n := time.Now(), 0
		for _, err := range Read(noCtx, dir, c.filter, false) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, c.want, n, c.name)
		t.Logf("%s: %d events in %v", c.name, n, time.Since(began))
	}
}

// generated returns the time of event n of a generated log.
func generated(n int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(n) * 10 * time.Millisecond)
}

// generate writes a log of calls.
func generate(t *testing.T, dir string, lines, every int) {
	require.NoError(t, os.MkdirAll(dir, 0o700))
	var b bytes.Buffer
	write := func(n int, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, segment.Name(n)), b.Bytes(), mode))
		b.Reset()
	}
	number := 1
	for i := 1; i <= lines; i++ {
		e := Event{Event: KindCall, Agent: fmt.Sprint("agent-", i%50), Session: "c1790000000-7", Call: fmt.Sprintf("call%09d", i/2),
			Op: "read_file", Path: fmt.Sprintf("src/pkg%d/file%d.go", i%97, i%1009), Verdict: Allow, Rule: "tools: *", Outcome: "ok", DurationUS: int64(i % 5000)}
		if i%every == 0 {
			e.Verdict, e.Outcome = Deny, "denied"
		}
		b.Write(appendBody(appendHead(nil, uint64(i), generated(i)), e))
		if b.Len() > 64<<20-1000 {
			write(number, sealed)
			number++
		}
	}
	write(number, 0o600)
}
