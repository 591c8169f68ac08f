package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// Volume is a MooseFS volume that two clients have mounted, as two hosts would. Its processes are in a network namespace of
// their own: the chunk server refuses loopback addresses, and no port is taken.
type Volume struct {
	A, B string // the mount points

	pids map[string]int // of master, chunk, a, b
}

// volumeScript starts the servers and both clients, and prints the name and the pid of each. Its argument is a directory.
// The clients cache no directory entries and attributes: what a view shows stale is then the view's fault.
const volumeScript = `set -e
cd "$1"
ip link set lo up
ip address add 10.66.0.1/32 dev lo
mkdir master chunk disk
cp /var/lib/mfs/metadata.mfs.empty master/metadata.mfs
echo "10.66.0.1 / rw,alldirs,maproot=0" >exports
echo "$1/disk" >disks
: >topology
cat >master.cfg <<EOF
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $1/master
EXPORTS_FILENAME = $1/exports
TOPOLOGY_FILENAME = $1/topology
MATOML_LISTEN_HOST = 10.66.0.1
MATOCS_LISTEN_HOST = 10.66.0.1
MATOCL_LISTEN_HOST = 10.66.0.1
EOF
cat >chunk.cfg <<EOF
WORKING_USER = root
WORKING_GROUP = root
DATA_PATH = $1/chunk
HDD_CONF_FILENAME = $1/disks
HDD_LEAVE_SPACE_DEFAULT = 1MiB
MASTER_HOST = 10.66.0.1
CSSERV_LISTEN_HOST = 10.66.0.1
EOF
begin() { name=$1; shift; "$@" >$name.log 2>&1 3>&- & echo $name $! >&3; }
port() { until (: </dev/tcp/10.66.0.1/$1) 2>/dev/null; do sleep 0.02; done; }
exec 3>&1
begin master mfsmaster -f -c "$1/master.cfg" start
port 9420; port 9421
begin chunk mfschunkserver -f -c "$1/chunk.cfg" start
for at in a b; do
	begin $at mfsmount -f -o mfsmaster=10.66.0.1,mfstimeout=30,mfsdirentrycacheto=0,mfsattrcacheto=0 "$2/$at"
done
exec 3>&- >&-
wait
`

// NewVolume starts a volume, mounts it twice and waits until files can be written.
func NewVolume(t testing.TB) *Volume {
	t.Helper()
	NeedFUSE(t)
	for _, program := range []string{"mfsmaster", "mfschunkserver", "mfsmount", "ip"} {
		need.Program(t, program)
	}
	dir, err := os.MkdirTemp("", TempPrefix)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	v := &Volume{A: filepath.Join(dir, "at/a"), B: filepath.Join(dir, "at/b"), pids: map[string]int{}}
	require.NoError(t, os.MkdirAll(v.A, 0o755))
	require.NoError(t, os.MkdirAll(v.B, 0o755))
	cmd := exec.Command("bash", "-c", volumeScript, "volume", dir, filepath.Dir(v.A))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Setpgid: true}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		for _, at := range []string{v.A, v.B} {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		require.NoError(t, os.RemoveAll(dir))
	})
	for in := bufio.NewScanner(out); in.Scan(); {
		name, pid, _ := strings.Cut(in.Text(), " ")
		v.pids[name], err = strconv.Atoi(pid)
		require.NoError(t, err)
	}
	require.Len(t, v.pids, 4, "the script has failed")
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if v.mounted() {
			if err = os.WriteFile(filepath.Join(v.A, "ready"), []byte("ready"), 0o644); err == nil {
				break
			}
		}
		if time.Now().After(end) {
			for _, log := range []string{"master", "chunk", "a"} {
				text, _ := os.ReadFile(filepath.Join(dir, log+".log"))
				t.Logf("%s: %s", log, text)
			}
			t.Fatal("the volume cannot be written to: ", err)
		}
	}
	for _, at := range []string{v.A, v.B} { // the owner of a dir: needs it
		require.NoError(t, os.Chmod(at, 0o755))
	}
	return v
}

func (v *Volume) mounted() bool {
	text, _ := os.ReadFile("/proc/self/mounts")
	return strings.Contains(string(text), " "+v.A+" fuse ") && strings.Contains(string(text), " "+v.B+" fuse ")
}

// Signal sends a signal to the process master, chunk, a or b.
func (v *Volume) Signal(t testing.TB, name string, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(v.pids[name], sig), name)
}

// NewHosts returns two hosts, one on each client of the volume. Each has the agents, whose dir: is the same directory of the
// volume, of user 1000. The daemons are not started.
func (v *Volume) NewHosts(t testing.TB, agents map[string]string) (a, b *Host) {
	t.Helper()
	hosts := [2]*Host{}
	for i, at := range []string{v.A, v.B} {
		hosts[i] = LayOut(t, nil)
		for id, front := range agents {
			dir := filepath.Join(at, id)
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.Chown(dir, 1000, 1000))
			hosts[i].Define(id, fmt.Sprintf("user: 1000:1000\ndir: %s\n%s", dir, front))
		}
	}
	return hosts[0], hosts[1]
}
