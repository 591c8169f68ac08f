package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"
)

// ErrTimeout is the error of events that the disk did not take within [Options.Timeout].
var ErrTimeout = errors.New("the disk of the log does not answer")

// A setup is the first message to the process that writes a log. Groups follow: their length in bytes, a line, then
// their bodies. A length of 0 closes the log.
type setup struct {
	Dir  string  `json:"dir"`
	Opts Options `json:"opts"`
}

// An answer is a message from that process: to the setup, to a group, to the end, or a report.
type answer struct {
	Report *report `json:"report,omitempty"`
	First  uint64  `json:"first,omitempty"`
	Err    string  `json:"err,omitempty"`
}

// Serve appends to a log for the process at the other end of conn, which has called [Start]. It returns when that
// process has closed the log or is gone.
func Serve(conn io.ReadWriter) error {
	in, out := bufio.NewReader(conn), json.NewEncoder(conn)
	var first setup
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &first)
	}
	if err != nil {
		return fmt.Errorf("serve log: %w", err)
	}
	var sending sync.Mutex
	send := func(a answer) { // an event is appended even when its sender has died
		sending.Lock()
		defer sending.Unlock()
		_ = out.Encode(a)
	}
	s, err := openStore(first.Dir, first.Opts, func(r report) { send(answer{Report: &r}) })
	send(answerOf(0, err))
	if err != nil {
		return fmt.Errorf("serve log: %w", err)
	}
	for {
		bodies, err := readGroup(in)
		if err != nil || bodies == nil {
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

// readGroup returns the next group; nil when the other process is done.
func readGroup(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadString('\n')
	if err == io.EOF {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(line[:len(line)-1])
	if err != nil || n == 0 {
		return nil, err
	}
	bodies := make([]byte, n)
	if _, err := io.ReadFull(in, bodies); err != nil {
		return nil, err
	}
	return bodies, nil
}

// Start is [Open] for a log that another process writes: one that calls [Serve] with the other end of the connection that
// start returns. A process that waits for a frozen disk cannot be killed (fsfreeze(8) leaves it in state D); with Start
// that is not the caller's process, whose Append returns [ErrTimeout] after [Options.Timeout] and whose Close returns. Start
// calls start again when the connection has ended; closing the connection should end the process.
func Start(start func() (io.ReadWriteCloser, error), dir string, opts Options) (*Log, error) {
	l := newLog(opts.complete())
	r := &remote{start: start, setup: setup{dir, l.opts}, tell: l.hear, hurry: l.hurry}
	if err := r.connect(); err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	l.disk = r
	go l.run()
	return l, nil
}

// remote is a log that another process writes. It is used by one goroutine at a time.
type remote struct {
	start func() (io.ReadWriteCloser, error)
	setup setup
	tell  func(report)
	hurry chan struct{}

	conn    io.ReadWriteCloser // nil: it has ended
	answers chan answer        // closed when conn has ended
	waiting bool               // the answer to a group has not come
	buf     []byte
}

// openTime is how long a process may take to open a log: it may have to read much of it.
const openTime = time.Minute

// closeTime is how long appends may take once the log is about to be closed.
const closeTime = 2500 * time.Millisecond

func (r *remote) connect() error {
	conn, err := r.start()
	if err != nil {
		return err
	}
	first, err := json.Marshal(r.setup)
	if err == nil {
		_, err = conn.Write(append(first, '\n'))
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	r.conn, r.answers = conn, make(chan answer, 1)
	go r.listen(conn, r.answers)
	r.waiting = true
	if _, err := r.wait(openTime); err != nil {
		r.drop()
		return err
	}
	return nil
}

// listen takes the messages of the other process until it ends.
func (r *remote) listen(conn io.Reader, answers chan<- answer) {
	defer close(answers)
	for lines := json.NewDecoder(conn); ; {
		var a answer
		if lines.Decode(&a) != nil {
			r.tell(report{Err: errProcess.Error()})
			return
		}
		if a.Report != nil {
			r.tell(*a.Report)
			continue
		}
		answers <- a // there is room: one group is on its way at a time
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
	if r.waiting { // for the answer to a group whose events were refused
		return 0, ErrTimeout
	}
	if len(bodies) == 0 {
		return 0, nil
	}
	r.buf = strconv.AppendInt(r.buf[:0], int64(len(bodies)), 10)
	r.buf = append(append(r.buf, '\n'), bodies...)
	if _, err := r.conn.Write(r.buf); err != nil {
		r.drop()
		return 0, errProcess
	}
	r.waiting = true
	return r.wait(r.setup.Opts.Timeout)
}

// close has the other process close the log, unless that does not answer.
func (r *remote) close() error {
	if r.conn == nil {
		return errProcess
	}
	defer r.drop()
	if r.waiting {
		return ErrTimeout
	}
	if _, err := r.conn.Write([]byte("0\n")); err != nil {
		return errProcess
	}
	r.waiting = true
	_, err := r.wait(closeTime)
	return err
}
