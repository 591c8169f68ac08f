package kernels

import (
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/internal/companion"
)

// modules are those that a guest needs, as modprobe knows them. A kernel may have them built in, as User-Mode Linux has all.
var modules = []string{"virtio_pci", "virtio_blk", "virtio_rng", "fuse", "overlay", "ext4", "loop"}

// makeInitramfs makes the first root of a guest: busybox, modules and init.
func makeInitramfs(t *testing.T, kernel, to string) string {
	root := t.TempDir()
	for _, dir := range []string{"bin", "dev", "disk", "modules", "proc", "sys"} {
		require.NoError(t, os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	command(t, root, "cp", look(t, "busybox"), "bin/busybox")
	command(t, "guest", "cp", "init", root)
	releases, err := filepath.Glob(filepath.Join(kernel, "lib/modules/*"))
	require.NoError(t, err)
	needed, seen := modules, map[string]bool{}
	if len(releases) == 0 {
		needed = nil
	}
	for _, module := range needed {
		for line := range strings.Lines(command(t, "", "modprobe", "-d", kernel, "-S", filepath.Base(releases[0]), "--show-depends", module)) {
			word := strings.Fields(line) // insmod PATH, or builtin NAME
			if word[0] != "insmod" || seen[word[1]] {
				continue
			}
			seen[word[1]] = true
			name := fmt.Sprintf("%02d-%s", len(seen), filepath.Base(word[1]))
			command(t, root, "cp", word[1], filepath.Join("modules", name))
			switch filepath.Ext(name) {
			case ".xz":
				command(t, root, "xz", "-d", filepath.Join("modules", name))
			case ".zst":
				command(t, root, "zstd", "-q", "-d", "--rm", filepath.Join("modules", name))
			}
		}
	}
	command(t, root, "sh", "-c", `find . | cpio -o -H newc --quiet | gzip -1 >"$1"`, "sh", to)
	return to
}

// packages are Debian packages whose files a guest has.
var packages = []string{"base-files", "base-passwd", "libc-bin", "netbase", "bash", "coreutils", "dash", "findutils", "grep", "sed", "mawk",
	"diffutils", "tar", "gzip", "util-linux", "mount", "procps", "passwd", "login", "acl", "attr", "e2fsprogs", "libcap2-bin", "patch",
	"bubblewrap", "git", "iproute2", "nfs-kernel-server", "nfs-common", "libtirpc-common", "hostname", "perl-base", "python3-minimal", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"}

// makeDisk makes the disk of the guests, which they do not change: the host's packages, AppArmor of a later distribution unless
// its directory is "", the sources, and the tests of the suites.
func makeDisk(t *testing.T, work, apparmor string, suites []suite) string {
	root := filepath.Join(work, "root")
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev", "etc", "guest", "home", "opt", "proc", "root", "run", "src", "srv", "sys", "tmp", "var/tmp"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		require.NoError(t, os.Chmod(filepath.Join(root, dir), 0o777|os.ModeSticky))
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		require.NoError(t, os.Symlink("usr/"+dir, filepath.Join(root, dir)))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644)) // RFC 5737: nobody
	require.NoError(t, os.Mkdir(filepath.Join(root, "root/.cache"), 0o700))
	require.NoError(t, os.Chmod(filepath.Join(root, "root"), 0o700))
	copyPackages(t, root)
	command(t, "", "cp", "-a", look(t, "busybox"), filepath.Join(root, "usr/bin/busybox"))
	command(t, "", "cp", "guest/run", "guest/apparmor", filepath.Join(root, "guest"))
	if apparmor != "" {
		copyAppArmor(t, apparmor, root)
	}
	command(t, "../..", "sh", "-c", `git ls-files -z | xargs -0 cp --parents -dt "$1"`, "sh", filepath.Join(root, "src"))
	for _, program := range append(slices.Collect(maps.Keys(companion.Programs())), "scopefs") {
		command(t, "../..", "go", "build", "-trimpath", "-o", filepath.Join(root, "guest", program), "./cmd/"+program)
	}
	var list strings.Builder
	for _, s := range suites {
		list.WriteString(s.line() + "\n")
		program := filepath.Join(root, s.program())
		if _, err := os.Stat(program); s.pkg != "" && err != nil {
			command(t, "../..", "go", "test", "-c", "-trimpath", "-o", program, "./"+s.pkg)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "guest/suites"), []byte(list.String()), 0o644))
	disk := filepath.Join(work, "disk")
	command(t, "", "mkfs.ext4", "-q", "-d", root, disk, "4G")
	require.NoError(t, os.RemoveAll(root))
	return disk
}

// copyPackages copies the files of packages, without their documentation, and the libraries that their programs load.
func copyPackages(t *testing.T, root string) {
	listed := command(t, "", "dpkg", append([]string{"-L"}, packages...)...)
	files := []string{"/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/nsswitch.conf", "/etc/ld.so.cache",
		"/etc/alternatives/awk", "/usr/bin/awk"}
	var programs []string
	for _, path := range strings.Fields(listed) {
		info, err := os.Lstat(path)
		if err != nil || info.IsDir() || documentation.MatchString(path) {
			continue
		}
		files = append(files, path)
		if f, err := elf.Open(path); err == nil {
			programs = append(programs, path)
			f.Close()
		}
	}
	libraries, _ := exec.Command("ldd", programs...).Output() // its status is 1 if one of them is static
	for _, word := range strings.Fields(string(libraries)) {
		if to, err := filepath.EvalSymlinks(word); err == nil && filepath.IsAbs(word) {
			files = append(files, word, to)
		}
	}
	list := filepath.Join(root, "guest/files")
	require.NoError(t, os.WriteFile(list, []byte(strings.Join(files, "\n")), 0o644))
	command(t, "", "sh", "-c", `tar -c -P --no-recursion -T "$1" | tar -x -C "$2"`, "sh", list, root)
}

var documentation = regexp.MustCompile(`^/usr/share/(doc|man|locale|info|gitweb|perl)/`)

// copyAppArmor copies a parser with its C library, and the profiles that it includes.
func copyAppArmor(t *testing.T, from, root string) {
	command(t, from, "cp", "-a", "etc/apparmor.d", filepath.Join(root, "etc"))
	libraries := filepath.Join(root, "guest/libraries")
	require.NoError(t, os.Mkdir(libraries, 0o755))
	command(t, from, "sh", "-c", `cp -L usr/lib/x86_64-linux-gnu/*.so* "$1"`, "sh", libraries)
	command(t, from, "cp", "usr/sbin/apparmor_parser", filepath.Join(libraries, "apparmor_parser"))
	text := "#!/bin/sh\nexec /guest/libraries/ld-linux-x86-64.so.2 --library-path /guest/libraries /guest/libraries/apparmor_parser \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(root, "guest/apparmor_parser"), []byte(text), 0o755))
}

// look returns the path of a program of the host.
func look(t *testing.T, name string) string {
	path, err := exec.LookPath(name)
	require.NoError(t, err)
	return path
}
