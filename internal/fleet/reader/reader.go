// Package reader reads what the nodes of a fleet have published: for the commands of an operator, and for the web page. What it
// returns is anybody's text.
package reader

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet/wire"
	"github.com/scopefs/scopefs/internal/streams"
)

// Server is the process that speaks to the fleet's server for one reader.
type Server struct{ *driver.Process }

// startTime bounds how long the process may take to confine itself.
const startTime = 30 * time.Second

// Open starts the process for the server of a fleet. It has no file, and the connections that this process makes for it.
func Open(ctx context.Context, f config.Fleet, stderr io.Writer) (*Server, error) {
	to := f.Stream()
	binary, err := driver.OpenBinary(driver.Export, "")
	if err != nil {
		return nil, err
	}
	process, err := binary.Start(nil, driver.Grants{
		Dial: func(ctx context.Context, _ driver.Server) (net.Conn, error) { return streams.Dial(ctx, to) },
		Secret: func(ctx context.Context, _ string) (credential.Secret, error) {
			if to.Credential == nil {
				return credential.Secret{}, errors.New("the fleet has no credential")
			}
			return to.Credential.Read(ctx)
		},
	}, stderr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	means, err := wire.Operate.Call(ctx, process.Conn, to)
	if err == nil && len(means) == 0 {
		err = errors.New(driver.Export + " is not confined: install it with this scopefs")
	}
	if err != nil {
		process.Kill()
		return nil, err
	}
	return &Server{process}, nil
}

// Nodes returns all nodes, by name.
func (s *Server) Nodes(ctx context.Context) (all []wire.SeenNode, err error) {
	for after := (wire.After{}); ; {
		page, err := wire.Nodes.Call(ctx, s.Conn, after)
		if err != nil {
			return nil, err
		}
		if all = append(all, page.Nodes...); page.More == "" {
			return all, nil
		}
		after.Key = page.More
	}
}

// Waits returns all requests, by node.
func (s *Server) Waits(ctx context.Context) (all []wire.SeenWait, err error) {
	for after := (wire.After{}); ; {
		page, err := wire.Waits.Call(ctx, s.Conn, after)
		if err != nil {
			return nil, err
		}
		if all = append(all, page.Waits...); page.More == "" {
			return all, nil
		}
		after.Key = page.More
	}
}

// silentTime is how long a node may say nothing: three beats.
const silentTime = 10 * time.Second

// maxFailed limits the agents of a node that a summary names.
const maxFailed = 8

// Sum returns what a node says of itself in short.
func Sum(n wire.SeenNode, now time.Time) api.FleetNode {
	sum := api.FleetNode{
		Name: n.Name, Version: n.Version, Heard: n.Heard, Silent: now.Sub(n.Heard) > silentTime, Agents: len(n.Agents) + n.More, Waits: n.Waits,
	}
	for _, a := range n.Agents {
		sum.Sessions += len(a.Sessions)
		switch {
		case a.State == api.Mounted:
			sum.Mounted++
		case a.Error != "" && len(sum.Failed) < maxFailed:
			sum.Failed = append(sum.Failed, api.FleetAgent{ID: a.ID, State: a.State, Error: a.Error})
		}
	}
	return sum
}

// Defined returns what the server has of definitions, by name.
func (s *Server) Defined(ctx context.Context) (all []wire.SeenDefinition, err error) {
	for after := (wire.After{}); ; {
		page, err := wire.Defined.Call(ctx, s.Conn, after)
		if err != nil {
			return nil, err
		}
		if all = append(all, page.Definitions...); page.More == "" {
			return all, nil
		}
		after.Key = page.More
	}
}
