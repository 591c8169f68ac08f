package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/mount"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/beneath"
	"github.com/scopefs/scopefs/scope/beneath/mounts"
)

// target is the directory on which a pod's containers get a volume. Each use walks to it anew, from the directory of
// all pods and through no symbolic link, whatever others put in its place meanwhile: CVE-2017-1002101, CVE-2021-25741.
type target struct {
	pods string // the directory of all pods
	rel  string // path of the target's parent directory, relative to pods
	name string // of the target in its parent
	uid  string // of the pod
}

// targetOf returns the target of a path that kubelet gives: PODS/UID/volumes/kubernetes.io~csi/NAME/mount.
func targetOf(pods, at string) (target, error) {
	rel, err := filepath.Rel(pods, at)
	parts := strings.Split(rel, "/")
	if err != nil || filepath.Clean(at) != at || len(parts) != 5 || parts[0] == ".." || parts[1] != "volumes" ||
		parts[2] != "kubernetes.io~csi" {
		return target{}, fmt.Errorf("target path %q: want %s/UID/volumes/kubernetes.io~csi/NAME/mount", at, pods)
	}
	return target{pods, filepath.Dir(rel), parts[4], parts[0]}, nil
}

// parent opens the parent of the directory. It follows links to the directory of all pods, which the operator names, and none below.
func (t target) parent() (*beneath.Root, error) { return beneath.OpenRoot(t.pods, t.rel) }

// podGone reports whether the directory of the pod is gone.
func (t target) podGone() bool {
	_, err := os.Lstat(filepath.Join(t.pods, t.uid))
	return errors.Is(err, os.ErrNotExist)
}

// shows returns the file system that is mounted on the target, as MAJOR:MINOR; "": the directory is no mount of a view, or is not there.
func (t target) shows() (string, error) {
	dir, err := t.parent()
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer dir.Close()
	at, err := dir.Mounted(t.name)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer at.Close()
	v, err := viewOf(at)
	return v.device, err
}

// view is a mounted view; the zero view is none.
type view struct {
	device string // MAJOR:MINOR
	agent  scope.ID
	root   bool // processes of root may enter it
}

// viewOf returns the view whose root is open.
func viewOf(at *beneath.Root) (none view, err error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return none, err
	}
	place, err := mount.PlaceOf(all, at.FD())
	if err != nil || place.Path != "/" {
		return none, err
	}
	for _, m := range all {
		if id, ok := mount.Agent(m); ok && fmt.Sprintf("%d:%d", m.Major, m.Minor) == place.Device {
			options := strings.Split(m.VFSOptions, ",") // linux Documentation/filesystems/fuse
			return view{place.Device, id, slices.Contains(options, "allow_other") || slices.Contains(options, "user_id=0")}, nil
		}
	}
	return none, nil
}

// errClosed refuses a view from which no container would start.
var errClosed = errors.New("its definition needs view: {allow_other: true}, or user: 0: kubelet and the containers' runtime look at volumes as root")

// openView opens the root of an agent's view, which root may enter.
func openView(at string, id scope.ID) (root *beneath.Root, device string, err error) {
	if root, err = beneath.OpenDir(at); err != nil {
		return nil, "", err
	}
	is, err := viewOf(root)
	switch {
	case err == nil && is.agent != id:
		err = fmt.Errorf("%s is not the view of %q", at, id)
	case err == nil && !is.root:
		err = fmt.Errorf("the view of %q: %w", id, errClosed)
	}
	if err != nil {
		root.Close()
		return nil, "", err
	}
	return root, is.device, nil
}

// bind mounts the view that is at a path on the target, unless it is there. It reports whether it has replaced another
// view, which has ended: a container that was started with that one has its mount, and gets the new one above it, by
// propagation. So the lowest mount stays, and of those above only the newest.
func (t target) bind(at string, id scope.ID, readOnly bool) (again bool, err error) {
	view, device, err := openView(at, id)
	if err != nil {
		return false, err
	}
	defer view.Close()
	dir, err := t.parent()
	if err != nil {
		return false, err
	}
	defer dir.Close()
	self, err := dir.Dir("")
	if err != nil {
		return false, err
	}
	defer self.Close()
	if err := self.Mkdir(t.name, 0o750); err != nil && !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	on, err := dir.Mounted(t.name)
	if err != nil {
		return false, err
	}
	defer on.Close()
	last, err := viewOf(on)
	if err != nil || last.device == device {
		return false, err
	}
	depth, err := depthOf(on)
	for ; err == nil && last.device != "" && depth > 1; depth-- {
		_, err = mounts.UnmountTop(dir, t.name)
	}
	if err != nil {
		return false, err
	}
	return last.device != "", mounts.Bind(dir, t.name, view, readOnly)
}

// depthOf returns how many mounts there are on the directory that is the mount point of an open mount's root.
func depthOf(on *beneath.Root) (n int, err error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", on.FD()))
	if err != nil {
		return 0, err
	}
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != name, false })
	return len(all), err
}

// release unmounts what is on the target, and removes the directory. A target that is not there is no error.
func (t target) release() error {
	dir, err := t.parent()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	err = mounts.Unmount(dir, t.name)
	if err == nil {
		var self beneath.Dir
		if self, err = dir.Dir(""); err == nil {
			defer self.Close()
			err = self.Rmdir(t.name)
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
