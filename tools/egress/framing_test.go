package egress

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestFraming: requests that two servers could read differently are refused,
// however the bytes arrive.
func TestFraming(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for text, ok := range map[string]bool{
		get: true, get + get: true,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nGET" + get:                                    true,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n" + get: true,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n" + get:                                       true,
		"POST / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc" + get:                    true,
		"POST / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nContent-Length: 3\r\n\r\nabc":                    false,
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n\x16\x03\x01\n\n":                                       true,
		"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n":                                                           true,
		"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n\x81\n":                                       true,
		"GET http://a/x?y HTTP/1.1\r\nHost: A.\r\n\r\n":                                                       true,
		"GET http://[::1]:80/ HTTP/1.1\r\nHost: [::1]\r\n\r\n":                                                true,

		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n":          false,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n":                   false,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n":                                       false,
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\n":                                     false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n": false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n":                         false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n":                              false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n":                              false,
		"POST / HTTP/1.1\r\nHost: a\r\n Transfer-Encoding: chunked\r\n\r\n":                              false,
		"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n":                               false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n":               false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef":                    true, // not over yet
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n":                false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n":                     false,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\n":                         false,
		"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n":                                                   false,
		"GET / HTTP/1.1\r\n\r\n":                                                       false,
		"GET / HTTP/1.1\nHost: a\n\n":                                                  false,
		"GET  / HTTP/1.1\r\nHost: a\r\n\r\n":                                           false,
		"\r\n" + get:                                                                   false,
		"PRI * HTTP/2.0\r\n\r\n":                                                       false,
		"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n":                                    false,
		"GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n":                                  false,
		"GET http://a:80/ HTTP/1.1\r\nHost: a:81\r\n\r\n":                              false,
		"CONNECT a:443 HTTP/1.1\r\nHost: b:443\r\n\r\n":                                false,
		"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 9\r\n\r\n":           false,
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", maxHead) + "\r\n\r\n": false,
		"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", maxHead+2):            false,
	} {
		for _, step := range []int{1, 7, len(text)} {
			var f framing
			var wrong *refusal
			for rest := text; rest != "" && wrong == nil; {
				n := min(step, len(rest))
				wrong = f.follow([]byte(rest[:n]))
				rest = rest[n:]
			}
			assert.Equal(t, ok, wrong == nil, "%.80q by %d: %v", text, step, wrong)
		}
	}
}

func FuzzFraming(f *testing.F) {
	f.Add("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	f.Add("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		var whole, single framing
		a := whole.follow([]byte(text))
		var b *refusal
		for i := 0; i < len(text) && b == nil; i++ {
			b = single.follow([]byte{text[i]})
		}
		assert.Equal(t, a == nil, b == nil)
		if a == nil {
			assert.Equal(t, whole.part, single.part)
			assert.Equal(t, whole.left, single.left)
		}
	})
}
