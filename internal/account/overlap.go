package account

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// apart returns an error if the directory of a dir: holds what agents must not change, or
// is in it: the base with its definitions, the state, the sockets, what sandboxes show,
// the scopes of other agents. Two agents may have the same dir. It compares places in
// file systems, so that neither a link nor a bind mount hides one.
func (h *Host) apart(def *agents.Definition, root *beneath.Root) error {
	all, err := h.Mounts.Read()
	if err != nil {
		return err
	}
	place, err := mount.PlaceOf(all, root.FD())
	if err != nil {
		return fmt.Errorf("dir: %w", err)
	}
	own, err := h.ownPlaces(all)
	for _, name := range h.Expose {
		o, e := placed(all, name, "what expose shows to every agent")
		own, err = append(own, o), errors.Join(err, e)
	}
	if err != nil {
		return fmt.Errorf("dir: %w", err)
	}
	for _, o := range own {
		if o.meets(place) {
			return fmt.Errorf("dir: %q and %q hold one another: choose a directory apart from %s", def.Dir, o.name, o.what)
		}
	}
	if err := apartFromUser(all, def, place); err != nil {
		return err
	}
	for id, other := range h.Definitions() {
		root := def.RootOf != "" || other.RootOf != ""
		if other.Dir == def.Dir && (def.RootOf == "") == (other.RootOf == "") || id == def.Name || other.Lent && !mounted(all, id) {
			continue
		}
		o, err := h.scopePlace(all, other.Definition)
		if err != nil {
			return fmt.Errorf("dir: %w", err)
		}
		// Another dir that is refused itself must not stop this one.
		refused := other.Dir != "" && slices.ContainsFunc(own, func(n named) bool { return n.meets(o.place) })
		if o.meets(place) && !refused && root {
			return fmt.Errorf("dir: %q and %q of agent %s hold one another: choose a directory apart from it: "+
				"through a root an agent would have what the rules of a view hide", def.Dir, o.name, cmp.Or(other.RootOf, id))
		}
		if o.meets(place) && !refused {
			return fmt.Errorf(
				"dir: %q and %q of agent %s hold one another: give both the same dir, or choose one apart from it", def.Dir, o.name, id)
		}
	}
	return nil
}

// mounted reports whether the view of an agent is mounted.
func mounted(all []*mountinfo.Info, id scope.ID) bool {
	return slices.ContainsFunc(all, func(m *mountinfo.Info) bool { of, ok := mount.Agent(m); return ok && of == id })
}

// apartFromUser returns an error if an agent could make the directory of the settings of the user who runs this daemon. Where
// that exists, ownPlaces has it.
func apartFromUser(all []*mountinfo.Info, def *agents.Definition, root mount.Place) error {
	user, err := paths.UserDir()
	if err != nil {
		return nil // there is no such user
	}
	for at := user; ; at = filepath.Dir(at) {
		above, err := placed(all, at, "")
		switch {
		case err != nil:
			return fmt.Errorf("dir: %w", err)
		case root.Holds(above.place):
			return fmt.Errorf("dir: %q holds %s, where your settings for all agents belong: choose a directory apart from it", def.Dir, user)
		case above.place.Device != "" || at == "/":
			return nil
		}
	}
}

// named is a file of the host and its place; no file is there if there is no device.
type named struct {
	name, what string
	place      mount.Place
}

func (n named) meets(p mount.Place) bool {
	return n.place.Device != "" && (n.place.Holds(p) || p.Holds(n.place))
}

// Showable returns an error for a path that a sandbox must not show beside its view:
// agents' files, definitions, the state or the sockets.
func (h *Host) Showable(path string) error {
	if err := sandbox.Exposable(path, false); err != nil {
		return err
	}
	all, err := h.Mounts.Read()
	if err != nil {
		return err
	}
	shown, err := placed(all, path, "")
	if err != nil {
		return err
	}
	private, err := h.ownPlaces(all)
	for id, def := range h.Definitions() {
		if def.Dir != "" {
			o, e := h.scopePlace(all, def.Definition)
			o.what = "the files of agent " + string(id)
			private, err = append(private, o), errors.Join(err, e)
		}
	}
	if err != nil {
		return err
	}
	for _, o := range private {
		if o.name != h.Paths.Base && o.meets(shown.place) { // beside agents/ and the like, a base may hold programs
			return fmt.Errorf("%q and %q hold one another: a sandbox does not show %s", path, o.name, o.what)
		}
	}
	return nil
}

// ownPlaces returns where the definitions, the state, the sockets and the histories are.
func (h *Host) ownPlaces(all []*mountinfo.Info) (own []named, err error) {
	add := func(name, what string) {
		o, e := placed(all, name, what)
		own, err = append(own, o), errors.Join(err, e)
	}
	for _, name := range append(h.Paths.Own(), h.Paths.Base) {
		add(name, "the base directory")
	}
	add(h.Paths.State, "the state")
	add(h.Paths.Run, "the sockets and mount points")
	if user, no := paths.UserDir(); no == nil {
		add(user, "your settings for all agents")
	}
	for id, def := range h.Definitions() {
		if def.History.Dir != "" {
			add(h.Paths.History(def.Name, def.History.Dir), "the history of agent "+string(id))
		}
	}
	return own, err
}

// scopePlace returns the place of an agent's directory. A dir: through a link has none: it
// is refused itself, and who can make the link would choose which agents are refused.
func (h *Host) scopePlace(all []*mountinfo.Info, def *agents.Definition) (named, error) {
	name := def.Path(h.Paths.Base)
	root, err := def.OpenRoot(h.Paths.Base)
	if err != nil {
		return named{}, nil // nothing is there, or nothing that this process may reach
	}
	defer root.Close()
	place, err := mount.PlaceOf(all, root.FD())
	return named{name: name, place: place}, err
}

// placed returns the place of the file that a name leads to, by links as well.
func placed(all []*mountinfo.Info, name, what string) (named, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return named{}, nil // nothing is there, or nothing that this process may reach
	}
	defer unix.Close(fd)
	place, err := mount.PlaceOf(all, fd)
	return named{name, what, place}, err
}
