package view

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// trips are operations, and the requests that a client waits for in each. The
// directory and what is in it is known to the kernel, fresh names are not.
var trips = []struct {
	name     string
	do       func() error
	requests string
}{
	{"stat", func() error { return unix.Stat("known", &unix.Stat_t{}) }, ""},
	{"stat of absent, again", func() error {
		if err := unix.Stat("absent", &unix.Stat_t{}); err != unix.ENOENT {
			return fmt.Errorf("not absent: %w", err)
		}
		return nil
	}, ""},
	{"open, read, close", func() error { _, err := os.ReadFile("known"); return err }, "OPEN"},
	{"create, write, close", func() error { return os.WriteFile("fresh-file", []byte("text"), 0o644) }, "LOOKUP CREATE"},
	{"write to an open file", func() error { return writeTwice("known") }, "OPEN"},
	{"rename", func() error { return unix.Rename("known-1", "fresh-name") }, "LOOKUP RENAME"},
	{"mkdir", func() error { return unix.Mkdir("fresh-dir", 0o755) }, "LOOKUP MKDIR"},
	{"unlink", func() error { return unix.Unlink("known-2") }, "UNLINK"},
	{"rmdir", func() error { return unix.Rmdir("known-dir") }, "RMDIR"},
	{"chmod", func() error { return unix.Chmod("known", 0o600) }, "SETATTR"},
	{"list", func() error { _, err := os.ReadDir("."); return err }, "GETATTR READDIRPLUS READDIRPLUS"},
	{"list again", func() error { _, err := os.ReadDir("."); return err }, ""},
	{"list without a change", func() error { _, err := os.ReadDir("quiet"); return err }, ""},
	{"extended attribute", func() error {
		if _, err := unix.Getxattr("known", "user.x", nil); err != unix.ENOTSUP {
			return fmt.Errorf("not ENOTSUP: %w", err)
		}
		return nil
	}, ""},
}

func init() {
	harness.Roles["list-written"] = listWritten
	harness.Roles["trips"] = func(args []string) error {
		runtime.LockOSThread() // the view predicts for each thread what a listing needs
		for i, trip := range trips {
			mark(i)
			if err := trip.do(); err != nil {
				return fmt.Errorf("%s: %w", trip.name, err)
			}
		}
		mark(len(trips))
		return nil
	}
}

// listWritten makes directories, lists each, and stats its files when their attributes have
// expired. It marks the last.
func listWritten([]string) error {
	runtime.LockOSThread() // the view predicts for each thread
	for i := range 4 {
		dir := fmt.Sprint("written-", i)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		for n := range 50 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o644); err != nil {
				return err
			}
		}
		time.Sleep(40 * time.Millisecond)
		mark(i)
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := unix.Lstat(filepath.Join(dir, e.Name()), &unix.Stat_t{}); err != nil {
				return err
			}
		}
	}
	mark(4)
	return nil
}

// TestListWritten: a program that lists directories and stats their files gets the attributes
// with the names, also when the kernel has the names already.
func TestListWritten(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"trips": "view: {cache: coherent}"})
	h.Start("--trace")
	cmd := harness.Role("list-written")
	cmd.Dir = h.View("trips")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	h.Stop()
	parts := regexp.MustCompile(`LOOKUP[^\n]*mark-\d+-[^\n]*\n`).Split(h.Log.String(), -1)
	require.Len(t, parts, 6)
	asked := regexp.MustCompile(`rx \d+: (GETATTR|STATX|LOOKUP) n`)
	assert.Greater(t, len(asked.FindAllString(parts[2], -1)), 40, "the second listing shows what follows")
	assert.Less(t, len(asked.FindAllString(parts[4], -1)), 10)
}

// mark leaves a request in the trace that tells one operation from the next.
func mark(i int) { _ = unix.Stat(fmt.Sprintf("mark-%d-", i), &unix.Stat_t{}) }

func writeTwice(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for range 2 {
		if _, err := f.WriteString("text"); err != nil {
			return err
		}
	}
	return nil
}

// TestTrips counts the requests of single operations: each costs two processes
// a switch.
func TestTrips(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"trips": "view: {cache: coherent}"}) // without it everything is a request
	dir := h.Scope("trips", "dir")
	harness.Plant(t, dir, "known", "known-1", "known-2")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "known-dir"), 0o755))
	harness.Plant(t, dir, "quiet/1", "quiet/2")
	h.Start("--trace")
	view := h.View("trips", "dir")
	for range 2 {
		// Attributes from before the watch are valid for 20 ms.
		time.Sleep(40 * time.Millisecond)
		entries, err := os.ReadDir(view)
		require.NoError(t, err)
		_, err = os.ReadDir(filepath.Join(view, "quiet"))
		require.NoError(t, err)
		for _, e := range append(entries, nil) {
			name := "absent"
			if e != nil {
				name = e.Name()
			}
			_, _ = os.Stat(filepath.Join(view, name))
		}
	}
	// What a view does not do the kernel asks for once: POLL, GETXATTR.
	_, err := os.ReadFile(filepath.Join(view, "known-2"))
	require.NoError(t, err)
	_, _ = unix.Getxattr(filepath.Join(view, "known"), "user.x", nil)
	cmd := harness.Role("trips")
	cmd.Dir = view
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	h.Stop()

	request := regexp.MustCompile(`rx \d+: ([A-Z_0-9]+) n\d+ `)
	parts := regexp.MustCompile(`LOOKUP[^\n]*mark-\d+-[^\n]*\n`).Split(h.Log.String(), -1)
	require.Len(t, parts, len(trips)+2)
	for i, trip := range trips {
		var got []string
		for _, m := range request.FindAllStringSubmatch(parts[i+1], -1) {
			if !strings.Contains("FORGET BATCH_FORGET RELEASE RELEASEDIR", m[1]) { // nobody waits for these
				got = append(got, m[1])
			}
		}
		assert.Equal(t, trip.requests, strings.Join(got, " "), trip.name)
	}
}
