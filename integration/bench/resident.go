package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"golang.org/x/sys/unix"
)

const (
	pace = 20 * time.Millisecond // between two rounds of operations of a program: the processors have time for the next daemon, too
	goal = 20 * time.Millisecond // the longest that an operation may take
)

// resident is a program that works in a view: with an open file, a lock, a mapping and the directory open. Beside the operations
// in the view it has two that need nothing of scopefs: a stat(2) on another file system, and a byte to another process and back,
// which is what a request to a file system in another process takes at least.
type resident struct {
	dir, file int
	mapped    []byte
	native    string        // a file that is not in a view
	echo      [2]*os.File   // to the other process, and from it
	did       residentCount // for one goroutine

	mu    sync.Mutex
	waits map[string]wait // of each kind since the last taking
}

// residentCount is what a resident did in all.
type residentCount struct {
	Made    int      `json:"made"`    // files that it has created and removed, with names of their own
	Denied  int      `json:"denied"`  // directories that it was denied, likewise
	Refused []int    `json:"refused"` // those of them that a gap without a daemon has refused: they may be in the log
	Errors  []string `json:"errors"`
}

// wait is how long the operations of a kind took.
type wait struct {
	Began time.Time     `json:"began"` // of the longest
	Took  time.Duration `json:"took"`
	Count int           `json:"count"`
	Over  int           `json:"over"` // that took longer than goal
}

// add adds another wait.
func (w wait) add(more wait) wait {
	if more.Took < w.Took {
		more.Began, more.Took = w.Began, w.Took
	}
	more.Count, more.Over = more.Count+w.Count, more.Over+w.Over
	return more
}

// waited is the wait of one operation.
func waited(began time.Time) wait {
	w := wait{Began: began, Took: time.Since(began), Count: 1}
	if w.Took > goal {
		w.Over = 1
	}
	return w
}

// newResident returns a resident of the view at dir. native is a directory that is not in a view, self is this program.
func newResident(dir, native, self string) (c *resident, stop func(), err error) {
	c = &resident{waits: map[string]wait{}, native: filepath.Join(native, "native-"+strconv.Itoa(os.Getpid())+filepath.Base(dir))}
	if err = os.WriteFile(c.native, nil, 0o600); err != nil {
		return nil, nil, err
	}
	if c.dir, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, nil, err
	}
	if c.file, err = unix.Openat(c.dir, "open", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600); err != nil {
		return nil, nil, err
	}
	if err = unix.Ftruncate(c.file, 4096); err == nil {
		err = unix.Flock(c.file, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		c.mapped, err = unix.Mmap(c.file, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	}
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self, "echo")
	from, to, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	back, out, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = from, out, os.Stderr
	err = cmd.Start()
	_, _ = from.Close(), out.Close()
	c.echo = [2]*os.File{to, back}
	return c, func() { _, _ = to.Close(), back.Close(); _ = cmd.Wait() }, err
}

// echo answers each byte on standard input with itself.
func echo(arguments) error {
	runtime.LockOSThread()
	for buf := make([]byte, 1); ; {
		if n, err := unix.Read(0, buf); err != unix.EINTR && n != 1 {
			return err
		}
		if _, err := unix.Write(1, buf); err != nil {
			return err
		}
	}
}

// work does operations until end is closed, on a thread of its own.
func (c *resident) work(end <-chan struct{}) {
	runtime.LockOSThread()
	buf := make([]byte, 4096)
	var st unix.Stat_t
	to, from := int(c.echo[0].Fd()), int(c.echo[1].Fd())
	for {
		made, no := "made-"+strconv.Itoa(c.did.Made), "ro/no-"+strconv.Itoa(c.did.Denied)
		begun := time.Now()
		for _, op := range []struct {
			kind string
			do   func() error
		}{
			{"stat", func() error { return unix.Fstatat(c.dir, "open", &st, 0) }},
			{"read", func() error { _, err := unix.Pread(c.file, buf[:100], 0); return err }},
			{"write", func() error { _, err := unix.Pwrite(c.file, buf[:100], 100); return err }},
			{"mapping", func() error { buf[0] = c.mapped[c.did.Made%4096]; return nil }},
			{"open", func() error {
				fd, err := unix.Openat(c.dir, "open", unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err == nil {
					err = unix.Close(fd)
				}
				return err
			}},
			{"list", func() error {
				fd, err := unix.Openat(c.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				_, err = unix.Getdents(fd, buf)
				return err
			}},
			{"create", func() error {
				fd, err := unix.Openat(c.dir, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
				if err == nil {
					err = unix.Close(fd)
				}
				return err
			}},
			{"rename", func() error { return unix.Renameat(c.dir, made, c.dir, "new") }},
			{"remove", func() error { return unix.Unlinkat(c.dir, "new", 0) }},
			{"denied", func() error {
				err := unix.Mkdirat(c.dir, no, 0o700)
				switch err {
				case unix.EIO: // there was no daemon for long, to record it: docs/restart.md
					c.did.Refused = append(c.did.Refused, c.did.Denied)
				case unix.EACCES:
				default:
					return cmp.Or(err, error(unix.ENOTRECOVERABLE))
				}
				return nil
			}},
			{"native: stat", func() error { return unix.Stat(c.native, &st) }},
			{"native: pipe", func() error {
				_, err := unix.Write(to, buf[:1])
				for err == nil {
					if _, err = unix.Read(from, buf[:1]); err != unix.EINTR {
						break
					}
					err = nil
				}
				return err
			}},
		} {
			began := time.Now()
			err := op.do()
			w := waited(began)
			c.mu.Lock()
			c.waits[op.kind] = c.waits[op.kind].add(w)
			c.mu.Unlock()
			if err != nil {
				c.did.Errors = append(c.did.Errors, op.kind+": "+err.Error())
			}
		}
		c.did.Made, c.did.Denied = c.did.Made+1, c.did.Denied+1
		select {
		case <-end:
			return
		case <-time.After(pace - time.Since(begun)):
		}
	}
}

// take returns the waits since the last call.
func (c *resident) take() (map[string]wait, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.waits
	c.waits = map[string]wait{}
	return was, nil
}

// liveInSandbox is a resident of the working directory in a process of its own: for each line on standard input it writes the
// waits since the last, and at the end what it did in all.
func liveInSandbox(arguments) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c, stop, err := newResident(".", os.TempDir(), self)
	if err != nil {
		return err
	}
	end, out := make(chan struct{}), json.NewEncoder(os.Stdout)
	var working sync.WaitGroup
	working.Go(func() { c.work(end) })
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		took, _ := c.take()
		if err := out.Encode(took); err != nil {
			return err
		}
	}
	close(end)
	working.Wait()
	stop()
	return out.Encode(c.did)
}

// A worker is a program that works beside restarts.
type worker interface {
	take() (map[string]wait, error)
	end() (residentCount, error)
}

// local is a resident that is a thread of this process.
type local struct {
	*resident
	stop func() residentCount
}

func (l local) end() (residentCount, error) { return l.stop(), nil }

func newLocal(dir, native, self string) (worker, error) {
	c, stop, err := newResident(dir, native, self)
	if err != nil {
		return nil, err
	}
	end := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() { c.work(end) })
	return local{c, func() residentCount { close(end); working.Wait(); stop(); return c.did }}, nil
}

// remote is liveInSandbox in the sandbox of a scopefs run.
type remote struct {
	cmd *exec.Cmd
	to  *json.Encoder
	out *json.Decoder
	in  interface{ Close() error }
}

func newRemote(cmd *exec.Cmd) (worker, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := remote{cmd, json.NewEncoder(in), json.NewDecoder(out), in}
	_, err = r.take() // it has started
	return r, err
}

func (r remote) take() (all map[string]wait, err error) {
	if err = r.to.Encode("take"); err == nil {
		err = r.out.Decode(&all)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", r.cmd, err)
	}
	return all, err
}

func (r remote) end() (did residentCount, err error) {
	err = errors.Join(r.in.Close(), r.out.Decode(&did))
	return did, errors.Join(err, r.cmd.Wait())
}

// callKind is the kind of operation of a caller.
const callKind = "tool call"

// caller is a client of scopefs mcp that makes calls, each of a file of its own.
type caller struct {
	*mcpSide
	cmd     *exec.Cmd
	done    chan struct{}
	working sync.WaitGroup
	resident
	answered int // calls; under resident.mu
}

// settle waits until a call that has begun from now on has an answer.
func (c *caller) settle() error {
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.answered
	}
	was := count()
	for end := time.Now().Add(time.Minute); count() < was+2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("no call has an answer for a minute")
		}
	}
	return nil
}

func newCaller(cmd *exec.Cmd) (*caller, error) {
	side, err := newMCPSide("go-sdk", "", cmd)
	if err != nil {
		return nil, err
	}
	c := &caller{mcpSide: side, cmd: cmd, done: make(chan struct{}), resident: resident{waits: map[string]wait{}}}
	c.working.Go(c.work)
	return c, nil
}

func (c *caller) work() {
	write := request{method: "tools/call", tool: "write_file", args: func(n int) map[string]any {
		return map[string]any{"path": "called-" + strconv.Itoa(n), "content": "x"}
	}}
	for ; ; c.did.Made++ {
		began := time.Now()
		_, _, err := c.call(write, c.did.Made)
		w := waited(began)
		var failed *jsonrpc.Error
		switch {
		case errors.As(err, &failed) && bytes.Contains(failed.Data, []byte(`"effect":"unknown"`)): // docs/restart.md
			c.did.Refused = append(c.did.Refused, c.did.Made)
		case err != nil:
			c.did.Errors = append(c.did.Errors, callKind+": "+err.Error())
		}
		c.mu.Lock()
		c.waits[callKind] = c.waits[callKind].add(w)
		c.answered++
		c.mu.Unlock()
		select {
		case <-c.done:
			c.did.Made++
			return
		case <-time.After(pace):
		}
	}
}

func (c *caller) end() (residentCount, error) {
	close(c.done)
	c.working.Wait()
	c.close()
	return c.did, nil
}
