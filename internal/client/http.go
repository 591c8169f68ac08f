package client

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
)

// Answer is the body of an answer. A body that ends too early is an io.ErrUnexpectedEOF.
type Answer struct {
	r    *bufio.Reader
	left int64 // of the body, or of the chunk
	in   form
	last bool // the last chunk was read
}

// form is how the end of a body is known: RFC 9112, section 6.3.
type form int

const (
	sized form = iota
	chunked
	untilEOF
)

// roundTrip sends a request, and reads the head of the answer. It is HTTP/1.1 as the daemon speaks it: net/http would cost each start of
// a command a millisecond.
func roundTrip(conn net.Conn, method, path string, in any) (*Answer, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: scopefs\r\nContent-Length: %d\r\n\r\n", method, path, len(text))
	if _, err := conn.Write(append([]byte(head), text...)); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	head, err = textproto.NewReader(r).ReadLine()
	if err != nil {
		return nil, err
	}
	version, status, _ := strings.Cut(head, " ")
	code, err := strconv.Atoi(status[:min(3, len(status))])
	if err != nil || !strings.HasPrefix(version, "HTTP/1.") {
		return nil, fmt.Errorf("daemon: %q is no answer", head)
	}
	header, err := textproto.NewReader(r).ReadMIMEHeader()
	if err != nil {
		return nil, err
	}
	a := &Answer{r: r, in: untilEOF}
	switch length := header.Get("Content-Length"); {
	case code == 101:
		a.in, a.left = sized, 0
	case header.Get("Transfer-Encoding") == "chunked":
		a.in = chunked
	case length != "":
		if a.in = sized; true {
			a.left, err = strconv.ParseInt(length, 10, 64)
		}
	}
	if err == nil && code >= 400 {
		err = a.error(status)
	}
	return a, err
}

// error returns the error that the answer is.
func (a *Answer) error(status string) error {
	e := &Error{}
	if err := json.NewDecoder(io.LimitReader(a, MaxRequest)).Decode(e); err != nil || e.Text == "" {
		return fmt.Errorf("daemon: %s", status)
	}
	return e
}

// Waiting reports whether more was read than the answer.
func (a *Answer) Waiting() bool { return a.r.Buffered() > 0 }

func (a *Answer) Read(p []byte) (int, error) {
	if a.in == untilEOF {
		return a.r.Read(p)
	}
	if a.in == chunked && a.left == 0 && !a.last {
		if err := a.chunk(); err != nil {
			return 0, early(err)
		}
	}
	if a.left == 0 {
		return 0, io.EOF
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	if err == nil && a.left == 0 && a.in == chunked {
		_, err = a.r.Discard(len("\r\n"))
	}
	return n, early(err)
}

// chunk reads the head of the next chunk: RFC 9112, section 7.1. The daemon sends no trailers.
func (a *Answer) chunk() error {
	line, err := a.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(strings.TrimRight(string(line), "\r\n"), ";")
	if a.left, err = strconv.ParseInt(size, 16, 64); err != nil || a.left < 0 {
		return errors.New("daemon: a chunk without a size")
	}
	if a.last = a.left == 0; a.last {
		_, err = a.r.Discard(len("\r\n"))
	}
	return err
}

// early returns the error of a body that has not ended.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
