package view

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// listOf returns the names in a directory, sorted.
func listOf(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestListed checks that a listing which the kernel caches shows every change: by the
// host, by a client, by another view of the same directory, and by new rules.
func TestListed(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	harness.Plant(t, h.Scope("a"), "d/kept", "d/secret")
	d := h.View("a", "d")
	cache := func() { // the second listing comes from the kernel's cache
		for range 2 {
			listOf(t, d)
		}
	}

	cache()
	harness.Plant(t, h.Scope("a"), "d/new")
	seen(t, "a file of the host", func() bool { return slices.Contains(listOf(t, d), "new") })
	cache()
	require.NoError(t, os.Rename(h.Scope("a", "d/new"), h.Scope("a", "moved")))
	seen(t, "a file that the host moved away", func() bool { return !slices.Contains(listOf(t, d), "new") })

	cache()
	require.NoError(t, os.Rename(h.View("a", "moved"), h.View("a", "d/back")))
	assert.Contains(t, listOf(t, d), "back")
	cache()
	require.NoError(t, os.Remove(h.View("a", "d/back")))
	assert.NotContains(t, listOf(t, d), "back")

	cache()
	open, err := os.Open(d)
	require.NoError(t, err)
	defer open.Close()
	names, err := open.Readdirnames(-1)
	require.NoError(t, err)
	require.Contains(t, names, "secret")
	h.Define("a", "view: {paths: {d/secret: hide}}")
	h.Must("reload")
	assert.Equal(t, []string{"kept"}, listOf(t, d))
	_, err = open.Seek(0, 0)
	require.NoError(t, err)
	names, err = open.Readdirnames(-1)
	require.NoError(t, err)
	assert.Equal(t, []string{"kept"}, names, "a directory that was open before the reload")
}

// unlisted is an access ACL u::-wx,g::r-x,o::r-x; acl(5).
var unlisted = []byte("\x02\x00\x00\x00\x01\x00\x03\x00\xff\xff\xff\xff\x04\x00\x05\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff")

// TestListedPermission: a client or the host changes the mode or the ACL of a directory. A process
// that may not read the directory then gets EACCES, not the listing in the kernel's cache.
func TestListedPermission(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {xattrs: true}"})
	harness.Plant(t, h.Scope("a"), "d/secret")
	d, below := h.View("a", "d"), h.Scope("a", "d")
	acl := func(dir string) error { return unix.Setxattr(dir, "system.posix_acl_access", unlisted, 0) }
	for name, deny := range map[string]func() error{
		"client":     func() error { return os.Chmod(d, 0o311) },
		"client ACL": func() error { return acl(d) },
		"host":       func() error { return os.Chmod(below, 0o311) },
		"host ACL":   func() error { return acl(below) },
	} {
		require.Equal(t, []string{"secret"}, listOf(t, d))
		open, err := os.Open(d)
		require.NoError(t, err)
		defer open.Close()
		require.NoError(t, deny())
		if strings.HasPrefix(name, "client") { // at once: the change was a request of the view
			_, err := os.ReadDir(d)
			assert.ErrorIs(t, err, os.ErrPermission, name)
		}
		seen(t, name, func() bool { _, err := os.ReadDir(d); return errors.Is(err, os.ErrPermission) })
		_, err = open.ReadDir(-1)
		assert.ErrorIs(t, err, os.ErrPermission, "a directory that was open before has the same listing")
		require.NoError(t, os.Chmod(below, 0o755))
		seen(t, name, func() bool { _, err := os.ReadDir(d); return err == nil })
	}
}

// TestListedMoved: the host moves a directory to a place where the policy hides a name. A
// client that has the directory open no longer gets the name from the kernel's listing, whether
// or not a client has used the new place before. It gets ESTALE until a lookup there.
func TestListedMoved(t *testing.T) {
	for name, test := range map[string]struct {
		known []string    // directories that a client has listed
		moves [][2]string // by the host
	}{
		"to a directory that a client knows":    {[]string{"here/x", "there/x"}, [][2]string{{"here/x/d", "there/x/d"}}},
		"to a directory that no client knows":   {nil, [][2]string{{"here/x/d", "there/x/d"}}},
		"with the directory above":              {nil, [][2]string{{"there/x", "there/y"}, {"here/x", "there/x"}}},
		"with a directory that no client knows": {nil, [][2]string{{"here/x/d", "other/new/d"}, {"there/x", "there/y"}, {"other/new", "there/x"}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.NewHost(t, map[string]string{"a": "view: {paths: {there/x/d/secret: hide}}"})
			harness.Plant(t, h.Scope("a"), "here/x/d/kept", "here/x/d/secret", "other/new/f", "there/x/f")
			for _, dir := range test.known {
				listOf(t, h.View("a", dir))
			}
			open, err := os.Open(h.View("a", "here/x/d"))
			require.NoError(t, err)
			defer open.Close()
			names := func() []string {
				_, err := open.Seek(0, 0)
				require.NoError(t, err)
				names, err := open.Readdirnames(-1)
				if errors.Is(err, unix.ESTALE) {
					return nil
				}
				require.NoError(t, err)
				slices.Sort(names)
				return names
			}
			require.Equal(t, []string{"kept", "secret"}, names())
			for _, move := range test.moves {
				require.NoError(t, os.Rename(h.Scope("a", move[0]), h.Scope("a", move[1])))
				names() // the kernel may cache it again
				names()
			}
			seen(t, "the other rule", func() bool {
				return !slices.Contains(names(), "secret") && !slices.Contains(listOf(t, h.View("a", "there/x/d")), "secret")
			})
			assert.Equal(t, []string{"kept"}, listOf(t, h.View("a", "there/x/d")))
			assert.Equal(t, []string{"kept"}, names())
		})
	}
}

// TestListedDecided: clients list a directory all the time while rules hide a name in it and
// show it again. After each reload a listing has what the rules say.
func TestListedDecided(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	for i := range 300 { // more than one READDIR
		harness.Plant(t, h.Scope("a"), fmt.Sprintf("d/%s-%03d", strings.Repeat("n", 40), i))
	}
	harness.Plant(t, h.Scope("a"), "d/secret")
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = os.ReadDir(h.View("a", "d"))
				}
			}
		})
	}
	for i := range 30 {
		hides := i%2 == 0
		if hides {
			h.Define("a", "view: {paths: {d/secret: hide}}")
		} else {
			h.Define("a", "")
		}
		h.Must("reload")
		for range 20 {
			require.NotEqual(t, hides, slices.Contains(listOf(t, h.View("a", "d")), "secret"), "reload %d", i)
		}
	}
	close(stop)
	readers.Wait()
}

// TestListedRace has the host, a client and several readers use one directory. When they
// stop, the view lists what is there.
func TestListedRace(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": ""})
	require.NoError(t, os.Mkdir(h.Scope("a", "d"), 0o755))
	for i := range 300 { // more than one READDIR
		harness.Plant(t, h.Scope("a"), fmt.Sprintf("d/%s-%03d", strings.Repeat("n", 40), i))
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	run := func(f func()) {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		}()
	}
	change := func(dir string) func() {
		return func() {
			name := fmt.Sprintf("%s/%s-%03d", dir, strings.Repeat("n", 40), rand.IntN(400))
			if os.Remove(name) != nil {
				_ = os.WriteFile(name, nil, 0o644)
			}
		}
	}
	run(func() { change(h.Scope("a", "d"))(); time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) })
	run(change(h.View("a", "d")))
	for range 3 {
		run(func() { _, _ = os.ReadDir(h.View("a", "d")) })
	}
	for range 20 {
		time.Sleep(100 * time.Millisecond)
		_, _ = os.ReadDir(h.View("a", "d"))
	}
	close(stop)
	for range 5 {
		<-done
	}
	seen(t, "what is there", func() bool { return slices.Equal(listOf(t, h.Scope("a", "d")), listOf(t, h.View("a", "d"))) })
}
