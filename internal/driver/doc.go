// Package driver is the protocol between the daemon and a program of ours that drives servers: scopefs-stores,
// and scopefs-export. Both ends make requests on one connection: the daemon calls drivers, and a
// driver gets its credential and its connections from the daemon.
//
// A frame has two parts: the head as JSON, and the value of a call or its result as JSON. Frames,
// calls in flight and waits are bounded. An end that breaks the protocol loses the connection.
//
// A [Method] is declared once for both ends, with the types of its value and its result.
package driver

import (
	"context"
	"net"

	"github.com/scopefs/scopefs/internal/child"
	"github.com/scopefs/scopefs/internal/credential"
)

// The names of the programs, and their argv[0].
const (
	Name   = child.Stores
	Export = child.Export
)

// The descriptors of the program beside its standard streams.
const (
	socketFD = 3 + iota // the connection, a stream
	connFD              // connections to servers, a sequenced-packet socket; see Pass
	heartFD             // the heartbeat
)

// A Reach is what a driver has of the world beside its files.
type Reach struct {
	// Dial connects to the driver's server. The daemon decides which addresses that may be.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Secret reads the driver's credential; nil: it has none.
	Secret func(context.Context) (credential.Secret, error)
}
