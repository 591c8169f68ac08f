package view

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/fs/fusemount"
	"github.com/scopefs/scopefs/integration/harness"
)

// flooders is how many threads wait at once in TestBusyView: fewer than the view
// has readers.
const flooders = 200

func init() {
	// flood NAME: each thread looks up a name of its own, NAME and a number, without
	// end: the kernel sends one lookup of a name at a time. It prints how long each
	// lookup of one thread took, in milliseconds.
	harness.Roles["flood"] = func(args []string) error {
		for i := range flooders - 1 {
			go func() {
				for {
					_ = unix.Stat(fmt.Sprint(args[0], i+1), &unix.Stat_t{})
				}
			}()
		}
		for {
			began := time.Now()
			_ = unix.Stat(args[0]+"0", &unix.Stat_t{})
			fmt.Println(time.Since(began).Milliseconds())
		}
	}
	// deny DIR OPERATION...: a thread for each does that operation of harness.Ops in the directory without end.
	harness.Roles["deny"] = func(args []string) error {
		if err := os.Chdir(args[0]); err != nil {
			return err
		}
		var threads sync.WaitGroup
		for _, op := range args[1:] {
			threads.Go(func() {
				for {
					_ = harness.DoOp(op)
				}
			})
		}
		threads.Wait()
		return nil
	}
}

// TestBusyView: requests that wait, here because the daemon throttles the record
// of what they are denied, do not delay other requests.
func TestBusyView(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"a": "view: {paths: {\"secret*\": hide}}"})
	for i := range flooders {
		harness.Plant(t, h.Scope("a"), fmt.Sprint("secret", i))
	}
	began := time.Now()
	line := harness.Stream(t, harness.Role("flood", h.View("a", "secret")))
	const throttled = 300 // milliseconds; the denials under way are earned in about 900
	denial := func() int {
		ms, err := strconv.Atoi(line())
		require.NoError(t, err)
		return ms
	}
	h.Eventually("denials wait", func() bool { return denial() > throttled })
	// Where the processors are busy, everything waits for them and not for the throttle: then once more.
	var took []time.Duration
	n, waits := 0, 0
	h.Eventually("half of the requests take less than half of what a denial waits", func() bool {
		took = nil
		for range 50 {
			n++
			began := time.Now()
			require.Equal(t, unix.ENOENT, unix.Stat(h.View("a", fmt.Sprint("absent", n)), &unix.Stat_t{}))
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		h.Eventually("denials still wait", func() bool { waits = denial(); return waits > throttled })
		return took[len(took)/2] < time.Duration(waits)*time.Millisecond/2
	})

	// They waited for the throttle: 256 KiB at once and 64 KiB a second, of lines of more than 256 bytes.
	recorded := 0
	for _, e := range h.Events("a") {
		if e.Verdict == audit.Deny {
			recorded++
		}
	}
	assert.Less(t, recorded, int(1024+256*time.Since(began).Seconds()), "denials in %v", time.Since(began))
}

// denials are operations that the view of TestBusyViewDenials denies, and their errors. Each is in a directory of its own:
// the kernel holds a lock of the directory while it waits for the answer.
var denials = map[string]string{
	"stat hidden":                    "ENOENT",
	"write ro1/f":                    "EACCES",
	"o-trunc ro2/f":                  "EACCES",
	"create ro3/x":                   "EACCES",
	"mkdir ro4/x":                    "EACCES",
	"fifo ro5/x":                     "EACCES",
	"symlink f ro6/x":                "EACCES",
	"link w1/f ro7/x":                "EACCES",
	"unlink ro8/f":                   "EACCES",
	"rmdir ro9/d":                    "EACCES",
	"rename ro10/f ro10/x":           "EACCES",
	"rename w2/f ro11/x":             "EACCES", // the only one across directories: the kernel does one at a time
	"chmod ro12/f":                   "EACCES",
	"chown ro13/f":                   "EACCES",
	"utimes ro14/f":                  "EACCES",
	"trunc ro15/f":                   "EACCES",
	"setxattr ro16/f":                "EACCES",
	"setattr w3/f trusted.x":         "EPERM",
	"ioctl w4/f 0x40046602":          "ENOTTY", // FS_IOC32_SETFLAGS: the kernel does not know it
	"symlink ../../outside w5/l":     "EACCES",
	"readlink w6/l":                  "EACCES",
	"symlink .git/hooks/commit w7/l": "EACCES", // the host's git executes it: these links are judged when made or moved
	"link w8/l w8/m":                 "EACCES",
	"rename w9/l w9/m":               "EACCES",
	"xchg w10/l w10/f":               "EACCES",
	"rename w11/.git/config.lock w11/.git/config": "EACCES", // judged by its content
	"rename w12/.git/index.lock w12/.git/index":   "EACCES",
	"xchg w13/.git/config.lock w13/.git/config":   "EACCES",
	"write w15/.git/config":                       "EACCES", // at close(2)
	"trunc w14/.git/config":                       "EACCES",
}

// TestBusyViewDenials: an agent whose denials of every kind wait for its part of the log delays neither another agent with
// the same directory nor its own other requests.
func TestBusyViewDenials(t *testing.T) {
	dir := project(t)
	harness.Plant(t, dir, "hidden", "a/", "b/", "flood/f",
		"w6/l => /etc/passwd", "w8/l => .git/hooks/commit", "w9/l => .git/hooks/commit", "w10/l => .git/hooks/commit",
		"w11/.git/config.lock=[core]\n\tfsmonitor = evil", "w12/.git/index.lock", "w13/.git/config.lock", "w13/.git/config=", "w14/.git/config=", "w15/.git/config=")
	for i := range 17 {
		harness.Plant(t, dir, fmt.Sprintf("ro%d/f", i), fmt.Sprintf("ro%d/d/", i), fmt.Sprintf("w%d/f", i))
	}
	h := harness.LayOut(t, nil)
	for _, id := range []string{"a", "b"} {
		h.Define(id, "dir: "+dir+"\nprotect: [\"*\"]\nview: {xattrs: true, paths: {hidden: hide, \"ro*/**\": read, \"flood/**\": read}}")
	}
	h.Put("scopefs.yaml", "log: {agent_day: 1MiB}\n")
	h.Start()
	ops := slices.Sorted(maps.Keys(denials))
	for i, errno := range harness.HostOps(t, h.View("a"), ops...) {
		assert.Equal(t, denials[ops[i]], errno, ops[i])
	}
	denied := 0
	for _, e := range h.Events("a") {
		if e.Event == audit.KindFile && e.Verdict != audit.Allow {
			denied++
		}
	}
	require.GreaterOrEqual(t, denied, len(ops), "each is recorded")

	var root unix.Stat_t
	require.NoError(t, unix.Stat(h.View("a"), &root))
	fusectl := fusemount.OpenControl()
	defer fusectl.Close()
	conn := fusectl.Connection(unix.Minor(root.Dev), h.View("a"))
	defer conn.Close()
	waiting := func() int { // requests in flight
		n, err := conn.Waiting()
		require.NoError(t, err)
		return n
	}
	deny := func(ops ...string) {
		cmd := harness.Role("deny", append([]string{h.View("a")}, ops...)...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			h.Stop() // the kernel waits for the answers
			_ = cmd.Wait()
		})
	}
	deny("mkdir flood/" + strings.Repeat("x", 200))
	h.Eventually("the budget is used up", func() bool {
		return h.Recorded("a", audit.Event{Event: audit.KindAgent, Outcome: "log budget used up"})
	})
	deny(ops...)
	h.Eventually("all denials wait", func() bool { return waiting() > len(ops) })

	work := func(dir string) (lines []string) {
		for i := range 20 {
			for _, op := range []string{"mkdir %d", "create %d/f", "write %d/f", "rename %d/f %d/g", "link %d/g %d/h", "symlink g %d/l", "readlink %d/l",
				"rename %d/l %d/m", "chmod %d/g", "trunc %d/g", "setxattr %d/g", "list %d g", "unlink %d/g", "unlink %d/h", "unlink %d/m", "rmdir %d"} {
				lines = append(lines, strings.ReplaceAll(op, "%d", fmt.Sprint(dir, i)))
			}
		}
		return lines
	}
	for id, lines := range map[string][]string{"a": work("a/"), "b": append(work("b/"), "mkdir ro0/x", "rename w9/l w9/m")} {
		ended := make(chan []string)
		go func() { ended <- harness.HostOps(t, h.View(id), lines...) }()
		var errnos []string
		h.Eventually("requests of "+id+" end", func() bool {
			select {
			case errnos = <-ended:
				return true
			default:
				return false
			}
		})
		for i, errno := range errnos {
			want := "ok"
			if strings.HasSuffix(lines[i], " ro0/x") || strings.HasSuffix(lines[i], " w9/m") {
				want = "EACCES"
			}
			assert.Equal(t, want, errno, "%s: %s", id, lines[i])
		}
	}
	assert.Greater(t, waiting(), len(ops), "the denials still wait")
}
