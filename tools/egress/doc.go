// Package egress opens network connections on behalf of agents.
//
// A [Dialer] resolves a name once, checks every address that it got, and dials
// only addresses that passed. A name whose answer changes between the check and
// the connection (DNS rebinding) therefore gains nothing, and no name of the
// outside leads to an address of the inside.
//
// A [Proxy] serves the listening socket of one sandbox, which has no other
// network. It speaks SOCKS5 (RFC 1928: CONNECT alone, without authentication) and
// HTTP/1.1 (RFC 9112: CONNECT, and requests for http with an absolute URL). For
// each connection and request it resolves the host, decides by [Rules], records,
// and then connects:
//
//   - A host without further rules gets a tunnel: bytes pass unchanged, through
//     splice(2). The server name of a TLS client must be the host's. Plain HTTP in
//     a tunnel is decided request by request.
//   - A host with methods, paths or a credential is intercepted: the proxy is the
//     other end of the client's TLS, with a certificate for that host alone that a
//     [CA] of the daemon has signed. It is also a client of the host, and checks
//     the host's certificate. Requests are decided one by one, in HTTP/1.1 and HTTP/2. Bodies,
//     events, interim responses (100, 103) and WebSocket pass at once. An answer reaches
//     a client that still sends its body, also when the host has gone.
//   - Requests that two servers could read differently are refused: two lengths,
//     a Host other than the URL's, bare line feeds, folded lines.
//   - What is refused is answered at once, with status 403 and a JSON object with
//     the keys error, rule and remedy: for port 443 inside TLS, if the proxy has a
//     CA. Otherwise a refused SOCKS5 connection gets reply 2.
//
// With an [Upstream] connections go out by a company's proxy, which gets names alone.
//
// A proxy has two halves: one reads and writes bytes, the other decides, records, connects and has the credentials ([Secret]). [New]
// makes both. With [NewRemote] the second is a [Monitor] in another process, the daemon: so what parses the bytes of sandboxes and hosts
// has no rule, no name server, no network and no key.
//
// On a port other than 80 and 443 the proxy waits half a second for a client to
// speak first. If it does not, bytes pass without a look at what they are.
package egress
