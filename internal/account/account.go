// Package account is what an agent is on the host: the user with which its processes run, its directory, its HOME and
// its mount point.
package account

import (
	"log/slog"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
)

// Host is what the accounts of all agents of a daemon have in common.
type Host struct {
	Paths   config.Paths
	Root    bool     // the daemon is root of the host
	Private bool     // the mounts are in a namespace of the daemon's own
	Expose  []string // what sandboxes show to every agent
	Mounts  mount.Table
	Logger  *slog.Logger

	// Definitions returns the definitions that are loaded, which nobody changes. It takes no lock.
	Definitions func() map[scope.ID]*agents.Agent
}
