package view

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	cache := func() { // the third listing comes from the kernel's cache
		for range 3 {
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
