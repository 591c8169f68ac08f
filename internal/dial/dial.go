// Package dial connects to servers that the operator has named: the receiver of a stream, a witness, the issuer of a login,
// a remote MCP server, Redis. No agent chooses such an address, and no rule of an agent decides about it. What an agent chooses goes
// through package egress.
package dial

import (
	"context"
	"net"
	"time"
)

// Time bounds a connection, resolution included.
const Time = 10 * time.Second

// Context connects to an address, within [Time]. It ignores proxy variables.
func Context(ctx context.Context, network, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: Time}).DialContext(ctx, network, address)
}
