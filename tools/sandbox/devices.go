package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DeviceNames are the names that stand for devices of the host, with what each finds below /dev.
var DeviceNames = map[string][]string{
	"gpu":    {"nvidia*", "nvidia-caps/*", "dri/renderD*", "kfd", "accel/accel*"},
	"nvidia": {"nvidia*", "nvidia-caps/*"},
	"dri":    {"dri/renderD*"},
	"kvm":    {"kvm"},
}

// shownDrivers are the drivers whose devices a sandbox may have, by the kernel's names: what is open of such a device is a program's
// own. A path in /dev may have any device behind it.
var shownDrivers = []string{
	"nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia-caps", "drm render", "kfd", "accel", "kvm",
	"video4linux", "ttyUSB", "ttyACM",
}

// refusedDrivers says where others lead. What is in neither list is refused as well.
var refusedDrivers = []struct{ driver, to string }{
	{"mem", "the host's memory"}, {"cpu/*", "the host's processors"}, {"vfio*", "the host's memory, by devices that write to it"},
	{"iommu", "the host's memory, by devices that write to it"}, {"xen*", "the memory of other guests"}, {"vhost*", "the host's network and disks"},
	{"fuse", "mounts of the host"}, {"cuse", "devices of the host"}, {"autofs", "mounts of the host"}, {"userfaultfd", "the memory of programs"},
	{"loop-control", "the host's disks"}, {"device-mapper", "the host's disks"}, {"btrfs-control", "the host's disks"}, {"raw", "the host's disks"},
	{"nvme*", "the host's disks"}, {"sg", "the host's disks"}, {"bsg", "the host's disks"}, {"st", "the host's disks"}, {"ch", "the host's disks"},
	{"mtd*", "the host's disks"}, {"ubi*", "the host's disks"}, {"megaraid*", "the host's disks"}, {"snapshot", "the host's memory"},
	{"dax", "the host's memory"}, {"ndctl", "the host's memory"}, {"dimmctl", "the host's memory"}, {"usb_device", "each device on the bus, disks among them"},
	{"input", "keyboards of the host"}, {"uinput", "keyboards of the host"}, {"uhid", "keyboards of the host"}, {"hidraw", "keyboards of the host"},
	{"tty", "terminals of the host"}, {"ttyS", "terminals of the host"}, {"/dev/*", "terminals of the host"}, {"/dev/vc/*", "terminals of the host"}, {"vcs", "terminals of the host"},
	{"drm", "what the screens of the host show: name its render node, /dev/dri/renderD*"},
}

// device is a device of the host that a sandbox has at its path.
type device struct {
	at   string
	file *os.File // O_PATH
}

// findDevices opens what names stand for: DeviceNames, or paths below /dev. The caller closes them. lacks has a line for each name that
// this host has nothing for, and for each device that the user cannot open.
func findDevices(names []string, uid, gid uint32) (found []device, lacks []string, err error) {
	defer func() {
		if err != nil {
			for _, d := range found {
				d.file.Close()
			}
		}
	}()
	for _, name := range names {
		patterns, known := DeviceNames[name]
		paths := []string{name}
		if known {
			paths = nil
			for _, p := range patterns {
				all, _ := fs.Glob(os.DirFS("/dev"), p) // of a good pattern
				for _, at := range all {
					paths = append(paths, "/dev/"+at)
				}
			}
		}
		none := true
		for _, at := range paths {
			if slices.ContainsFunc(found, func(d device) bool { return d.at == at }) {
				none = false
				continue
			}
			f, why, err := openDevice(at, uid, gid)
			switch {
			case errors.Is(err, fs.ErrNotExist) || err != nil && known: // a name stands for what it may
				continue
			case err != nil:
				return found, nil, err
			}
			found, none = append(found, device{at, f}), false
			if why != "" {
				lacks = append(lacks, why)
			}
		}
		if none {
			lacks = append(lacks, fmt.Sprintf("this host has no %s for sandbox: {devices}: scopefs doctor says what is there", name))
		}
	}
	return found, lacks, nil
}

// CheckDevices returns an error if one of Spec.Devices is a device that no sandbox has. A device that this host lacks is no error.
func CheckDevices(names []string) error {
	found, _, err := findDevices(names, uint32(os.Geteuid()), uint32(os.Getegid()))
	if errors.Is(err, ErrInvalid) {
		return err
	}
	for _, d := range found {
		d.file.Close()
	}
	return nil
}

// openDevice opens a device of the host, and judges what it is. closed says why the user cannot open it; "": it can.
func openDevice(at string, uid, gid uint32) (f *os.File, closed string, err error) {
	if !below(at, "/dev") || path.Clean(at) != at || at == "/dev" {
		return nil, "", fmt.Errorf("%w: devices: %q is no path below /dev: write one, or gpu, nvidia, dri or kvm", ErrInvalid, at)
	}
	fd, err := unix.Open(at, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("device %q: %w", at, err)
	}
	f = os.NewFile(uintptr(fd), at)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = judgeDevice(&st)
	}
	if err != nil {
		f.Close()
		return nil, "", fmt.Errorf("%w: devices: %s %w", ErrInvalid, at, err)
	}
	if !opens(f, &st, uid, gid) {
		closed = fmt.Sprintf("the agent's user cannot open %s, mode %04o: setfacl -m u:USER:rw %s", at, st.Mode&0o7777, at)
	}
	return f, closed, nil
}

// judgeDevice returns why no sandbox has a device.
func judgeDevice(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return errors.New("is a block device, which leads to the host's disks: remove it")
	case unix.S_IFCHR:
	default:
		return errors.New("is no device: name the device itself")
	}
	drivers, err := driversOf(unix.Major(st.Rdev), unix.Minor(st.Rdev))
	if err != nil {
		return err
	}
	for _, driver := range drivers {
		if slices.Contains(shownDrivers, driver) {
			continue
		}
		for _, r := range refusedDrivers {
			if is, _ := path.Match(r.driver, driver); is {
				return fmt.Errorf("is a device of the driver %q, which leads to %s: remove it", driver, r.to)
			}
		}
		return fmt.Errorf("is a device of the driver %q, and it is not known where that leads: remove it", driver)
	}
	return nil
}

// driversOf returns the kernel's names of the drivers of a character device: proc_devices(5), /proc/misc. Several drivers of terminals
// share a number. Render nodes have minors from 128: Documentation/gpu/drm-uapi.rst.
func driversOf(major, minor uint32) (names []string, err error) {
	const misc = 10 // Documentation/admin-guide/devices.txt
	file, number := "/proc/devices", major
	if major == misc {
		file, number = "/proc/misc", minor
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	chars, _, _ := strings.Cut(string(text), "Block devices:")
	for line := range strings.Lines(chars) {
		no, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || no != strconv.Itoa(int(number)) {
			continue
		}
		if name == "drm" && minor >= 128 && minor < 192 {
			name = "drm render"
		}
		names = append(names, name)
	}
	if names == nil {
		names = []string{"unknown"}
	}
	return names, nil
}

// opens reports whether a user without further groups can open a device for reading and writing. One with an ACL may let it.
func opens(f *os.File, st *unix.Stat_t, uid, gid uint32) bool {
	const rw = 6
	if os.Geteuid() != 0 || uid == 0 && st.Uid == 0 { // this is the user, with its groups
		return unix.Faccessat(unix.AT_FDCWD, procPath(f), unix.R_OK|unix.W_OK, unix.AT_EACCESS) == nil
	}
	switch {
	case st.Uid == uid:
		return st.Mode>>6&rw == rw
	case st.Gid == gid:
		return st.Mode>>3&rw == rw
	case st.Mode&rw == rw:
		return true
	}
	n, err := unix.Getxattr(procPath(f), "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// Devices returns the devices that each of DeviceNames has on this host, and why a device is left out, sorted.
func Devices() (found, left []string) {
	for _, name := range []string{"nvidia", "dri", "kvm"} {
		all, lacks, _ := findDevices([]string{name}, uint32(os.Geteuid()), uint32(os.Getegid())) // of names there is no error
		for _, d := range all {
			found = append(found, d.at)
			d.file.Close()
		}
		if len(all) > 0 {
			left = append(left, lacks...)
		}
	}
	return found, left
}
