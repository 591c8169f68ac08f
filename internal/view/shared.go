package view

import (
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
)

// findBelow finds which file system the agent's directory is on. One that cannot be found counts as shared: its view is
// slower, and shows nothing stale.
func (v *View) findBelow(root *beneath.Root) {
	below, err := v.host.Mounts.FileSystem(root.FD())
	if err != nil {
		v.host.Logger.Warn("the view caches nothing", "agent", v.def.Name, "err", err)
		below = mount.FileSystem{Type: "an unknown file system", Shared: true}
	}
	v.mu.Lock()
	v.below = below
	v.mu.Unlock()
	if s := v.sharing(); s != nil && s.Stale {
		v.host.Logger.Warn("view: cache: what other hosts change is stale for a minute: remove cache: coherent",
			"agent", v.def.Name, "type", s.Type)
	}
}

// sharing returns how the view serves a directory that other hosts may change; nil for one that they do not.
// findBelow alone changes what it reads, before the view has a state that others read.
func (v *View) sharing() *api.Shared {
	if !v.below.Shared {
		return nil
	}
	return &api.Shared{Type: v.below.Type, Stale: v.def.View.Cache == agents.CacheCoherent}
}

// cached reports whether the kernel may cache names and attributes: of a local file system, whose changes fanotify(7)
// reports, unless the definition chooses.
func (v *View) cached() bool {
	s := v.sharing()
	return v.def.View.Cache != agents.CacheNone && (s == nil || s.Stale)
}

// Watches reports whether the view learns of each change by the host: programs that wait for inotify(7) in a sandbox see it then.
func (v *View) Watches() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.late == "" && v.def.View.Cache != agents.CacheNone && !v.below.Shared
}

// sharedNote is for the log: how the view serves a shared directory.
func (v *View) sharedNote() string {
	if s := v.sharing(); s != nil {
		return "; " + s.String()
	}
	return ""
}
