package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

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
}

// Serve appends to a log for the process at the other end of conn, which called [Start]. It returns when that process
// closes the log or the connection ends.
func Serve(conn io.ReadWriter) error {
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
	for {
		var bodies []byte
		err := in.Read(&bodies)
		if err == io.EOF { // the other process has ended
			err = nil
		}
		if err != nil || len(bodies) == 0 {
			err = errors.Join(err, s.close())
			send(answerOf(0, err))
			return err
		}
		send(answerOf(s.append(bodies)))
	}
}

func answerOf(first uint64, err error) answer {
	if err != nil {
		return answer{Err: err.Error()}
	}
	return answer{First: first}
}

// Start is [Open] for a log that another process writes. That process calls [Serve] with the other end of the
// connection that start returns. A process in state D, such as one that writes to a frozen disk (fsfreeze(8)), cannot
// be killed. With Start the caller's process does not block there: Append returns [ErrTimeout] after
// [Options.Timeout], and Close returns. Start calls start again when the connection has ended. Closing the connection
// should end the other process.
func Start(start func() (io.ReadWriteCloser, error), dir string, opts Options) (*Log, error) {
	l := newLog(opts.complete())
	r := &remote{start: start, setup: setup{dir, l.opts}, notify: l.handleReport, hurry: l.hurry}
	if err := r.connect(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.disk = r
	go l.run()
	return l, nil
}

// remote is a log that another process writes. Only one goroutine at a time may use it.
type remote struct {
	start  func() (io.ReadWriteCloser, error)
	setup  setup
	notify func(report)
	hurry  chan struct{}

	conn    io.ReadWriteCloser // nil after it has ended
	out     *peer.Writer
	answers chan answer // closed after conn has ended
	waiting bool        // the answer to a group has not arrived
}

// These limit messages, in bytes. A group holds an event of each goroutine that waits.
const (
	maxGroup  = 1 << 30
	maxAnswer = 1 << 20
)

// openTime limits how long a process may take to open a log. It may have to read much of the log.
const openTime = time.Minute

// closeTime limits each append after Hurry, and the close.
const closeTime = 2500 * time.Millisecond

func (r *remote) connect() error {
	conn, err := r.start()
	if err != nil {
		return err
	}
	out := peer.NewWriter(conn, maxGroup, 0)
	first, err := json.Marshal(r.setup)
	if err == nil {
		err = out.Write(first)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	r.conn, r.out, r.answers = conn, out, make(chan answer, 1)
	go r.listen(conn, r.answers)
	r.waiting = true
	if _, err := r.wait(openTime); err != nil {
		r.drop()
		return err
	}
	return nil
}

// listen reads the messages of the other process until the connection ends.
func (r *remote) listen(conn io.Reader, answers chan<- answer) {
	defer close(answers)
	for in := peer.NewReader(conn, maxAnswer); ; {
		var text []byte
		var a answer
		if in.Read(&text) != nil || json.Unmarshal(text, &a) != nil {
			r.notify(report{Err: errProcess.Error()})
			return
		}
		if a.Report != nil {
			r.notify(*a.Report)
			continue
		}
		answers <- a // does not block: only one group is in flight
	}
}

var errProcess = errors.New("the process that writes the log has ended; another is started")

// wait returns the answer to the last group.
func (r *remote) wait(limit time.Duration) (uint64, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for hurry := r.hurry; ; {
		select {
		case a, ok := <-r.answers:
			r.waiting = false
			switch {
			case !ok:
				r.drop()
				return 0, errProcess
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

func (r *remote) drop() {
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn, r.waiting = nil, false
	}
}

func (r *remote) append(bodies []byte) (uint64, error) {
	select {
	case _, ok := <-r.answers:
		if r.waiting = false; !ok {
			r.drop()
		}
	default:
	}
	if r.conn == nil {
		if err := r.connect(); err != nil {
			return 0, err
		}
	}
	if r.waiting { // the answer to an earlier group, whose Append timed out
		return 0, ErrTimeout
	}
	if len(bodies) == 0 {
		return 0, nil
	}
	if err := r.out.Write(bodies); err != nil {
		r.drop()
		return 0, errProcess
	}
	r.waiting = true
	return r.wait(r.setup.Opts.Timeout)
}

// close asks the other process to close the log. It returns ErrTimeout if that process has not answered the last
// group.
func (r *remote) close() error {
	if r.conn == nil {
		return errProcess
	}
	defer r.drop()
	if r.waiting {
		return ErrTimeout
	}
	if err := r.out.Write(nil); err != nil {
		return errProcess
	}
	r.waiting = true
	_, err := r.wait(closeTime)
	return err
}
