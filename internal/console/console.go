// Package console starts scopefs-console, the program that serves the web page, and gets links from it.
//
// The program gets its listening socket as descriptor [SocketFD]. It reads a line of JSON for each [Request] from its standard
// input, and writes a line with the [Reply] to its standard output. It ends at the end of the input. So no other process sees
// a link, or the key of the certificate: they are in no argument, environment or file that the program opens.
package console

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/scopefs/scopefs/internal/bounded"
	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
)

// Name is the program's name.
const Name = child.Console

// Request is a line that the program reads.
type Request struct {
	N    uint64       `json:"n"` // the reply has it too
	Ask  Ask          `json:"ask"`
	Name string       `json:"name,omitempty"` // of the device to pair
	Role devices.Role `json:"role,omitempty"`
	Cert string       `json:"cert,omitempty"` // PEM
	Key  string       `json:"key,omitempty"`  // PEM
}

// Ask is a kind of request.
type Ask string

// The kinds.
const (
	AskLink Ask = "link" // a link for the operator
	AskPair Ask = "pair" // a link that pairs a device
	AskTLS  Ask = "tls"  // use a certificate, from now on

	// AskInbox is for the URL of the inbox, which lets nobody in. There is none without TLS: a server at another port of the
	// host must not learn the path, and gets the cookies of a path that it knows.
	AskInbox Ask = "inbox"
)

// Reply is the answer.
type Reply struct {
	N     uint64 `json:"n"`
	Link  string `json:"link,omitempty"`
	QR    string `json:"qr,omitempty"` // of a link that pairs, in lines of a terminal
	Error string `json:"error,omitempty"`
}

// UnixPrefix begins the address of a unix socket.
const UnixPrefix = "unix:"

// answerTime bounds the wait for a link, and for the end of the program.
const answerTime = 5 * time.Second

// MaxLine limits a line of the program, and one for it, in bytes.
const MaxLine = 128 << 10

// certTime is the interval at which the files of the certificate are looked at.
const certTime = time.Minute

// Options says where the page is served.
type Options struct {
	Listen string // ADDRESS:PORT, or unix:PATH
	Cert   string // the file of a certificate, with its chain: PEM. "": no TLS
	Key    string // the file of its key
}

// Check fails for an address where the page would be served without protection, and for a certificate that cannot be used.
// The flags are the options' names on the command line.
func (o Options) Check(listen, cert, key string) error {
	if path, ok := strings.CutPrefix(o.Listen, UnixPrefix); ok {
		switch {
		case !filepath.IsAbs(path):
			return fmt.Errorf("--%s %q: the path of the socket is not absolute", listen, o.Listen)
		case o.Cert != "" || o.Key != "":
			return fmt.Errorf("--%s %q: a unix socket has no TLS: leave out --%s and --%s", listen, o.Listen, cert, key)
		}
		return nil
	}
	if (o.Cert == "") != (o.Key == "") {
		return fmt.Errorf("--%s and --%s belong together: give both", cert, key)
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("--%s %q: want ADDRESS:PORT", listen, o.Listen)
	}
	if o.Cert == "" {
		if !o.Local() {
			return fmt.Errorf("--%s %q: not on the loopback interface: give --%s and --%s, and pair devices, or listen there, and forward the port with ssh -L", listen, o.Listen, cert, key)
		}
		return nil
	}
	_, err = o.certificate()
	return err
}

// Local reports whether no other host can connect, as the address says: a name other than localhost is not looked up.
func (o Options) Local() bool {
	if strings.HasPrefix(o.Listen, UnixPrefix) {
		return true
	}
	host, _, _ := net.SplitHostPort(o.Listen)
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certificate reads the certificate, and checks that the key is its key.
func (o Options) certificate() (Request, error) {
	r := Request{Ask: AskTLS}
	for name, text := range map[string]*string{o.Cert: &r.Cert, o.Key: &r.Key} {
		read, err := bounded.File(name, MaxLine/4)
		if err != nil {
			return r, fmt.Errorf("certificate: %w", err)
		}
		*text = string(read)
	}
	if _, err := tls.X509KeyPair([]byte(r.Cert), []byte(r.Key)); err != nil {
		return r, fmt.Errorf("certificate: %s and %s: %w", o.Cert, o.Key, err)
	}
	return r, nil
}

// Process is the program that runs.
type Process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan Reply
	ended chan struct{} // closed when the process is gone and was waited for

	asking sync.Mutex // one request after the other
	n      uint64     // of the last one
}

// Start starts the program for the daemon of directories. It returns when the program serves.
func (s *Socket) Start(p config.Paths, stderr io.Writer) (*Process, error) {
	o := s.options
	cmd, err := child.Command(child.Console, "--run", p.Run, "--state", p.State, "--listen", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if o.Cert != "" {
		cmd.Args = append(cmd.Args, "--tls")
	}
	cmd.Env, cmd.Stderr = []string{"GOTRACEBACK=single"}, stderr
	if zone, ok := os.LookupEnv("TZ"); ok { // an empty one is UTC
		cmd.Env = append(cmd.Env, "TZ="+zone)
	}
	cmd.ExtraFiles = []*os.File{s.file} // SocketFD
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals are the parent's
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", Name, err)
	}
	c := &Process{cmd: cmd, in: in, lines: make(chan Reply, 1), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		read := bufio.NewScanner(out)
		read.Buffer(nil, MaxLine)
		for read.Scan() {
			var reply Reply
			if err := json.Unmarshal(read.Bytes(), &reply); err != nil {
				reply.Error = Name + ": " + err.Error()
			}
			select {
			case c.lines <- reply:
			case <-time.After(answerTime): // nobody asked
			}
		}
		_ = cmd.Wait()
	}()
	if o.Cert == "" {
		_, err = c.answer()
	} else {
		err = c.certify(o)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("console at %s: %w", o.Listen, err)
	}
	if o.Cert != "" {
		go c.renew(o, stderr)
	}
	return c, nil
}

// certify gives the program the certificate.
func (c *Process) certify(o Options) error {
	r, err := o.certificate()
	if err != nil {
		return err
	}
	_, err = c.Do(r)
	return err
}

// renew gives the program the certificate again when its file has changed, until the program ends. A certificate that
// cannot be used leaves the one before.
func (c *Process) renew(o Options, stderr io.Writer) {
	last, _ := os.Stat(o.Cert)
	for {
		select {
		case <-time.After(certTime):
		case <-c.ended:
			return
		}
		now, err := os.Stat(o.Cert)
		if err != nil || last != nil && os.SameFile(now, last) && now.ModTime().Equal(last.ModTime()) {
			continue
		}
		last = now
		if err := c.certify(o); err != nil {
			fmt.Fprintf(stderr, "console: the certificate stays the one before: %v\n", err)
			last = nil // the key may follow
		}
	}
}

// answer returns the reply to the last request. A reply to one before, which came too late, has a link of somebody else.
func (c *Process) answer() (Reply, error) {
	late := time.After(answerTime)
	for {
		select {
		case r := <-c.lines:
			switch {
			case r.N != c.n:
			case r.Error != "":
				return r, errors.New(r.Error)
			default:
				return r, nil
			}
		case <-c.ended:
			return Reply{}, errors.New(Name + " has ended: its standard error says why")
		case <-late:
			return Reply{}, errors.New(Name + " does not answer: end it")
		}
	}
}

// Do does what a request asks for.
func (c *Process) Do(r Request) (Reply, error) {
	c.asking.Lock()
	defer c.asking.Unlock()
	c.n++
	r.N = c.n
	line, err := json.Marshal(r)
	if err != nil {
		return Reply{}, err
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return Reply{}, fmt.Errorf("console: %w", err)
	}
	return c.answer()
}

// Ended returns a channel that is closed when the program is gone.
func (c *Process) Ended() <-chan struct{} { return c.ended }

// Close ends the program. It returns after 6 seconds at most.
func (c *Process) Close() {
	c.in.Close()
	select {
	case <-c.ended:
	case <-time.After(answerTime):
		_ = c.cmd.Process.Kill()
		select {
		case <-c.ended:
		case <-time.After(time.Second):
		}
	}
}
