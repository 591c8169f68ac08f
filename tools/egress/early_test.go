package egress

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/scope/network"
)

// earlyHost is a host that reads the head of a request, answers 413, and ends the connection with the body unread: the
// kernel then resets it.
func earlyHost(t *testing.T, name string, secure bool) network.HostRule {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	rule := network.HostRule{Host: name, Address: netip.MustParseAddrPort(listener.Addr().String()), CA: authorityPEM(t)}
	if secure {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate(t, name, time.Hour)}})
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					fmt.Fprint(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\nConnection: close\r\n\r\ntoo large")
				}
			}()
		}
	}()
	return rule
}

// TestEarlyAnswer: the answer of a host that does not read the body reaches the client, which may send all of its body
// before it reads. What the client still sends does not reset its connection.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	const body = 8 << 20
	plain, secure, tunnel := earlyHost(t, "plain.example", false), earlyHost(t, "good.example", true), earlyHost(t, "raw.example", true)
	secure.Intercept = true
	l, roots := intercepting(t, []network.HostRule{plain, secure, tunnel}, nil)
	for name, open := range map[string]func() (net.Conn, string){
		"plain HTTP": func() (net.Conn, string) { return l.dial(t), "http://plain.example/" },
		"TLS":        func() (net.Conn, string) { return l.tls(t, "good.example", roots), "/" },
		"tunnel": func() (net.Conn, string) {
			return l.tls(t, "raw.example", &tls.Config{RootCAs: authorityPool()}), "/"
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 20 {
				c, target := open()
				_, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", target, map[string]string{
					"plain HTTP": "plain.example", "TLS": "good.example", "tunnel": "raw.example"}[name], body)
				require.NoError(t, err)
				wrote := make(chan error, 1)
				go func() {
					_, err := c.Write(make([]byte, body))
					wrote <- err
				}()
				if i%2 == 0 {
					assert.NoError(t, <-wrote, "%d: the body is sent first", i)
				}
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				require.NoError(t, err, "%d", i)
				text, err := io.ReadAll(res.Body)
				assert.NoError(t, err)
				assert.Equal(t, "413 too large", fmt.Sprint(res.StatusCode, " ", string(text)), "%d", i)
				c.Close()
			}
		})
	}
}
