package console

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

func init() {
	harness.Roles["break-in"] = breakIn
	harness.Roles["take-port"] = takePort
}

// breakIn tries as another user of the host to get at a console. Its arguments are a port, sockets, and processes. It writes
// what it was given.
func breakIn(args []string) error {
	port, sockets, pids := args[0], strings.Split(args[1], ","), args[2:]
	for _, request := range []string{"GET / HTTP/1.1", "GET /enter/x HTTP/1.1", "POST /enter HTTP/1.1\r\nContent-Length: 0", "GET /v1/agents HTTP/1.1"} {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "%s\r\nHost: 127.0.0.1:%s\r\nOrigin: http://127.0.0.1:%s\r\n\r\n", request, port, port)
		text, _ := io.ReadAll(conn)
		fmt.Printf("answer %s\n", text)
		conn.Close()
	}
	for _, socket := range sockets {
		if conn, err := net.Dial("unix", socket); err == nil {
			fmt.Println("connected", socket)
			conn.Close()
		}
	}
	for _, pid := range pids {
		for _, name := range []string{"cmdline", "environ", "maps", "mem", "stack", "fd/0", "fd/1", "fd/3"} {
			if text, err := os.ReadFile(filepath.Join("/proc", pid, name)); err == nil {
				fmt.Printf("read %s %q\n", name, text)
			}
		}
		n, _ := strconv.Atoi(pid)
		if unix.PtraceAttach(n) == nil {
			fmt.Println("traced", pid)
		}
		if fd, err := unix.PidfdOpen(n, 0); err == nil {
			for i := range 16 {
				if _, err := unix.PidfdGetfd(fd, i, 0); err == nil {
					fmt.Println("took descriptor", i)
				}
			}
		}
	}
	return nil
}

// console returns the process that serves the page.
func (s *served) console() string {
	s.t.Helper()
	pid := strconv.Itoa(s.cmd.Process.Pid)
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*/children")
	require.NoError(s.t, err)
	var all []string
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		all = append(all, strings.Fields(string(text))...)
	}
	require.Len(s.t, all, 1)
	return all[0]
}

// takePort tries to listen at a port of the host as often as it can. It writes that it has begun, and what it was given.
func takePort(args []string) error {
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	all := []struct {
		family int
		at     unix.Sockaddr
	}{
		{unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}}, {unix.AF_INET, &unix.SockaddrInet4{Port: port}},
		{unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}}, {unix.AF_INET6, &unix.SockaddrInet6{Port: port}},
	}
	for n := 0; ; n++ {
		if n == 1000 {
			fmt.Println("tries")
		}
		for _, one := range all {
			fd, err := unix.Socket(one.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if n%2 == 1 {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
			if unix.Bind(fd, one.at) == nil && unix.Listen(fd, 1) == nil {
				fmt.Printf("listened at %+v in round %d\n", one.at, n)
				return nil
			}
			unix.Close(fd)
		}
	}
}

// pageOf returns the process that serves the page of a host's daemon; "": none runs.
func pageOf(h *harness.Host) string {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", h.Cmd.Process.Pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for _, pid := range strings.Fields(string(text)) {
			if exe, _ := os.Readlink("/proc/" + pid + "/exe"); filepath.Base(exe) == "scopefs-console" {
				return pid
			}
		}
	}
	return ""
}

// TestPortKept: while the process that serves the page is killed and started again, no other user of the host gets its port.
// That user would get the pages that are open, and what the browser keeps for their origin.
func TestPortKept(t *testing.T) {
	if os.Getuid() != 0 {
		need.Skip(t, "needs root, to become an agent's user")
	}
	h := harness.LayOut(t, map[string]string{"bob": ""})
	h.Start("--console", "127.0.0.1:0")
	s := &served{t: t, h: h, link: strings.TrimSpace(h.Must("console"))}
	at := strings.SplitN(strings.TrimPrefix(s.link, "http://"), "/", 2)[0]
	_, port, _ := strings.Cut(at, ":")
	attacker := h.RoleAs(4321, "/", "take-port", port)
	next := harness.Stream(t, attacker)
	assert.Equal(t, "tries", next())
	for range 5 {
		pid := pageOf(h)
		n, err := strconv.Atoi(pid)
		require.NoError(t, err)
		require.NoError(t, unix.Kill(n, unix.SIGKILL))
		h.Eventually("the page is served again", func() bool { now := pageOf(h); return now != "" && now != pid })
		r, err := http.NewRequest(http.MethodGet, "http://"+at+"/", nil)
		require.NoError(t, err)
		text, err := io.ReadAll(send(t, r).Body)
		require.NoError(t, err)
		assert.Contains(t, string(text), "open the link that scopefs console prints")
	}
	assert.Equal(t, at, strings.SplitN(strings.TrimPrefix(h.Must("console"), "http://"), "/", 2)[0])
	require.NoError(t, attacker.Process.Kill())
	ended, err := attacker.Process.Wait()
	require.NoError(t, err)
	assert.True(t, ended.Sys().(syscall.WaitStatus).Signaled(), "it has listened")
	h.Stop()
	attacker = h.RoleAs(4321, "/", "take-port", port)
	assert.Contains(t, harness.Stream(t, attacker)(), "listened", "it can where nobody holds the port")
}

// TestAgentsUser: a process with an agent's user on the host gets into no console, and reads no link.
func TestAgentsUser(t *testing.T) {
	if os.Getuid() != 0 {
		need.Skip(t, "needs root, to become an agent's user")
	}
	h := harness.NewHost(t, map[string]string{"bob": ""})
	require.NoError(t, os.Chmod(h.Base, 0o755))
	s := serve(t, h)
	at, root, _ := strings.Cut(strings.TrimPrefix(s.root(), "http://"), "/")
	_, port, _ := strings.Cut(at, ":")
	dir := t.TempDir()
	for up := dir; up != "/tmp" && up != "/"; up = filepath.Dir(up) {
		require.NoError(t, os.Chmod(up, 0o755), "the socket's own mode must refuse")
	}
	socket := filepath.Join(dir, "console.sock")
	serve(t, h, "--listen", "unix:"+socket)
	var out bytes.Buffer
	cmd := h.RoleAs(4321, "/", "break-in", port, socket+","+filepath.Join(h.Base, "run", "control.sock"), s.console(), strconv.Itoa(s.cmd.Process.Pid))
	cmd.Stdout = &out
	require.NoError(t, cmd.Run())
	text := out.String()
	assert.Equal(t, 4, strings.Count(text, "answer HTTP/1.1 403"), text)
	assert.Contains(t, text, "read cmdline", "it tries")
	_, token, _ := strings.Cut(s.link, "/enter/")
	for _, secret := range []string{root, token, "connected", "traced", "took", "read environ", "read m", "read fd", "bob"} {
		assert.NotContains(t, text, secret)
	}
}

// TestManyStrangers: connections of strangers keep no operator out, and take a bounded number of descriptors.
func TestManyStrangers(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	s := serve(t, h)
	cookie := enter(t, s.link)
	at := strings.SplitN(strings.TrimPrefix(s.link, "http://"), "/", 2)[0]
	client := http.Client{Timeout: time.Minute}
	look := func() {
		r, err := http.NewRequest(http.MethodGet, s.root()+"/", nil)
		require.NoError(t, err)
		r.AddCookie(cookie)
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	look()
	const many = 400
	for range many {
		conn, err := net.Dial("tcp", at)
		require.NoError(t, err)
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n")
	}
	look()
	client.CloseIdleConnections()
	look()
	fds, err := os.ReadDir("/proc/" + s.console() + "/fd")
	require.NoError(t, err)
	assert.Less(t, len(fds), many/2)
}

// TestOpen: --open gives the browser a link that works, in a file that is gone afterwards.
func TestOpen(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	dir := t.TempDir()
	at := filepath.Join(dir, "opened.html")
	harness.Executable(t, filepath.Join(dir, "xdg-open"), []byte("#!/bin/sh\nstat -c %a \"$1\" >"+dir+"/mode; cp \"$1\" "+dir+"/new; echo \"$1\" >"+dir+"/name; mv "+dir+"/new "+at+"\n"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	serve(t, h, "--open")
	require.Eventually(t, func() bool { _, err := os.Stat(at); return err == nil }, time.Minute, 20*time.Millisecond)
	assert.Equal(t, "600\n", harness.ReadAll(t, filepath.Join(dir, "mode")))
	b := browse(t, "file://"+at, 1280, 900)
	b.reads("No session runs")
	name := strings.TrimSpace(harness.ReadAll(t, filepath.Join(dir, "name")))
	require.Eventually(t, func() bool { _, err := os.Stat(name); return os.IsNotExist(err) }, time.Minute, 20*time.Millisecond)
}

// TestTimeZone: the console shows times of the operator's zone.
func TestTimeZone(t *testing.T) {
	zone, err := time.LoadLocation("Asia/Tokyo")
	if err != nil {
		need.Skip(t, "needs the time zones: ", err)
	}
	h := harness.NewHost(t, map[string]string{"bob": ""})
	h.Must("run", "bob", "--", "true")
	t.Setenv("TZ", "Asia/Tokyo")
	s := serve(t, h)
	r, err := http.NewRequest(http.MethodGet, s.root()+"/log", nil)
	require.NoError(t, err)
	r.AddCookie(enter(t, s.link))
	text, err := io.ReadAll(send(t, r).Body)
	require.NoError(t, err)
	now := time.Now().In(zone)
	const hour = "2006-01-02 15:"
	assert.True(t, strings.Contains(string(text), now.Format(hour)) || strings.Contains(string(text), now.Add(-time.Hour).Format(hour)), "%s", text)
}
