package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
)

// raced is what a racing process did: how often each operation succeeded
// ("open") or failed ("open EACCES"), and what it saw that was not the agent's.
type raced struct {
	mu     sync.Mutex
	Ops    map[string]int
	Leaked map[string]int
}

func (r *raced) did(op string, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		op += " " + harness.ErrnoOf(err)
	}
	r.Ops[op]++
	return err == nil
}

func (r *raced) leaked(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Leaked[what]++
}

// race runs do in n threads until the time in args[1] is over, and prints what
// came of it. args[0] is where.
func race(n int, do func(r *raced, dir string, i, round int)) func([]string) error {
	return func(args []string) error {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		r := &raced{Ops: map[string]int{}, Leaked: map[string]int{}}
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for i := range n {
			wg.Go(func() {
				for round := 0; time.Now().Before(end); round++ {
					do(r, args[0], i, round)
				}
			})
		}
		wg.Wait()
		return json.NewEncoder(os.Stdout).Encode(r)
	}
}

const foreignSize = 77777

// raceDirs are two directories of the scope, and the links that each is
// exchanged with. None is reached through another.
var raceDirs = []string{"d", "e/deep", "l", "l2"}

func init() {
	harness.Roles["race-exchange"] = race(2, func(r *raced, dir string, i, _ int) {
		r.did("exchange", harness.Exchange([]string{filepath.Join(dir, raceDirs[i]), filepath.Join(dir, raceDirs[i+2])}))
		time.Sleep(20 * time.Microsecond) // or the exchange is all that happens
	})
	harness.Roles["race-read"] = race(16, raceRead)
	harness.Roles["race-write"] = race(4, raceWrite)
	harness.Roles["race-node"] = race(1, func(r *raced, dir string, _, _ int) {
		r.did("exchange", harness.Exchange([]string{nodeName(dir, rand.IntN(nodeNames)), nodeName(dir, rand.IntN(nodeNames))}))
		time.Sleep(20 * time.Microsecond)
	})
	harness.Roles["race-open"] = race(8, raceOpen)
}

func raceRead(r *raced, dir string, i, round int) {
	at := dir + "/" + raceDirs[(i+round)%4]
	file := at + "/f"
	buf := make([]byte, 64)
	switch i % 5 {
	case 0:
		var st unix.Stat_t
		if r.did("stat", unix.Stat(file, &st)) && st.Size == foreignSize {
			r.leaked("size")
		}
	case 1:
		if fd, err := unix.Open(file, unix.O_RDONLY, 0); r.did("open", err) {
			n, err := unix.Read(fd, buf)
			if r.did("read", err) && foreign(buf[:n]) {
				r.leaked("content")
			}
			unix.Close(fd)
		}
	case 2:
		entries, err := os.ReadDir(at)
		r.did("readdir", err)
		for _, e := range entries {
			if foreign([]byte(e.Name())) {
				r.leaked("name")
			}
			if info, err := e.Info(); err == nil && info.Size() == foreignSize {
				r.leaked("size of an entry")
			}
		}
	case 3:
		for _, link := range []string{at, at + "/link"} {
			text, err := os.Readlink(link)
			if r.did("readlink", err) && foreign([]byte(text)) {
				r.leaked("link")
			}
		}
	case 4:
		n, err := unix.Getxattr(file, "user.mark", buf)
		if r.did("getxattr", err) && foreign(buf[:n]) {
			r.leaked("attribute")
		}
	}
}

func raceWrite(r *raced, dir string, i, round int) {
	at := dir + "/" + raceDirs[(i+round)%4]
	name := fmt.Sprintf("%s/w%d-%d", at, i, round%8)
	for what, err := range map[string]error{
		"write":     os.WriteFile(name, []byte("written"), 0o644),
		"overwrite": harness.Opened(at+"/f", unix.O_WRONLY, harness.Overwrite),
		"mkdir":     unix.Mkdir(name+"d", 0o755),
		"symlink":   unix.Symlink("f", name+"l"),
		"truncate":  unix.Truncate(at+"/f", 10),
		"chmod":     unix.Chmod(at+"/f", uint32(0o600+round%2*0o44)),
		"utimes":    unix.Utimes(at+"/f", make([]unix.Timeval, 2)),
		"setxattr":  unix.Setxattr(at+"/f", "user.w", []byte("w"), 0),
		"link":      unix.Link(at+"/f", name+"h"),
		"rename":    unix.Rename(name, name+"r"),
		"unlink":    unix.Unlink(name + "r"),
		"unlink h":  unix.Unlink(name + "h"),
		"unlink l":  unix.Unlink(name + "l"),
		"rmdir":     unix.Rmdir(name + "d"),
	} {
		r.did(what, err)
	}
}

// TestAttackRace exchanges directories of the scope with links that lead out,
// while clients read and write through the view.
func TestAttackRace(t *testing.T) {
	for _, front := range []string{"view: {xattrs: true}", "view: {data: mediated, xattrs: true}", "identity: caller"} {
		t.Run(front, func(t *testing.T) {
			h := attackHost(t, map[string]string{"race": front})
			out := filepath.Join(h.Base, "FOREIGN")
			for _, dir := range []string{out, out + "/deep"} {
				harness.Plant(t, dir, "FOREIGN-name", "f="+strings.Repeat("FOREIGN", foreignSize)[:foreignSize], "link => FOREIGN-link")
				require.NoError(t, unix.Setxattr(dir+"/f", "user.mark", []byte("FOREIGN"), 0))
			}
			for _, dir := range raceDirs[:2] {
				harness.Plant(t, h.Scope("race", dir), "f=inside", "link => f")
				require.NoError(t, unix.Setxattr(h.Scope("race", dir, "f"), "user.mark", []byte("inside"), 0))
			}
			harness.Plant(t, h.Scope("race"), "l => "+out, "l2 => ../../FOREIGN/deep")
			h.Start()
			before := harness.Picture(t, out)
			d := attackTime(t)
			// On a busy machine the few operations of one round may all lose the race.
			ops := []string{"exchange", "stat", "read", "readdir", "readlink", "getxattr", "write", "mkdir", "symlink", "truncate", "chmod"}
			total := runRace(t, d, map[string]string{
				"race-exchange": h.Scope("race"), "race-read": h.View("race"), "race-write": h.View("race"),
			}, func(done map[string]int) bool {
				return !slices.ContainsFunc(ops, func(op string) bool { return done[op] == 0 })
			})
			assert.Empty(t, total.Leaked)
			assert.Equal(t, before, harness.Picture(t, out), "the foreign directory changed")
			for _, op := range ops {
				assert.Positive(t, total.Ops[op], "%s never ran: this was no race", op)
			}
			assert.Equal(t, []string{"ok"}, harness.HostOps(t, h.View("race"), "list . d"))
		})
	}
}

// raceRounds bounds how often runRace runs its roles.
const raceRounds = 10

// runRace runs roles at the same time, each round for d, until enough was done. It
// adds up what they did.
func runRace(t *testing.T, d time.Duration, where map[string]string, enough func(ops map[string]int) bool) *raced {
	t.Helper()
	total := &raced{Ops: map[string]int{}, Leaked: map[string]int{}}
	for round := 0; round < raceRounds && !t.Failed() && (round == 0 || !enough(total.Ops)); round++ {
		var wg sync.WaitGroup
		for role, dir := range where {
			wg.Go(func() {
				out, err := harness.Role(role, dir, d.String()).Output()
				var r raced
				if err = errors.Join(err, json.Unmarshal(out, &r)); !assert.NoError(t, err, role) {
					return
				}
				total.mu.Lock()
				defer total.mu.Unlock()
				for k, n := range r.Ops {
					total.Ops[k] += n
				}
				for k, n := range r.Leaked {
					total.Leaked[k] += n
				}
			})
		}
		wg.Wait()
		t.Logf("round %d of %v: %v", round+1, d, total.Ops)
	}
	return total
}

// nodeNames is how many names the kernel may have looked up at a time: it looks
// again when one is a second old, and that is when a race can be lost.
const nodeNames = 800

func nodeName(dir string, i int) string { return fmt.Sprintf("%s/x%d", dir, i) }

func raceOpen(r *raced, dir string, i, _ int) {
	flags := []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDONLY | unix.O_TRUNC}[i%4]
	began := time.Now()
	fd, err := unix.Open(nodeName(dir, rand.IntN(nodeNames)), flags, 0)
	if time.Since(began) > 20*time.Second {
		r.leaked("a hang")
	}
	if !r.did("open", err) {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		r.did("fifo", nil)
		return
	}
	if flags == unix.O_WRONLY {
		return // writing after O_TRUNC would wait for the disk: ext4(5), auto_da_alloc
	}
	buf := make([]byte, 64)
	n, err := unix.Read(fd, buf)
	if r.did("read", err) && n > 0 && !strings.HasPrefix(string(buf[:n]), "inside") {
		r.leaked(fmt.Sprintf("%q", buf[:n]))
	}
}

// TestAttackOpenRace exchanges a file with a FIFO, a device and a link while it
// is being opened: no hang, no device, nothing foreign.
func TestAttackOpenRace(t *testing.T) {
	h := attackHost(t, map[string]string{"open": ""})
	out := filepath.Join(h.Base, "FOREIGN")
	harness.Plant(t, h.Base, "FOREIGN=FOREIGN")
	harness.Plant(t, h.Scope("open"), "keep/")
	fifo := h.Scope("open", "keep/fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o666))
	for i := range nodeNames {
		at := nodeName(h.Scope("open"), i)
		require.NoError(t, []func() error{
			func() error { return os.Symlink(out, at) },
			func() error { return os.Link(fifo, at) },
			func() error { return unix.Mknod(at, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))) },
		}[i%3](), at)
		if i%2 == 0 {
			require.NoError(t, os.Remove(at))
			require.NoError(t, os.WriteFile(at, []byte("inside"), 0o644))
		}
	}
	h.Start()
	// The FIFO has both ends in the view, so that no client waits there. Below
	// it has none: a view that opened it would.
	keep, err := os.OpenFile(h.View("open", "keep/fifo"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer keep.Close()
	before := harness.Picture(t, out)
	total := runRace(t, attackTime(t), map[string]string{"race-node": h.Scope("open"), "race-open": h.View("open")},
		func(done map[string]int) bool {
			return done["read"] > 10 && done["fifo"] > 0 && done["open EACCES"] > 10
		})
	assert.Empty(t, total.Leaked)
	assert.Equal(t, before, harness.Picture(t, out))
	assert.Greater(t, total.Ops["read"], 10)
	assert.Greater(t, total.Ops["fifo"], 0, "the exchange was never met")
	assert.Greater(t, total.Ops["open EACCES"], 10, "neither was the device")
}

// attackTime is how long a race runs: 3 s, or SCOPEFS_ATTACK_SECONDS.
func attackTime(t *testing.T) time.Duration {
	t.Helper()
	seconds := 3
	if s := os.Getenv("SCOPEFS_ATTACK_SECONDS"); s != "" {
		var err error
		seconds, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return time.Duration(seconds) * time.Second
}

// attackHost is newHost with time for a race.
func attackHost(t *testing.T, agents map[string]string) *harness.Host {
	t.Helper()
	h := harness.LayOut(t, agents)
	h.Timeout += 4 * attackTime(t)
	return h
}

// foreign reports whether what was read is somebody else's.
func foreign(b []byte) bool { return bytes.Contains(b, []byte("FOREIGN")) }
