package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HostError is the error of a host on which no view can be mounted, whatever the
// definitions say.
type HostError struct {
	What   string // is missing
	Remedy string
}

func (e *HostError) Error() string { return e.What + ": " + e.Remedy }

// Check returns a *HostError when a view cannot be mounted here.
func Check() error {
	if err := CheckCapability(); err != nil {
		return err
	}
	if err := CheckCalls(); err != nil {
		return err
	}
	return CheckFUSE()
}

// capabilities are what views need, of the host or of a user namespace that was made for us.
var capabilities = []struct {
	number int
	name   string
	why    string
}{
	{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN", "without which nothing can be mounted"},
	// ambient: root is not the view's user
	{unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH", "with which a view enters its directory, whatever the mode"},
}

// CheckCapability is the part of Check that looks for the capabilities.
func CheckCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	for _, c := range capabilities { // all are below 32
		if data[0].Effective&(1<<c.number) == 0 {
			return &HostError{c.name + " is missing, " + c.why, NeedsPrivilege}
		}
	}
	return nil
}

// NeedsPrivilege is the remedy where mounts are not allowed.
const NeedsPrivilege = "run scopefs as root of the host; a container needs --device /dev/fuse --cap-add SYS_ADMIN --cap-add DAC_READ_SEARCH --security-opt systempaths=unconfined"

// neededCalls are the system calls without which no view is mounted or no sandbox
// made, that some kernel or container does not have. The arguments make each fail
// with something else than ENOSYS and EPERM for one who has CAP_SYS_ADMIN, and do nothing.
var neededCalls = []struct {
	name string
	nr   uintptr
	args [6]uintptr
}{
	{"close_range", unix.SYS_CLOSE_RANGE, [6]uintptr{1, 0}},
	{"openat2", unix.SYS_OPENAT2, [6]uintptr{bad}},
	{"statx", unix.SYS_STATX, [6]uintptr{bad, 0, bad}},
	{"fsopen", unix.SYS_FSOPEN, [6]uintptr{0, bad}},
	{"fsconfig", unix.SYS_FSCONFIG, [6]uintptr{bad}},
	{"fsmount", unix.SYS_FSMOUNT, [6]uintptr{bad, bad}},
	{"move_mount", unix.SYS_MOVE_MOUNT, [6]uintptr{bad, 0, bad, 0, bad}},
	{"open_tree", unix.SYS_OPEN_TREE, [6]uintptr{bad, 0, bad}},
	{"mount_setattr", unix.SYS_MOUNT_SETATTR, [6]uintptr{bad, 0, bad}},
	{"mount", unix.SYS_MOUNT, [6]uintptr{}},
	{"umount2", unix.SYS_UMOUNT2, [6]uintptr{0, bad}},
	{"pivot_root", unix.SYS_PIVOT_ROOT, [6]uintptr{}},
	{"unshare", unix.SYS_UNSHARE, [6]uintptr{}},
	{"pidfd_open", unix.SYS_PIDFD_OPEN, [6]uintptr{0, bad}},
	{"pidfd_send_signal", unix.SYS_PIDFD_SEND_SIGNAL, [6]uintptr{bad, 0, 0, bad}},
	{"memfd_create", unix.SYS_MEMFD_CREATE, [6]uintptr{0, bad}},
	{"seccomp", unix.SYS_SECCOMP, [6]uintptr{bad, bad}},
	{"landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, [6]uintptr{0, 0, bad}},
}

const bad = 0xffffffff // as a descriptor, as flags and as a mask

// CheckCalls is the part of Check that makes the system calls.
func CheckCalls() error {
	var missing, refused []string
	for _, call := range neededCalls {
		a := call.args
		switch _, _, errno := unix.RawSyscall6(call.nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno {
		case unix.ENOSYS:
			missing = append(missing, call.name)
		case unix.EPERM:
			refused = append(refused, call.name)
		}
	}
	if err := CheckCapability(); err != nil && missing == nil && refused != nil {
		return err // the same calls fail without it
	}
	return lack(missing, refused, !Privileged() && appArmorRestricts(), filtered())
}

// filtered reports whether a seccomp filter looks at the process's system calls: proc_pid_status(5).
func filtered() bool {
	text, err := os.ReadFile("/proc/self/status")
	return err != nil || !strings.Contains(string(text), "\nSeccomp:\t0\n")
}

// lack returns the error of system calls that are missing, or that a filter refuses, or AppArmor if it restricts the process.
func lack(missing, refused []string, restricted, filtered bool) error {
	switch {
	case len(missing) > 0:
		return &HostError{"the kernel has no " + strings.Join(missing, ", "),
			"need Linux 5.15 or newer with Landlock; in a container, a seccomp profile that knows these system calls"}
	case len(refused) > 0 && restricted:
		return &HostError{"AppArmor refuses " + strings.Join(refused, ", ") + " in a user namespace", appArmorRemedy}
	case len(refused) > 0 && !filtered: // no filter does
		return &HostError{"the host or its security module refuses " + strings.Join(refused, ", "), NeedsPrivilege + " --security-opt apparmor=unconfined"}
	case len(refused) > 0:
		return &HostError{"a seccomp filter refuses " + strings.Join(refused, ", "),
			"allow these system calls in the profile of the container or service"}
	}
	return nil
}

const appArmorRemedy = "load scopefs's profile (docs/operating.md#apparmor), or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, and in /etc/sysctl.d"

// NeedsNamespaces is the remedy where the process can make no namespaces.
func NeedsNamespaces() string {
	switch {
	case os.Geteuid() == 0, inContainer():
		return NeedsPrivilege
	case appArmorRestricts():
		return appArmorRemedy
	default:
		return "allow them (sysctl user.max_user_namespaces above 0), or run as root"
	}
}

// inContainer reports whether a container of Docker, Podman or Kubernetes says that this process is in it.
func inContainer() bool {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"} {
		if _, err := os.Lstat(mark); err == nil {
			return true
		}
	}
	return false
}

// appArmorRestricts reports whether AppArmor takes the capabilities of an ordinary user's
// user namespace, as on Ubuntu from 23.10.
func appArmorRestricts() bool {
	text, _ := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	return strings.TrimSpace(string(text)) == "1"
}

// Privileged reports whether this process is root of the host, and not of an ordinary
// user's user namespace.
func Privileged() bool {
	if os.Geteuid() != 0 {
		return false
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(text))
	return err == nil && len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}

// CheckFUSE is the part of Check that makes a FUSE mount, attached nowhere, and drops it.
func CheckFUSE() error {
	dev, err := Open("check", 0, 0, false, false)
	if err == nil {
		dev.Close()
		return nil
	}
	what, remedy := err.Error(), NeedsPrivilege
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		what, remedy = "there is no FUSE ("+what+")", "load the module (modprobe fuse); a container needs --device /dev/fuse"
	case errors.Is(err, unix.EACCES) && unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) == nil:
		what, remedy = "no file system can be mounted ("+what+")", "a container needs --security-opt apparmor=unconfined beside --cap-add SYS_ADMIN"
	case errors.Is(err, unix.EACCES):
		what, remedy = "/dev/fuse is closed to this user ("+what+")", "chmod 666 /dev/fuse, as udev does, or run as root"
	}
	return &HostError{what, remedy}
}
