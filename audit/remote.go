package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/descriptors"
	"github.com/scopefs/scopefs/internal/peer"
)

// ErrTimeout reports that the disk did not take the events within [Options.Timeout].
var ErrTimeout = errors.New("the disk of the log does not answer")

// A setup is the first message to the process that writes a log. Groups of events follow, a message each: their bodies.
// An empty message closes the log.
type setup struct {
	Dir  string  `json:"dir"`
	Opts Options `json:"opts"`
}

// An answer is a message from the writing process: its response to the setup, to a group or to the close, or a
// report.
type answer struct {
	Report *report `json:"report,omitempty"`
	First  uint64  `json:"first,omitempty"`
	Err    string  `json:"err,omitempty"`

	Refused string `json:"refused,omitempty"` // why a channel must not write the group
}

// Serve appends to a log for the process at the other end of conn, which called [Start]. It gets the ends of the channels
// of agents from control, and appends for each of them, too. It returns when that process closes the log or the connection ends.
func Serve(conn io.ReadWriter, control *os.File) error {
	in, out := peer.NewReader(conn, maxGroup), peer.NewWriter(conn, maxAnswer, 0)
	var first setup
	var text []byte
	err := in.Read(&text)
	if err == io.EOF { // the other process has ended, and needs no log
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, &first)
	}
	if err != nil {
		return fmt.Errorf("serve log: %w", err)
	}
	send := func(a answer) { // ignore errors: append the event even if the sender has exited
		if text, err := json.Marshal(a); err == nil {
			_ = out.Write(text)
		}
	}
	s, err := openStore(first.Dir, first.Opts, func(r report) { send(answer{Report: &r}) })
	send(answerOf(0, err))
	if err != nil {
		return fmt.Errorf("serve log: %w", err)
	}
	endChannels := serveChannels(control, s)
	for {
		var bodies []byte
		err := in.Read(&bodies)
		if err == io.EOF { // the other process has ended
			err = nil
		}
		if err != nil || len(bodies) == 0 {
			endChannels()
			err = errors.Join(err, s.close())
			send(answerOf(0, err))
			return err
		}
		send(answerOf(s.append(bodies)))
	}
}

func answerOf(first uint64, err error) answer {
	if refused, ok := errors.AsType[*refusal](err); ok {
		return answer{Refused: refused.why}
	}
	if err != nil {
		return answer{Err: err.Error()}
	}
	return answer{First: first}
}

// Process is a process that calls [Serve], with the other ends of Conn and Control.
type Process struct {
	Conn    io.ReadWriteCloser // closing it should end the process
	Control *os.File           // a socket of SOCK_SEQPACKET
}

// Start is [Open] for a log that another process writes. A process in state D, such as one that writes to a frozen disk
// (fsfreeze(8)), cannot be killed. With Start the caller's process does not block there: Append returns [ErrTimeout] after
// [Options.Timeout], and Close returns. Start calls start again when the connection has ended.
func Start(start func() (Process, error), dir string, opts Options) (*Log, error) {
	l := newLog(opts.complete())
	hello, err := json.Marshal(setup{dir, l.opts})
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	r := &remote{start: start}
	r.link = link{dial: r.open, hello: hello, max: maxGroup, timeout: l.opts.Timeout, notify: l.handleReport, hurry: l.hurry}
	if err := r.connect(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.disk, l.own.to = r, r
	go l.run()
	return l, nil
}

// remote is a log that another process writes. Only one goroutine at a time may use its link.
type remote struct {
	link
	start func() (Process, error)

	mu       sync.Mutex
	process  Process
	channels []io.Closer // ends of its channels
}

// open starts the process.
func (r *remote) open() (io.ReadWriteCloser, error) {
	p, err := r.start()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closeProcess()
	r.process = p
	return p.Conn, nil
}

// closeProcess closes what the last process had beside its connection. The caller holds mu.
func (r *remote) closeProcess() {
	for _, c := range r.channels {
		c.Close()
	}
	r.process.Control.Close() // of nil is an error and no more
	r.process, r.channels = Process{}, nil
}

// channel returns the way of an agent's events to the process.
func (r *remote) channel(agent string) appender {
	dial := func() (io.ReadWriteCloser, error) { return r.dialChannel(agent) }
	return &link{dial: dial, max: maxChannel, timeout: r.timeout, notify: func(report) {}, hurry: r.hurry}
}

// dialChannel gives the process one end of a channel, and returns the other.
func (r *remote) dialChannel(agent string) (io.ReadWriteCloser, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process.Control == nil {
		return nil, errProcess
	}
	ours, theirs, err := descriptors.Pair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	fds, err := descriptors.Numbers(theirs)
	if err == nil {
		_ = r.process.Control.SetWriteDeadline(time.Now().Add(writeTime))
		err = descriptors.Write(r.process.Control, []byte(agent), fds...)
	}
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("%w (%w)", errProcess, err)
	}
	r.channels = append(r.channels, ours)
	return ours, nil
}

// close asks the process to close the log, and ends the connections to it. It returns ErrTimeout if the process has not
// answered the last group.
func (r *remote) close() error {
	defer func() {
		r.drop()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closeProcess()
	}()
	switch {
	case r.conn == nil:
		return errProcess
	case r.waiting:
		return ErrTimeout
	}
	if err := r.out.Write(nil); err != nil {
		return errProcess
	}
	r.waiting = true
	_, err := r.wait(closeTime)
	return err
}

// link is a connection to the process that writes the log. Only one goroutine at a time may use it.
type link struct {
	dial    func() (io.ReadWriteCloser, error)
	hello   []byte // the first message, which the process answers; nil: there is none
	max     int    // bytes of a message
	timeout time.Duration
	notify  func(report)
	hurry   chan struct{}

	conn    io.ReadWriteCloser // nil after it has ended
	out     *peer.Writer
	answers chan answer // closed after conn has ended
	waiting bool        // the answer to a group has not arrived
}

// These limit messages, in bytes. A group holds an event of each goroutine that waits.
const (
	maxGroup   = 1 << 30
	maxChannel = 256 << 10 // of an agent: the log's lock is held for as long as that takes
	maxAnswer  = 1 << 20
)

// writeTime limits how long the other end may take to read a message.
const writeTime = 5 * time.Second

// openTime limits how long a process may take to open a log. It may have to read much of the log.
const openTime = time.Minute

// closeTime limits each append after Hurry, and the close.
const closeTime = 2500 * time.Millisecond

func (k *link) connect() error {
	conn, err := k.dial()
	if err != nil {
		return err
	}
	k.conn, k.out, k.answers = conn, peer.NewWriter(conn, k.max, writeTime), make(chan answer, 1)
	go k.listen(conn, k.answers)
	if k.hello == nil {
		return nil
	}
	if err = k.out.Write(k.hello); err == nil {
		k.waiting = true
		_, err = k.wait(openTime)
	}
	if err != nil {
		k.drop()
	}
	return err
}

// listen reads the messages of the other process until the connection ends.
func (k *link) listen(conn io.Reader, answers chan<- answer) {
	defer close(answers)
	for in := peer.NewReader(conn, maxAnswer); ; {
		var text []byte
		var a answer
		if in.Read(&text) != nil || json.Unmarshal(text, &a) != nil {
			k.notify(report{Err: errProcess.Error()})
			return
		}
		if a.Report != nil {
			k.notify(*a.Report)
			continue
		}
		answers <- a // does not block: only one group is in flight
	}
}

var errProcess = errors.New("the process that writes the log has ended; another is started")

// wait returns the answer to the last group.
func (k *link) wait(limit time.Duration) (uint64, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for hurry := k.hurry; ; {
		select {
		case a, ok := <-k.answers:
			k.waiting = false
			switch {
			case !ok:
				k.drop()
				return 0, errProcess
			case a.Refused != "":
				return 0, &refusal{a.Refused}
			case a.Err != "":
				return 0, errors.New(a.Err)
			}
			return a.First, nil
		case <-timer.C:
			return 0, ErrTimeout
		case <-hurry:
			hurry = nil
			timer.Reset(min(limit, closeTime))
		}
	}
}

func (k *link) drop() {
	if k.conn != nil {
		_ = k.conn.Close()
		k.conn, k.waiting = nil, false
	}
}

func (k *link) append(bodies []byte) (uint64, error) {
	select {
	case _, ok := <-k.answers:
		if k.waiting = false; !ok {
			k.drop()
		}
	default:
	}
	if k.conn == nil {
		if err := k.connect(); err != nil {
			return 0, err
		}
	}
	if k.waiting { // the answer to an earlier group, whose Append timed out
		return 0, ErrTimeout
	}
	if len(bodies) == 0 {
		return 0, nil
	}
	if err := k.out.Write(bodies); err != nil {
		k.drop()
		return 0, errProcess
	}
	k.waiting = true
	return k.wait(k.timeout)
}
