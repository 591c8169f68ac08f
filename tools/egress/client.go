package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// ClientLimits bound the client of one server.
type ClientLimits struct {
	Header   int64         // bytes of a response's headers
	Response time.Duration // from a request to the headers of its response; 0: the request's context
	HTTP2    bool          // otherwise HTTP/1.1 alone: a stream of one request cannot disturb another's
}

// NewTransport returns the transport for requests of ours to a server that the operator
// has named: TLS 1.2 or later, no proxy of the environment, which would see credentials,
// bounded waits, headers and idle connections. dial decides by the address it connects to.
func NewTransport(dial func(ctx context.Context, network, address string) (net.Conn, error), l ClientLimits) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(l.HTTP2)
	return &http.Transport{
		DialContext: dial, Proxy: nil, Protocols: protocols,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: l.Response, MaxResponseHeaderBytes: l.Header, MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
	}
}

// NewClient returns a client that follows no redirect: credentials are for one server.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}
