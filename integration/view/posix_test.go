package view

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// refusedByRule are the cases of go-fuse's suite that a view must fail, each
// with the rule of security that it breaks.
var refusedByRule = map[string]string{
	"OpenSymlinkRace": "makes a link to /etc/passwd: a link that leads outside is refused",
	"SymlinkReadlink": "makes a link to /foobar: a link that leads outside is refused",
	"FcntlFlockLocksFile": "wants a process's own locks to conflict, as they do where they are forwarded to a server: " +
		"ours stay in the kernel, where they do not (fcntl(2)); it fails on ext4 as well",
}

// TestPosix runs go-fuse's suite against a view.
func TestPosix(t *testing.T) {
	for _, data := range []string{"passthrough", "mediated", "passthrough, changes: kept", "mediated, changes: kept", "passthrough, changes: held", "mediated, changes: held"} {
		h := harness.NewHost(t, map[string]string{"posix": "view: {xattrs: true, data: " + data + "}"})
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			if why, ok := refusedByRule[name]; ok {
				t.Run(data+"/"+name, func(t *testing.T) { t.Logf("not run: %s", why) })
				continue
			}
			t.Run(data+"/"+name, func(t *testing.T) {
				defer func() {
					// ext4 takes no attribute that large, natively either.
					if t.Skipped() && name != "XAttrLarge" {
						t.Error("the suite's test skips itself: something is missing that a view has")
					}
				}()
				h.Must("run", "posix", "--", "sh", "-c", "rm -rf /workspace/* /workspace/.[a-z]*")
				posixtest.All[name](t, h.View("posix"))
			})
		}
		if strings.HasSuffix(data, "held") {
			entries, err := os.ReadDir(h.Scope("posix"))
			require.NoError(t, err)
			assert.Empty(t, entries, "the directory has changed")
		}
	}
}

// insideEnv is the environment variable with the directory that TestPosixInside uses.
const insideEnv = "SCOPEFS_TEST_INSIDE"

// mapsEnv says whether a file there may have shared mappings.
const mapsEnv = "SCOPEFS_TEST_MAPS"

// TestPosixInside is what TestPosixUsers runs in a sandbox.
func TestPosixInside(t *testing.T) {
	dir := os.Getenv(insideEnv)
	if dir == "" {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		if _, ok := refusedByRule[name]; ok {
			continue
		}
		t.Run(name, func(t *testing.T) {
			in := dir + "/" + name
			require.NoError(t, os.Mkdir(in, 0o755))
			posixtest.All[name](t, in)
			require.NoError(t, os.RemoveAll(in))
		})
	}
	t.Run("closed directory", func(t *testing.T) {
		require.NoError(t, os.Mkdir(dir+"/closed", 0o111))
		require.NoError(t, os.Remove(dir+"/closed"))
	})
	e := &exerciser{t: t, rnd: rand.New(rand.NewPCG(1, 1)), path: dir + "/f", maps: os.Getenv(mapsEnv) == "true"}
	e.run(1000)
	require.NoError(t, os.WriteFile(dir+"/want", e.want, 0o644))
}

// TestPosixUsers runs go-fuse's suite and TestExercise's operations in views of an ordinary user, in whose sandbox alone they are mounted.
func TestPosixUsers(t *testing.T) {
	for _, keys := range []string{"changes: direct", "changes: kept", "changes: held", "changes: held, data: mediated"} {
		t.Run(keys, func(t *testing.T) {
			h := harness.Embed(t, 1234, map[string]string{"u": "view: {xattrs: true, " + keys + "}"})
			harness.TestBinary(t, h.Host)
			require.NoError(t, os.Rename(h.Base+"/test-program", h.Scope("u", "test-program")))
			harness.Plant(t, h.Scope("u"), "f=") // the first change copies it up
			require.NoError(t, os.Chown(h.Scope("u", "f"), 1234, 1234))
			mappable := !strings.Contains(keys, "mediated") || harness.ThisKernel(t).MapsDirect
			o := h.Run("-e", insideEnv+"=/workspace", "-e", fmt.Sprint(mapsEnv, "=", mappable), "u", "--", "/workspace/test-program", "-test.run=^TestPosixInside$")
			require.Zero(t, o.Code, "%s%s", o.Stdout, o.Stderr)
			if strings.Contains(keys, "held") {
				assert.NoFileExists(t, h.Scope("u", "want"), "the directory has changed")
				o := harness.Finish(t, h.Command("commit", "u"))
				require.Zero(t, o.Code, "%s%s", o.Stdout, o.Stderr)
			}
			want, err := os.ReadFile(h.Scope("u", "want"))
			require.NoError(t, err)
			got, err := os.ReadFile(h.Scope("u", "f"))
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want, got), "the file below differs")
			assert.NotEmpty(t, want)
		})
	}
}
