// Package serve is the process that serves the /context of one sandbox. Package contextfs is the daemon's end, and says what the
// process may do; package wire has the messages.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/callfs"
	"github.com/scopefs/scopefs/internal/contextfs/wire"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/reconnect"
)

// Main runs the process and returns its exit status.
func Main() int {
	conn := newConnection(os.NewFile(wire.WireFD, "daemon"), os.NewFile(wire.HeartFD, "heart"))
	over, err := run(conn)
	if err != nil {
		_ = wire.Send(conn.out, wire.FromServer{Failed: err.Error()}, nil)
		return 1
	}
	over()
	return 0
}

// server is the process.
type server struct {
	*reconnect.Daemons[*connection]
	grace time.Duration // how long it goes on without the present daemon; 0: it ends with it. Of follow

	// By call; of the goroutine that has the present connection's reading.
	files  map[string]*callfs.Files
	before map[string]*callfs.Files // of the last daemon: nobody sees them until the present one has sent them again

	sweep *time.Timer // for drain
}

// connection is the process's end of the sockets of one daemon.
type connection struct {
	wire, beats *os.File
	in          *peer.Reader
	out         *peer.Writer
	calls       *peer.Requests[reply]

	reading chan struct{} // has a value while a goroutine reads the daemon's messages
	lost    chan struct{} // closed when the daemon has ended
}

func newConnection(messages, beats *os.File) *connection {
	return &connection{
		wire: messages, beats: beats, in: peer.NewReader(messages, wire.MaxToServer), out: peer.NewWriter(messages, wire.MaxFromServer, 0),
		calls: peer.NewRequests[reply](0), reading: make(chan struct{}, 1), lost: make(chan struct{}),
	}
}

// reply is the daemon's answer to a request.
type reply struct {
	files *callfs.Files
	late  bool
}

// run serves the mount until it is attached nowhere any more. over tells the daemon.
func run(conn *connection) (over func(), err error) {
	var first wire.ToServer
	if _, err := wire.Receive(conn.in, &first); err != nil || first.Config == nil {
		return nil, fmt.Errorf("receive configuration: %w", err)
	}
	s := &server{grace: first.Config.Grace, files: map[string]*callfs.Files{}}
	s.Daemons = reconnect.New(conn, s.grace > 0)
	s.sweep = time.AfterFunc(dropTime, s.drain)
	s.sweep.Stop()
	var control *os.File
	if s.grace > 0 {
		control = os.NewFile(reconnect.ControlFD, "control")
		go heart.NewHeart(os.NewFile(reconnect.HolderFD, "holder")).Serve(func() {})
	}
	measures, err := confined()
	if err != nil {
		return nil, fmt.Errorf("confine: %w", err)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // standard error may have no reader (os/signal)
	go s.follow(conn, control)
	if err := wire.Send(conn.out, wire.FromServer{Ready: measures}, nil); err != nil {
		return nil, err
	}
	err = callfs.Serve(wire.FuseFD, callfs.Options{
		UID: first.Config.UID, GID: first.Config.GID, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Owner: func(tid uint32) (*callfs.Files, error) {
			r, err := s.ask(wire.FromServer{TID: tid})
			if err == nil && r.late {
				err = errors.New("the daemon does not answer")
			}
			return r.files, err
		},
		Refused: func(tid uint32) error {
			_, err := s.ask(wire.FromServer{TID: tid, Refused: true})
			return err
		},
	})
	return func() {
		if now, err := s.Connected(time.Time{}); err == nil {
			_ = wire.Send(now.out, wire.FromServer{Over: true}, nil)
		}
	}, err
}

// follow goes on with one daemon after the other. It ends the process when no next one is to come: the process does not know whose
// call a thread is.
func (s *server) follow(conn *connection, control *os.File) {
	for {
		heart.NewHeart(conn.beats).Serve(func() {}) // until the daemon ends
		s.Drop(conn)
		close(conn.lost)
		if control == nil {
			os.Exit(0)
		}
		files := reconnect.Take(control, time.Now().Add(s.grace))
		if len(files) != 2 {
			os.Exit(0)
		}
		conn.reading <- struct{}{} // nobody handles messages of the last daemon any more
		conn.wire.Close()
		conn.beats.Close()
		conn = newConnection(files[0], files[1])
		var first wire.ToServer
		if _, err := wire.Receive(conn.in, &first); err != nil || first.Config == nil {
			continue // the daemon ends
		}
		s.grace = first.Config.Grace
		maps.Copy(s.files, s.before)
		maps.DeleteFunc(s.files, func(call string, _ *callfs.Files) bool { return !slices.Contains(first.Config.Keep, call) })
		s.before, s.files = s.files, map[string]*callfs.Files{}
		s.Meet(conn)
		s.sweep.Reset(dropTime)
	}
}

// ask sends a request and returns its answer. If the daemon ends, the next one gets the request again.
func (s *server) ask(msg wire.FromServer) (reply, error) {
	for end := time.Now().Add(reconnect.GapTime); ; {
		conn, err := s.Connected(end)
		if err != nil {
			return reply{}, err
		}
		if r, err := s.askOf(conn, msg); err == nil {
			return r, nil
		}
		s.Drop(conn)
	}
}

var errLost = errors.New("the daemon has ended")

// askOf sends a request to one daemon and returns its answer, which the daemon bounds. One of the goroutines that wait reads the
// daemon's messages for all: with one client no other thread has to wake.
func (s *server) askOf(conn *connection, msg wire.FromServer) (reply, error) {
	call, err := conn.calls.Begin(context.Background())
	if err != nil {
		return reply{}, err
	}
	defer call.End()
	msg.ID = call.ID
	if err := wire.Send(conn.out, msg, nil); err != nil {
		return reply{}, err
	}
	for {
		select {
		case r := <-call.Reply:
			return r, nil
		case <-conn.lost:
			return reply{}, errLost
		case conn.reading <- struct{}{}:
		}
		var r reply
		answered := true
		select {
		case r = <-call.Reply: // the goroutine that read before has it
		default:
			answered = false
			err = s.receive(conn)
		}
		<-conn.reading
		if answered || err != nil {
			return r, err
		}
	}
}

// receive handles one message of the daemon.
func (s *server) receive(conn *connection) error {
	var msg wire.ToServer
	content, err := wire.Receive(conn.in, &msg)
	if err != nil {
		return err
	}
	if msg.New != nil {
		files, err := received(msg.New, content)
		was := s.before[msg.Files]
		if delete(s.before, msg.Files); err == nil && !was.Has(files) { // else clients may have them open
			was, err = callfs.New(files)
		}
		s.files[msg.Files] = was
		if err != nil {
			return err
		}
		s.sweep.Reset(dropTime)
	}
	delete(s.files, msg.Drop)
	delete(s.before, msg.Drop)
	conn.calls.Deliver(msg.ID, reply{s.files[msg.Files], msg.Late}) // false for a drop, which has no request
	return nil
}

// dropTime is how long the files of an ended call stay when no client sends a request.
const dropTime = time.Second

// drain handles the messages that the daemon has sent meanwhile, again and again until all files are dropped.
func (s *server) drain() {
	conn, err := s.Connected(time.Time{})
	if err != nil {
		return // follow goes on
	}
	select {
	case conn.reading <- struct{}{}:
	case <-conn.lost:
		return
	}
	defer func() { <-conn.reading }()
	for conn.pending() {
		if s.receive(conn) != nil {
			return
		}
	}
	if len(s.files)+len(s.before) > 0 {
		s.sweep.Reset(dropTime)
	} else {
		runtime.GC() // pools keep what a request had until the second collection: sync.Pool
		debug.FreeOSMemory()
	}
}

// pending reports whether the daemon has sent a message.
func (c *connection) pending() bool {
	n, _ := unix.Ppoll([]unix.PollFd{{Fd: int32(c.wire.Fd()), Events: unix.POLLIN}}, &unix.Timespec{}, nil)
	return n > 0 || c.in.Buffered()
}

// received returns the files of a message.
func received(entries []wire.Entry, content []byte) (map[string][]byte, error) {
	all := map[string][]byte{}
	for _, e := range entries {
		if e.Size < 0 || e.Size > len(content) {
			return nil, fmt.Errorf("%q has %d bytes of %d", e.Name, e.Size, len(content))
		}
		all[e.Name], content = content[:e.Size:e.Size], content[e.Size:]
	}
	return all, nil
}
