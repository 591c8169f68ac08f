package messages

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	door "github.com/scopefs/scopefs/tools/messages"
)

// OpenEmbedded returns a store on a server in this process, with its files in a
// directory. The server listens nowhere. It starts at the first call, and starts
// again at the next call after its disk failed. One process at a time may have
// the directory.
func OpenEmbedded(directory string, limits door.Limits) *Store {
	return newStore(&embedded{directory: directory}, limits)
}

// embedded is a server in this process.
type embedded struct {
	directory string
	running   *running     // nil: none
	starting  chan started // of a server that is starting; nil: none
	began     time.Time
	broken    atomic.Bool
	log       lastError
}

// running is a server with the lock of its directory.
type running struct {
	server *server.Server
	lock   *os.File
}

type started struct {
	server *running
	err    error
}

// restartPause is how long after a start the server may start again.
const restartPause = 2 * time.Second

// connect connects to the server, and starts it if it does not run. A disk that
// does not answer, or much to recover, may take longer than one call waits; the
// next call waits for the same start.
func (e *embedded) connect(ctx context.Context) (*link, error) {
	if e.running == nil || e.broken.Load() && time.Since(e.began) > restartPause {
		if err := e.start(ctx); err != nil {
			return nil, err
		}
	}
	s := e.running.server
	return newLink(ctx, "embedded:4222", dialer{dial: func(context.Context) (net.Conn, error) { return s.InProcessConn() }})
}

// asleep checks the directory of a server that has not started. It makes none.
func (e *embedded) asleep() (bool, error) {
	if e.running != nil || e.starting != nil {
		return false, nil
	}
	if _, err := os.Lstat(e.directory); errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	lock, err := lockDirectory(e.directory)
	if err != nil {
		return true, err
	}
	return true, lock.Close()
}

// start starts the server again, or waits for one that is starting.
func (e *embedded) start(ctx context.Context) error {
	if e.starting == nil {
		e.log.text.Store(nil)
		e.broken.Store(false)
		e.began, e.starting = time.Now(), make(chan started, 1)
		go func(old *running, done chan<- started) {
			if old != nil {
				old.stop()
			}
			s, err := run(e.directory, &e.log)
			done <- started{s, err}
		}(e.running, e.starting)
		e.running = nil
	}
	select {
	case s := <-e.starting:
		e.running, e.starting = s.server, nil
		return s.err
	case <-ctx.Done():
		return errors.New("the embedded server is starting")
	}
}

// run starts a server in a directory, and returns when it runs.
func run(directory string, log server.Logger) (*running, error) {
	lock, err := lockDirectory(directory)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "scopefs", DontListen: true, NoSigs: true, MaxPayload: maxMessage,
		JetStream: true, DisableJetStreamBanner: true, StoreDir: directory, SyncAlways: true,
		// The limits of streams bound the files. This one bounds their sum, also of what they do not use yet.
		JetStreamMaxMemory: 1, JetStreamMaxStore: 1 << 50,
	})
	if err != nil {
		lock.Close()
		return nil, err
	}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	r := &running{s, lock}
	if !s.JetStreamEnabled() || !s.ReadyForConnections(network) {
		r.stop()
		return nil, errors.New("the embedded server did not start")
	}
	return r, nil
}

// stop ends the server and gives up the directory.
func (r *running) stop() {
	r.server.Shutdown()
	r.server.WaitForShutdown()
	r.lock.Close()
}

// lockDirectory makes the directory and locks it: two servers would destroy each
// other's files. The lock ends with the process, flock(2).
func lockDirectory(name string) (*os.File, error) {
	if err := os.MkdirAll(name, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = dir.Chmod(0o700)
	if err == nil {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%s: another scopefs process has the embedded server: start a daemon, which serves all commands", name)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// failed notes that the server failed if it has logged an error. A stream takes no
// messages after a write failed, even when there is space again, and gives no
// answer.
func (e *embedded) failed(error) bool {
	if e.log.text.Load() != nil {
		e.broken.Store(true)
	}
	return e.broken.Load()
}

// explain adds what the server logged last.
func (e *embedded) explain(err error) (hint string, cause error) {
	if logged := e.log.text.Load(); logged != nil {
		return hintDisk, fmt.Errorf("%w (the server: %s)", err, *logged)
	}
	return "", err
}

// close ends the server. It returns an error after 5 s, if the disk does not
// answer; the server keeps the directory then.
func (e *embedded) close() error {
	ended := make(chan struct{})
	go func(s *running, starting chan started) {
		defer close(ended)
		if starting != nil {
			s = (<-starting).server
		}
		if s != nil {
			s.stop()
		}
	}(e.running, e.starting)
	e.running, e.starting = nil, nil
	select {
	case <-ended:
		return nil
	case <-time.After(door.Patience):
		return errors.New("messages: the embedded server does not end")
	}
}

// lastError is a [server.Logger] that keeps the last error.
type lastError struct{ text atomic.Pointer[string] }

func (l *lastError) keep(format string, args []any) {
	text := fmt.Sprintf("%.500s", fmt.Sprintf(format, args...))
	l.text.Store(&text)
}

// Errorf keeps an error.
func (l *lastError) Errorf(format string, args ...any) { l.keep(format, args) }

// Fatalf keeps an error. It does not end the process.
func (l *lastError) Fatalf(format string, args ...any) { l.keep(format, args) }

// Noticef does nothing.
func (*lastError) Noticef(string, ...any) {}

// Warnf does nothing.
func (*lastError) Warnf(string, ...any) {}

// Debugf does nothing.
func (*lastError) Debugf(string, ...any) {}

// Tracef does nothing.
func (*lastError) Tracef(string, ...any) {}
