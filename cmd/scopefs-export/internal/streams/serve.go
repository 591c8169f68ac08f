package streams

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/export"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/fleet"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/receivers"
	"github.com/scopefs/scopefs/cmd/scopefs-export/internal/traces"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/confine"
	"github.com/scopefs/scopefs/internal/driver"
	fleetwire "github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/streams/wire"
	"github.com/scopefs/scopefs/tools/egress"
)

// The bounds of the process.
const (
	memory = 1 << 30   // bytes of data
	heap   = 128 << 20 // bytes of Go's memory, after which the collector works harder
	files  = 256
)

// Serve serves the daemon until it closes the connection.
func Serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, p := driver.Handlers{}, &process{ctx: ctx, ended: make(chan error, 1)}
	wire.Begin.Handle(first, p.begin)
	fleetwire.Operate.Handle(first, p.operate)
	var err error
	if p.conn, p.daemon, err = driver.Inherit(first, heap); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { defer close(served); served <- p.conn.Serve() }()
	select {
	case err = <-p.ended:
		p.conn.Close()
		for range served { // until Serve has returned
		}
	case err = <-served: // the cursor is a file: what is in flight is sent again
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	return err
}

// process is the stream of a process.
type process struct {
	ctx    context.Context // ends with the process
	conn   *driver.Conn
	daemon *driver.Daemon
	ended  chan error // has the stream's error
}

// The places of directories in the root of the process.
const (
	logDir    = "/log"
	cursorDir = "/stream"
)

// begin confines the process, and starts the stream.
func (p *process) begin(ctx context.Context, set wire.Settings) ([]string, error) {
	if _, err := x509.SystemCertPool(); err != nil { // which it keeps
		return nil, fmt.Errorf("certificates: %w", err)
	}
	needs := confine.Needs{
		Trees: map[string]int{}, Dirs: []string{logDir, cursorDir}, ReadOnly: []string{logDir}, Hidden: []string{logDir + "/key"},
		Memory: memory, Files: files, Calls: calls,
	}
	if err := awaitKey(ctx, set.Log); err != nil {
		return nil, err
	}
	for place, dir := range map[string]string{logDir: set.Log, cursorDir: set.Dir} {
		fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		needs.Trees[place] = fd
	}
	means, err := confine.Confine(needs)
	if err != nil {
		return nil, fmt.Errorf("confine: %w", err)
	}
	runtime.GOMAXPROCS(1) // a stream waits most of the time: with more, threads wake each other for each event
	go func() { p.ended <- p.run(set) }()
	return means, nil
}

// operate confines the process, for a command of an operator: it keeps no file.
func (p *process) operate(_ context.Context, one config.Stream) ([]string, error) {
	if _, err := x509.SystemCertPool(); err != nil { // which it keeps
		return nil, fmt.Errorf("certificates: %w", err)
	}
	server, err := p.nats(one)
	if err != nil {
		return nil, err
	}
	means, err := confine.Confine(confine.Needs{Memory: memory, Files: files, Calls: calls})
	if err == nil {
		p.conn.Replace(fleet.Handlers(server))
	}
	return means, err
}

// nats returns the server of a stream.
func (p *process) nats(one config.Stream) (receivers.NATS, error) {
	u, err := one.URL()
	if err != nil {
		return receivers.NATS{}, err
	}
	network, address := one.Address()
	reach := p.daemon.Reach(one.Name)
	server := receivers.NATS{TLS: secured(u), Address: address, User: one.User, Secret: reach.Secret}
	if one.Credential == nil {
		server.Secret = nil
	}
	if one.Node != "" {
		server.Inbox = "_INBOX." + one.Node // by which the server can keep the answers of nodes apart
	}
	server.Dial = func(ctx context.Context) (net.Conn, error) { return reach.Dial(ctx, network, address) }
	return server, nil
}

// awaitKey waits until the log in a directory has its keys, which it makes with its first head: only then the private one can
// be covered.
func awaitKey(ctx context.Context, dir string) error {
	for {
		_, err := os.Lstat(filepath.Join(dir, "key"))
		if err == nil {
			_, err = os.Lstat(filepath.Join(dir, keyName))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-time.After(waitPause):
		case <-ctx.Done():
			return fmt.Errorf("%w: the log has no head yet", err)
		}
	}
}

// calls are the system calls of a stream beside those of the Go runtime and of existing files. There is none that makes a
// connection.
var calls = []uint32{
	unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_GETDENTS64, unix.SYS_FLOCK, unix.SYS_FCHMOD, unix.SYS_FSTATFS,
	unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_RECVFROM, unix.SYS_SENDTO, unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT,
	unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME, unix.SYS_SHUTDOWN, unix.SYS_INOTIFY_INIT1,
	unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH, unix.SYS_SYSINFO, unix.SYS_UNAME, unix.SYS_GETRUSAGE,
	unix.SYS_PRLIMIT64, unix.SYS_GETPPID, unix.SYS_GETGID, unix.SYS_GETEGID,
}

// waitPause is the time between two looks for what is not there yet: the log's key, a cursor that no other process has.
const waitPause = 200 * time.Millisecond

func (p *process) run(set wire.Settings) error {
	key, id, err := logKey(logDir)
	if err != nil {
		return err
	}
	c, err := openCursor(cursorDir, logDir, id, set.Stream.From)
	for errors.Is(err, errBusy) {
		time.Sleep(waitPause)
		c, err = openCursor(cursorDir, logDir, id, set.Stream.From)
	}
	if err != nil {
		return err
	}
	s := &stream{log: logDir, cursor: c, report: func(ctx context.Context, at wire.Progress) error {
		_, err := wire.Report.Call(ctx, p.conn, at)
		return err
	}}
	if s.senders, err = p.senders(set, key, id, s); err != nil {
		return err
	}
	return errors.Join(s.run(p.ctx), s.close())
}

// secured returns the settings of TLS for a receiver; nil: it has none.
func secured(u *url.URL) *tls.Config {
	if u.Scheme != "tls" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
}

// senders returns what gives the events to the receiver.
func (p *process) senders(set wire.Settings, key, id string, s *stream) ([]Sender, error) {
	one := set.Stream
	u, err := one.URL()
	if err != nil {
		return nil, err
	}
	network, address := one.Address()
	reach := p.daemon.Reach(one.Name)
	if one.Credential == nil {
		reach.Secret = nil
	}
	dial := func(ctx context.Context) (net.Conn, error) { return reach.Dial(ctx, network, address) }
	secure := secured(u)
	switch {
	case one.Syslog != "":
		return []Sender{&receivers.Syslog{Dial: dial, TLS: secure, Host: set.Host}}, nil
	case one.NATS != "":
		server, err := p.nats(one)
		if err != nil {
			return nil, err
		}
		go fleet.Serve(p.ctx, server, fleet.Node{Name: one.Node, Log: id, Dir: logDir, Definitions: one.Definitions}, p.conn)
		return []Sender{&receivers.JetStream{NATS: server, Subject: one.Subject, Stream: one.Stream, Log: id}}, nil
	}
	u.Host = address
	transport := egress.NewTransport(func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		egress.ClientLimits{Header: 64 << 10})
	refused := func(text string) { s.tell(p.ctx, wire.Progress{Gap: text}) }
	all := []Sender{&receivers.OTLP{
		URL: u.JoinPath("v1/logs").String(), Client: egress.NewClient(transport), Headers: one.Headers,
		Header: cmp.Or(one.Header, "Authorization"), Prefix: one.Prefix, Secret: reach.Secret,
		Source:  export.Source{Host: set.Host, Node: set.Node, Version: set.Version},
		Refused: refused,
	}}
	if !one.Traces {
		return all, nil
	}
	spans, err := traces.New(traces.Options{
		URL: u.JoinPath("v1/traces").String(), Client: egress.NewClient(transport), Headers: one.Headers,
		Header: cmp.Or(one.Header, "Authorization"), Prefix: one.Prefix, Secret: reach.Secret,
		Source: traces.Source{Host: set.Host, Node: set.Node, Version: set.Version}, Refused: refused,
	})
	return append(all, spans), err
}
