package daemon

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/integration/harness"
)

func init() {
	// Connections that never send a request, until the input ends: how many stayed open?
	harness.Roles["crowd"] = func(args []string) error {
		count, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		var conns []net.Conn
		for i := range count {
			conn, err := net.Dial("unix", args[0])
			if err != nil {
				return err
			}
			fmt.Fprint(conn, []string{"", "GET /v1/ag", "POST /v1/agents/a/run HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"}[i%3])
			conns = append(conns, conn)
		}
		// The daemon waits 10 s for a header. Until then it closes none that it has admitted.
		most, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		sweep := func() {
			conns = slices.DeleteFunc(conns, func(conn net.Conn) bool {
				_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
				_, err := conn.Read(make([]byte, 1))
				return err != nil && !os.IsTimeout(err)
			})
		}
		for end := time.Now().Add(8 * time.Second); len(conns) > most && time.Now().Before(end); {
			sweep()
		}
		sweep()
		fmt.Println(len(conns))
		_, err = os.Stdin.Read(make([]byte, 1))
		return err
	}
	// Descriptors with every piece of a request, some of them halves of themselves.
	harness.Roles["gifts"] = func(args []string) error {
		for range 50 {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: args[0], Net: "unix"})
			if err != nil {
				return err
			}
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			null, err := os.Open("/dev/null")
			if err != nil {
				return err
			}
			rights := unix.UnixRights(pair[0], pair[1], int(null.Fd()))
			for _, piece := range []string{"GET /v1/agents HT", "TP/1.1\r\nHost: x\r\n", "\r\n"} {
				if _, _, err := conn.WriteMsgUnix([]byte(piece), rights, nil); err != nil {
					return err
				}
			}
			line := make([]byte, 15)
			if _, err := conn.Read(line); err != nil || string(line) != "HTTP/1.1 200 OK" {
				return fmt.Errorf("%q, %v", line, err)
			}
			conn.Close()
			unix.Close(pair[0])
			unix.Close(pair[1])
			null.Close()
		}
		return nil
	}
}

const alice, bob, carol = 1234, 4321, 5555 // carol has no agent

// own makes a scope a user's.
func own(t *testing.T, h *harness.Host, id string, uid int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(h.Scope(id), 0o755))
	require.NoError(t, os.Chown(h.Scope(id), uid, uid))
}

// usersHost has an agent of alice's, one of bob's and one of root's.
func usersHost(t *testing.T) *harness.Host {
	h := harness.LayOut(t, map[string]string{"a": "", "b": "user: 4321", "c": ""})
	own(t, h, "a", alice)
	own(t, h, "b", bob)
	h.Start()
	return h
}

// by runs the command line as a user of the host.
func by(h *harness.Host, uid uint32, args ...string) harness.Outcome {
	h.T.Helper()
	cmd := exec.Command(harness.Program, append([]string{"--base", h.Base}, args...)...)
	as(cmd, uid)
	return harness.Finish(h.T, cmd)
}

// userSocket is the control socket of a user.
func userSocket(h *harness.Host, uid int) string {
	return filepath.Join(h.Base, "run", "users", strconv.Itoa(uid)+".sock")
}

// TestUsers: the user of an agent lists it, runs it and calls its tools. An agent of
// another's is as one that does not exist, and what the operator decides is refused.
func TestUsers(t *testing.T) {
	h := usersHost(t)
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(userSocket(h, alice), &st))
	assert.EqualValues(t, []uint32{alice, 0o600}, []uint32{st.Uid, st.Mode & 0o777})
	assert.NoFileExists(t, userSocket(h, 0), "root has the operator's")

	o := by(h, alice, "ps")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Regexp(t, `(?m)^a +mounted`, o.Stdout)
	assert.NotRegexp(t, `(?m)^[bc]`, o.Stdout)
	o = by(h, alice, "run", "a", "--", "sh", "-c", "echo hi; touch mine; exit 3")
	assert.Equal(t, harness.Outcome{Code: 3, Stdout: "hi\n"}, o)
	require.NoError(t, syscall.Stat(h.Scope("a", "mine"), &st))
	assert.EqualValues(t, alice, st.Uid)
	uid := uint32(alice)
	assert.True(t, h.Recorded("a", audit.Event{Op: "exec", Outcome: "exit 3", UID: &uid}), "the log has who ran it")
	assert.Contains(t, by(h, alice, "call", "list_dir", "path=.", "--agent", "a").Stdout, "mine")

	var answers []harness.Outcome
	for _, id := range []string{"b", "c", "nobody"} {
		o := by(h, alice, "run", id, "--", "true")
		assert.Equal(t, 125, o.Code)
		answers = append(answers, o)
	}
	assert.Equal(t, answers[2], answers[0], "another's agent is unknown")
	assert.Equal(t, answers[2], answers[1])
	for _, words := range [][]string{{"reload"}, {"up", "a"}, {"down", "a"}, {"approvals"}, {"approvals", "approve", "x"}, {"token", "a"}, {"stores"}} {
		o := by(h, alice, words...)
		assert.Equal(t, 1, o.Code, words)
		assert.Equal(t, "scopefs: only root and the daemon's user may; the user of an agent may list and run it, and read its denials\n", o.Stderr, words)
	}
	assert.Contains(t, by(h, carol, "ps").Stderr, "permission denied")

	// What the operator took down stays down.
	h.Must("down", "a")
	o = by(h, alice, "run", "a", "--", "true")
	assert.Equal(t, 125, o.Code)
	assert.Contains(t, o.Stderr, "the operator has taken it down")
	assert.Regexp(t, `(?m)^a +down`, by(h, alice, "ps").Stdout)

	// A definition that does not load says nothing of the host.
	h.Define("a", "tools: {nonsense: "+h.Base+"}")
	h.Try("reload")
	o = by(h, alice, "ps")
	assert.NotContains(t, o.Stdout, "nonsense")
	assert.NotContains(t, o.Stdout, "agents.d")

	// A daemon that was killed leaves sockets; the next one has its own.
	h.Kill()
	assert.Contains(t, by(h, bob, "ps").Stderr, "no daemon is running")
	h.Start()
	assert.Regexp(t, `(?m)^b +mounted`, by(h, bob, "ps").Stdout)
	h.Stop()
	assert.NoFileExists(t, userSocket(h, bob))
}

// TestUsersDenials: the user of an agent reads its denials, and nothing else of the log: no other event, no other agent's.
func TestUsersDenials(t *testing.T) {
	rules := "view: {paths: {secret: seal}}"
	h := harness.LayOut(t, map[string]string{"a": rules, "b": rules + "\nuser: \"4321\""})
	own(t, h, "a", alice)
	own(t, h, "b", bob)
	harness.Plant(t, h.Scope("a"), "secret=1\n")
	harness.Plant(t, h.Scope("b"), "secret=1\n")
	h.Start()
	for id, uid := range map[string]uint32{"a": alice, "b": bob} {
		o := by(h, uid, "run", id, "--", "sh", "-c", "echo >allowed; cat secret")
		require.Contains(t, o.Stderr, "Permission denied")
	}
	o := by(h, alice, "audit", "--denied", "--json")
	assert.Zero(t, o.Code, o.Stderr)
	assert.Contains(t, o.Stdout, `"path":"secret"`)
	for line := range strings.Lines(o.Stdout) {
		assert.Contains(t, line, `"agent":"a"`)
		assert.Regexp(t, `"verdict":"(deny|violation)"`, line)
	}
	assert.Contains(t, by(h, bob, "audit", "--denied", "--agent", "b").Stdout, "secret")
	for _, words := range [][]string{{"audit"}, {"audit", "--agent", "a"}, {"audit", "--denied", "--agent", "b"}, {"audit", "--denied", "--tree"}, {"why", "1"}} {
		o = by(h, alice, words...)
		assert.NotZero(t, o.Code, words)
		assert.Empty(t, o.Stdout, words)
	}
	assert.Contains(t, by(h, alice, "audit").Stderr, "scopefs audit --denied")
	assert.NotZero(t, by(h, carol, "audit", "--denied").Code)
	ask := harness.Role("ask", userSocket(h, alice), "GET", "/v1/events?agent=a")
	as(ask, alice)
	assert.NotContains(t, harness.Finish(t, ask).Stdout, `\"allow\"`, "the daemon selects, not the command")
}

// TestUsersPeer: the daemon asks the kernel who the other end is, also where the modes of
// the socket are open and the other end is alice, or root, in a user namespace of its own.
func TestUsersPeer(t *testing.T) {
	h := usersHost(t)
	client := harness.TestBinary(t, h)
	require.NoError(t, os.Chmod(userSocket(h, alice), 0o666))
	asks := func(uid uint32, wrap ...string) string {
		cmd := harness.Role("ask", userSocket(h, alice), "GET", "/v1/agents")
		cmd.Path = client
		if len(wrap) > 0 {
			cmd.Path, cmd.Args = "/usr/bin/unshare", append(append(wrap, client), cmd.Args[1:]...)
		}
		as(cmd, uid)
		cmd.Stderr = nil
		o := harness.Finish(t, cmd)
		return o.Stdout + o.Stderr
	}
	assert.Contains(t, asks(alice), `200 [{"agent":"a"`)
	assert.Contains(t, asks(alice, "unshare", "-Ur"), `200 [{"agent":"a"`)
	for _, uid := range []uint32{bob, carol} {
		assert.Contains(t, asks(uid), "403 ")
		assert.Contains(t, asks(uid, "unshare", "-Ur"), "403 ")
		assert.Contains(t, asks(uid, "unshare", "--map-user="+strconv.Itoa(alice)), "403 ")
	}
}

// TestUsersReload: while the operator gives an agent to another user and back, each command
// runs as the user who asked for it, or not at all.
func TestUsersReload(t *testing.T) {
	h := harness.LayOut(t, map[string]string{"a": "user: 1234", "b": "user: 4321"})
	own(t, h, "b", bob)
	own(t, h, "a", alice)
	require.NoError(t, os.Chmod(h.Scope("a"), 0o777))
	h.Start()
	var users sync.WaitGroup
	stop := make(chan struct{})
	ran := map[int]int{}
	var mu sync.Mutex
	for _, uid := range []int{alice, bob} {
		users.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprintf("by-%d-%d", uid, i)
				if o := by(h, uint32(uid), "run", "a", "--", "touch", name); o.Code == 0 {
					mu.Lock()
					ran[uid]++
					mu.Unlock()
				}
			}
		})
	}
	runs := func(uid int) int {
		mu.Lock()
		defer mu.Unlock()
		return ran[uid]
	}
	for round := range 12 {
		uid := []int{bob, alice}[round%2]
		h.Define("a", "user: "+strconv.Itoa(uid))
		h.Try("reload")
		if round%3 == 0 { // the view that is mounted stays the last user's
			continue
		}
		h.Try("down", "a")
		h.Try("up", "a")
		before := runs(uid)
		h.Eventually(fmt.Sprintf("%d runs commands by these rules", uid), func() bool { return runs(uid) > before })
	}
	close(stop)
	users.Wait()
	found, err := filepath.Glob(h.Scope("a", "by-*"))
	require.NoError(t, err)
	assert.NotEmpty(t, found)
	for _, name := range found {
		var st syscall.Stat_t
		require.NoError(t, syscall.Stat(name, &st))
		assert.Equal(t, strings.Split(filepath.Base(name), "-")[1], fmt.Sprint(st.Uid), "%s", name)
	}
}

// TestUsersFlood: a user who opens connections by the hundred keeps nobody else from the
// daemon. Descriptors that come with a request stay nowhere.
func TestUsersFlood(t *testing.T) {
	h := usersHost(t)
	client := harness.TestBinary(t, h)
	descriptors := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.Cmd.Process.Pid))
		require.NoError(t, err)
		return len(all)
	}
	assert.Zero(t, by(h, alice, "run", "a", "--", "true").Code)
	before := descriptors()
	crowd := harness.Role("crowd", userSocket(h, alice), "300", "64")
	crowd.Path = client
	as(crowd, alice)
	in, err := crowd.StdinPipe()
	require.NoError(t, err)
	next := harness.Stream(t, crowd)
	assert.Equal(t, "64", next(), "connections that stay open")
	assert.Less(t, descriptors(), before+64+30)
	assert.Zero(t, by(h, bob, "run", "b", "--", "true").Code, "another user")
	h.Must("run", "a", "--", "true") // the operator, as the same agent
	in.Close()
	h.Eventually("there is room again", func() bool { return by(h, alice, "ps").Code == 0 })

	for name, body := range map[string]string{"large": `{"argv":["` + strings.Repeat("x", 1<<20) + `"]}`, "not JSON": "argv", "unknown": `{"at":"/"}`} {
		status, answer, err := ask(userSocket(h, alice), "POST", "/v1/agents/a/run", body)
		require.NoError(t, err)
		assert.Equal(t, 400, status, name)
		assert.Contains(t, answer, `"kind":"invalid"`, name)
	}
	gifts := harness.Role("gifts", userSocket(h, alice))
	gifts.Path = client
	as(gifts, alice)
	o := harness.Finish(t, gifts)
	assert.Zero(t, o.Code, o.Stderr)
	h.Eventually("no descriptor is left", func() bool { return descriptors() <= before+5 })
}
