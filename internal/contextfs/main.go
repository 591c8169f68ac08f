// Package contextfs is the process that serves the /context of one sandbox, and the daemon's end of it.
//
// The process parses the FUSE requests of an agent's processes. It runs as the agent's user, and confines itself before it
// reads the first one: it has three descriptors and no other file, no network, no capability. For each request it asks the
// daemon whose thread has sent it. The daemon answers with the files of a call of this sandbox, or with none; it sends their
// content the first time. When the call ends, the process drops them.
//
// A process that dies or does not answer is not replaced: its sandbox has no /context from then on, and a client gets an
// error within seconds. The process exits when the daemon does.
package contextfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/fs/callfs"
	"github.com/scopefs/scopefs/internal/heart"
	"github.com/scopefs/scopefs/internal/peer"
	"github.com/scopefs/scopefs/internal/view"
)

// Name is the argv[0] of the process.
const Name = "scopefs-context"

// The descriptors that the daemon passes to the process.
const (
	fuseFD  = 3 + iota // /dev/fuse, mounted
	wireFD             // socket pair to the daemon
	heartFD            // non-blocking socket pair to the daemon: see heart.Heart
)

// Main runs the process and returns its exit status.
func Main() int {
	conn := os.NewFile(wireFD, "daemon")
	s := &server{
		in: peer.NewReader(conn, maxToServer), out: peer.NewWriter(conn, maxFromServer, 0),
		calls: peer.NewRequests[reply](0), reading: make(chan struct{}, 1), files: map[uint64]*callfs.Files{},
	}
	s.sweep = time.AfterFunc(dropTime, s.drain)
	s.sweep.Stop()
	if err := s.run(); err != nil {
		_ = send(s.out, fromServer{Failed: err.Error()}, nil)
		return 1
	}
	return 0
}

// server is the process.
type server struct {
	in    *peer.Reader
	out   *peer.Writer
	calls *peer.Requests[reply]

	reading chan struct{}            // has a value while a goroutine reads the daemon's messages
	files   map[uint64]*callfs.Files // by the daemon's id; of the goroutine that reads
	sweep   *time.Timer              // for drain
}

// reply is the daemon's answer to a request.
type reply struct {
	files *callfs.Files
	late  bool
}

func (s *server) run() error {
	var first toServer
	if _, err := receive(s.in, &first); err != nil || first.Config == nil {
		return fmt.Errorf("receive configuration: %w", err)
	}
	measures, err := view.ConfineServer()
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	debug.FreeOSMemory() // memory used only during the start
	go func() {
		heart.NewHeart(os.NewFile(heartFD, "heart")).Serve(func() {}) // until the daemon ends
		os.Exit(0)
	}()
	if err := send(s.out, fromServer{Ready: measures}, nil); err != nil {
		return err
	}
	return callfs.Serve(fuseFD, callfs.Options{
		UID: first.Config.UID, GID: first.Config.GID, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Owner: func(tid uint32) (*callfs.Files, error) {
			r, err := s.ask(fromServer{TID: tid})
			if err == nil && r.late {
				err = errors.New("the daemon does not answer")
			}
			return r.files, err
		},
		Refused: func(tid uint32) { _, _ = s.ask(fromServer{TID: tid, Refused: true}) },
	})
}

// ask sends a request and returns its answer, which the daemon bounds. One of the goroutines that wait reads the daemon's
// messages for all: with one client no other thread has to wake.
func (s *server) ask(msg fromServer) (reply, error) {
	call, err := s.calls.Begin(context.Background())
	if err != nil {
		return reply{}, err
	}
	defer call.End()
	msg.ID = call.ID
	if err := send(s.out, msg, nil); err != nil {
		return reply{}, err
	}
	for {
		select {
		case r := <-call.Reply:
			return r, nil
		case s.reading <- struct{}{}:
		}
		var r reply
		answered := true
		select {
		case r = <-call.Reply: // the goroutine that read before has it
		default:
			answered = false
			err = s.receive()
		}
		<-s.reading
		if answered || err != nil {
			return r, err
		}
	}
}

// receive handles one message of the daemon.
func (s *server) receive() error {
	var msg toServer
	content, err := receive(s.in, &msg)
	if err != nil {
		return err
	}
	if msg.New != nil {
		if s.files[msg.Files], err = filesOf(msg.New, content); err != nil {
			return err
		}
		s.sweep.Reset(dropTime)
	}
	delete(s.files, msg.Drop)
	s.calls.Deliver(msg.ID, reply{s.files[msg.Files], msg.Late}) // false for a drop, which has no request
	return nil
}

// dropTime is how long the files of an ended call stay when no client sends a request.
const dropTime = time.Second

// drain handles the messages that the daemon has sent meanwhile, again and again until all files are dropped.
func (s *server) drain() {
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	for s.pending() {
		if s.receive() != nil {
			return
		}
	}
	if len(s.files) > 0 {
		s.sweep.Reset(dropTime)
	} else {
		runtime.GC() // pools keep what a request had until the second collection: sync.Pool
		debug.FreeOSMemory()
	}
}

// pending reports whether the daemon has sent a message.
func (s *server) pending() bool {
	n, _ := unix.Ppoll([]unix.PollFd{{Fd: wireFD, Events: unix.POLLIN}}, &unix.Timespec{}, nil)
	return n > 0 || s.in.Buffered()
}

// filesOf returns the files of a message.
func filesOf(entries []entry, content []byte) (*callfs.Files, error) {
	all := map[string][]byte{}
	for _, e := range entries {
		if e.Size < 0 || e.Size > len(content) {
			return nil, fmt.Errorf("%q has %d bytes of %d", e.Name, e.Size, len(content))
		}
		all[e.Name], content = content[:e.Size:e.Size], content[e.Size:]
	}
	return callfs.New(all)
}
