// Package desktop shows notifications of the desktop: org.freedesktop.Notifications, over D-Bus.
//
// It speaks the D-Bus protocol itself. The daemon of an ordinary user runs as 0 in a user namespace, and other clients
// authenticate as the user that they see themselves as, which the bus refuses. An empty identity is that of the socket's
// credentials (D-Bus Specification, EXTERNAL).
package desktop

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"
)

// limit bounds a notification: a bus that does not answer.
const limit = 2 * time.Second

// Notify shows a notification in place of the one with the id replaces, if that is shown; 0: beside others. address is that
// of the session bus. Some desktops read markup in the body: it must have no text of an agent.
func Notify(ctx context.Context, address string, replaces uint32, summary, body string) (id uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	path, err := socket(address)
	if err != nil {
		return 0, err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return 0, fmt.Errorf("session bus: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := bufio.NewReaderSize(conn, 1024)
	if err := authenticate(conn, in); err != nil {
		return 0, fmt.Errorf("session bus: %w", err)
	}
	const bus, notifications = "org.freedesktop.DBus", "org.freedesktop.Notifications"
	var args message
	args.text("scopefs")
	args.number(replaces)
	for _, s := range []string{"", summary, body} { // the icon is that of no program
		args.text(s)
	}
	args.number(0) // actions
	args.number(0) // hints: an empty array, and its padding
	args.align(8)
	args.number(0xffffffff) // the desktop's time
	calls := append(call(1, bus, "/org/freedesktop/DBus", "Hello", "", nil),
		call(2, notifications, "/org/freedesktop/Notifications", "Notify", "susssasa{sv}i", args)...)
	if _, err := conn.Write(calls); err != nil {
		return 0, fmt.Errorf("session bus: %w", err)
	}
	for {
		to, reply, failed, err := read(in)
		switch {
		case err != nil:
			return 0, fmt.Errorf("session bus: %w", cmp.Or(ctx.Err(), err))
		case failed && (to == 1 || to == 2):
			return 0, errors.New("session bus: no desktop shows notifications")
		case to == 2 && len(reply) >= 4:
			return binary.LittleEndian.Uint32(reply), nil
		}
	}
}

// socket returns the path of the first unix socket in an address; an abstract one begins with @.
func socket(address string) (string, error) {
	for one := range strings.SplitSeq(address, ";") {
		keys, ok := strings.CutPrefix(one, "unix:")
		if !ok {
			continue
		}
		for key := range strings.SplitSeq(keys, ",") {
			name, value, _ := strings.Cut(key, "=")
			path, err := url.PathUnescape(value)
			switch {
			case err != nil:
			case name == "path":
				return path, nil
			case name == "abstract":
				return "@" + path, nil
			}
		}
	}
	return "", fmt.Errorf("session bus: %q has no unix socket", address)
}

func authenticate(out io.Writer, in *bufio.Reader) error {
	for _, step := range []struct{ say, want string }{{"\x00AUTH EXTERNAL\r\n", "DATA"}, {"DATA\r\n", "OK "}, {"BEGIN\r\n", ""}} {
		if _, err := io.WriteString(out, step.say); err != nil {
			return err
		}
		if step.want == "" {
			break
		}
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if !strings.HasPrefix(string(line), step.want) {
			return errors.New("it does not take this user")
		}
	}
	return nil
}

// message is a part of a message, little-endian.
type message []byte

func (m *message) align(to int) {
	for len(*m)%to != 0 {
		*m = append(*m, 0)
	}
}

func (m *message) number(n uint32) {
	m.align(4)
	*m = binary.LittleEndian.AppendUint32(*m, n)
}

func (m *message) text(s string) {
	m.number(uint32(len(s)))
	*m = append(append(*m, s...), 0)
}

// call returns a method call, of the interface that is the destination.
func call(serial uint32, destination, path, member, signature string, body message) message {
	var fields message
	for _, f := range []struct {
		code  byte
		kind  byte
		value string
	}{{1, 'o', path}, {2, 's', destination}, {3, 's', member}, {6, 's', destination}, {8, 'g', signature}} {
		if f.value == "" {
			continue
		}
		fields.align(8)
		fields = append(fields, f.code, 1, f.kind, 0)
		if f.kind == 'g' {
			fields = append(append(append(fields, byte(len(f.value))), f.value...), 0)
		} else {
			fields.text(f.value)
		}
	}
	m := message{'l', 1, 0, 1}
	m.number(uint32(len(body)))
	m.number(serial)
	m.number(uint32(len(fields)))
	m = append(m, fields...)
	m.align(8)
	return append(m, body...)
}

// maxMessage bounds what the bus sends, in bytes.
const maxMessage = 64 << 10

var errMessage = errors.New("a message that is none")

// read reads a message: the serial that it answers, 0 if none, and whether with an error.
func read(in io.Reader) (to uint32, body []byte, failed bool, err error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, nil, false, err
	}
	size, length := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[12:])
	if head[0] != 'l' || size > maxMessage || length > maxMessage {
		return 0, nil, false, errMessage
	}
	padded := (length + 7) &^ 7
	rest := make([]byte, padded+size)
	if _, err := io.ReadFull(in, rest); err != nil {
		return 0, nil, false, err
	}
	const reply, failure = 2, 3
	if kind := head[1]; kind == reply || kind == failure {
		to = replyTo(rest[:length])
		failed = kind == failure
	}
	return to, rest[padded:], failed, nil
}

// replyTo returns REPLY_SERIAL of header fields; 0 if there is none.
func replyTo(fields []byte) uint32 {
	for at := 0; at+8 <= len(fields); at = (at + 7) &^ 7 {
		code, kind, value := fields[at], fields[at+2], at+4
		size := 4
		switch kind {
		case 'u':
			if code == 5 {
				return binary.LittleEndian.Uint32(fields[value:])
			}
		case 'g':
			size = 2 + int(fields[value])
		default: // a text
			size += int(binary.LittleEndian.Uint32(fields[value:])) + 1
		}
		if size < 0 || size > len(fields) {
			return 0
		}
		at = value + size
	}
	return 0
}
