package selftest

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outside is what an attempt must not reach: files, a process, listeners and memory of the host. Each holds the token.
type outside struct {
	token string
	dir   string // of all; removed at the end
	out   string // a directory
	other string // that of another agent
	scope string // that of the agent who attacks

	secret  *os.File // of out, open
	process *exec.Cmd
	tcp     net.Listener
	udp     net.PacketConn
	unix    []net.Listener
	name    string // in the abstract name space
	shm     string // a file in /dev/shm
	key     int    // of a System V segment
	segment int
	reached atomic.Int64 // connections and datagrams that listeners had
	planted map[string]string
}

// hostFiles are names in a scope that programs of the host execute, or read as settings.
var hostFiles = []string{".git/config", ".git/hooks", ".vscode", ".idea", ".mcp.json", ".claude", ".cursor", ".envrc", ".husky"}

func newOutside() (o *outside, err error) {
	random := make([]byte, 12)
	_, _ = rand.Read(random) // never fails
	id := hex.EncodeToString(random)
	o = &outside{token: "CANARY" + id[:12], name: "selftest-" + id[12:], shm: "/dev/shm/selftest-" + id[12:], key: 1 +
		int(random[11])<<8 + int(random[10])<<16}
	if o.dir, err = os.MkdirTemp("", "selftest-"); err != nil {
		return nil, err
	}
	o.out, o.other, o.scope = o.dir+"/out", o.dir+"/base/agents/other", o.dir+"/base/agents/a"
	if err := o.begin(); err != nil {
		o.close()
		return nil, fmt.Errorf("set up: %w", err)
	}
	return o, nil
}

func (o *outside) begin() (err error) {
	if err := os.Chmod(o.dir, 0o755); err != nil { // permissions are not tested
		return err
	}
	if err := o.plant(); err != nil {
		return err
	}
	if o.secret, err = os.Open(o.out + "/secret"); err != nil {
		return err
	}
	if o.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	if o.udp, err = net.ListenPacket("udp", o.tcp.Addr().String()); err != nil {
		return err
	}
	go o.answer(o.tcp)
	go o.echo()
	for _, address := range []string{o.dir + "/sock", "@" + o.name} {
		l, err := net.Listen("unix", address)
		if err != nil {
			return err
		}
		o.unix = append(o.unix, l)
		go o.answer(l)
	}
	if o.segment, err = unix.SysvShmGet(o.key, 4096, unix.IPC_CREAT|0o666); err != nil {
		return err
	}
	text, err := unix.SysvShmAttach(o.segment, 0, 0)
	if err != nil {
		return err
	}
	copy(text, o.token+"-segment")
	if err := unix.SysvShmDetach(text); err != nil {
		return err
	}
	return o.spawn()
}

// answer gives each client the token.
func (o *outside) answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		o.reached.Add(1)
		_ = c.SetDeadline(time.Now().Add(time.Second))
		fmt.Fprintf(c, "%s-listener\n", o.token)
		c.Close()
	}
}

func (o *outside) echo() {
	buf := make([]byte, 100)
	for {
		_, from, err := o.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		o.reached.Add(1)
		_, _ = o.udp.WriteTo([]byte(o.token+"-datagram\n"), from)
	}
}

// spawn starts a process that has the token in its arguments, its environment and a descriptor.
func (o *outside) spawn() error {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		return err
	}
	o.process = &exec.Cmd{Path: sleep, Args: []string{o.token + "-argument", "3600"}, Env: []string{"SELFTEST=" + o.token + "-environment"},
		Dir: o.out, ExtraFiles: []*os.File{o.secret}}
	return o.process.Start()
}

func (o *outside) alive() bool {
	var status unix.WaitStatus
	pid, err := unix.Wait4(o.process.Process.Pid, &status, unix.WNOHANG|unix.WUNTRACED, nil)
	return err == nil && pid == 0
}

// plant makes the files outside anew, and those of the scope.
func (o *outside) plant() error {
	for _, dir := range []string{o.out, o.other, o.scope} {
		if err := emptyDir(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{o.out, o.other} {
		for _, sub := range []string{"drop", "empty"} {
			if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
				return err
			}
		}
		for name, text := range map[string]string{"secret": o.token + "-file\n", "target": "unchanged\n", "drop/own": o.token + "-file\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	for _, dir := range []string{".git/hooks", ".git/refs/heads", ".git/objects"} {
		if err := os.MkdirAll(filepath.Join(o.scope, dir), 0o755); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{".git/HEAD": "ref: refs/heads/main\n",
		".git/config": "[core]\n\trepositoryformatversion = 0\n"} {
		if err := os.WriteFile(filepath.Join(o.scope, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	links := map[string]string{"outlink": o.out + "/secret", "outdir": o.out, "targetlink": o.out + "/target", "chain0": "outlink"}
	for i := range 41 { // the kernel follows 40
		links[fmt.Sprintf("chain%d", i+1)] = fmt.Sprintf("chain%d", i)
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(o.scope, name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(o.shm, []byte(o.token+"-shm\n"), 0o644); err != nil {
		return err
	}
	o.planted = o.picture()
	return nil
}

// emptyDir makes a directory, or removes what it holds.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	for _, e := range list {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return err
}

// picture returns what lies outside, and what the host executes in the scope: names with types, permissions, owners, times and
// content.
func (o *outside) picture() map[string]string {
	all := map[string]string{}
	look := func(dir string, times bool) {
		_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // the picture lacks it
			}
			info, err := d.Info()
			if err != nil {
				return nil //nolint:nilerr // likewise
			}
			text := info.Mode().String()
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				text += fmt.Sprintf(" %d:%d", st.Uid, st.Gid)
			}
			if info.Mode().IsRegular() {
				content, _ := os.ReadFile(name)
				text += " " + string(content)
			}
			if times && !info.IsDir() {
				text += " " + info.ModTime().String()
			}
			all[name] = text
			return nil
		})
	}
	for _, name := range []string{o.out, o.other, o.shm, o.dir + "/base/agents.d", o.dir + "/base/scopefs.yaml"} {
		look(name, true)
	}
	for _, name := range hostFiles {
		look(filepath.Join(o.scope, name), false)
	}
	return all
}

// maxFound limits what evidence lists.
const maxFound = 4

// evidence returns what an attempt has reached, by its output and by what is outside; "" if nothing. Connections count for
// attempts on the network. It
// starts the process again that has ended.
func (o *outside) evidence(output string, network bool) string {
	var found []string
	if i := strings.Index(output, o.token); i >= 0 {
		word, _, _ := strings.Cut(output[i+len(o.token):], "\n")
		found = append(found, "it has the secret"+firstWord(word))
	}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "ESCAPED") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	now := o.picture()
	for name, text := range o.planted {
		if now[name] != text {
			found = append(found, "it changed "+strings.TrimPrefix(name, o.dir))
		}
	}
	for name := range now {
		if _, ok := o.planted[name]; !ok {
			found = append(found, "it made "+strings.TrimPrefix(name, o.dir))
		}
	}
	if n := o.reached.Swap(0); n > 0 && network {
		found = append(found, "it reached a listener of the host")
	}
	if !o.alive() {
		found = append(found, "it ended a process of the host")
		_ = o.process.Process.Kill() // if it is only stopped
		_ = o.process.Wait()
		if err := o.spawn(); err != nil {
			found = append(found, err.Error())
		}
	}
	found = append(found, special(o.scope)...)
	if more := len(found) - maxFound; more > 0 {
		found = append(found[:maxFound], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(found, "; ")
}

// firstWord returns what follows the token: where it was.
func firstWord(rest string) string {
	if end := strings.IndexFunc(rest, func(r rune) bool { return r != '-' && (r < 'a' || r > 'z') }); end >= 0 {
		rest = rest[:end]
	}
	return strings.Replace(rest, "-", " of a ", 1)
}

// special returns files of a scope that no agent may leave there.
func special(scope string) (found []string) {
	_ = filepath.WalkDir(scope, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeDevice) != 0 {
			found = append(found, fmt.Sprintf("it left %s, %v", strings.TrimPrefix(name, scope+"/"), info.Mode()))
		}
		return nil
	})
	return found
}

// words returns the values of what scripts name.
func (o *outside) words() *strings.Replacer {
	_, port, _ := net.SplitHostPort(o.tcp.Addr().String())
	n, _ := strconv.Atoi(port)
	return strings.NewReplacer("$OUT", o.out, "$OTHER", o.other, "$PID", strconv.Itoa(o.process.Process.Pid),
		"$PORTBYTES", fmt.Sprintf(`\x%02x\x%02x`, n>>8, n&255), "$PORT", port, "$SOCK", o.dir+"/sock", "$NAME", o.name,
		"$KEY", strconv.Itoa(o.key))
}

func (o *outside) close() {
	for _, c := range o.unix {
		c.Close()
	}
	if o.tcp != nil {
		o.tcp.Close()
	}
	if o.udp != nil {
		o.udp.Close()
	}
	if o.process != nil && o.process.Process != nil {
		_ = o.process.Process.Kill()
		_ = o.process.Wait()
	}
	if o.secret != nil {
		o.secret.Close()
	}
	if o.segment != 0 {
		_, _ = unix.SysvShmCtl(o.segment, unix.IPC_RMID, nil)
	}
	_ = os.Remove(o.shm)
	_ = os.RemoveAll(o.dir)
}
