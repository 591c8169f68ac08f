// Package linecheck bounds what a server of a line protocol (NATS, RESP) may send.
package linecheck

import "bytes"

// A Checker follows a stream of lines. A line can announce that bytes follow it. Set Max and
// Line.
type Checker struct {
	Max  int                                     // bytes of a line, without its line feed
	Line func(line []byte) (follow int, ok bool) // gets a line without its line break, returns how many bytes follow

	line []byte // the beginning of one
	skip int    // bytes that are no line
}

// Next reports whether b may be the next bytes.
func (c *Checker) Next(b []byte) bool {
	for len(b) > 0 {
		if k := min(c.skip, len(b)); k > 0 {
			c.skip, b = c.skip-k, b[k:]
			continue
		}
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if c.line = append(c.line, line...); len(c.line) > c.Max {
			return false
		}
		if whole {
			follow, ok := c.Line(bytes.TrimSuffix(c.line, []byte("\r")))
			if !ok {
				return false
			}
			c.line, c.skip = c.line[:0], follow
		}
		b = rest
	}
	return true
}
