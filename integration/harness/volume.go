package harness

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/internal/need"
)

// Kind is a shared file system that tests mount twice, as two hosts would.
type Kind string

// The kinds.
const (
	MooseFS Kind = "moosefs"
	SSHFS   Kind = "sshfs"
	NFS     Kind = "nfs" // on a kernel that has them: make test-nfs
)

// VolumeEnv names the kind of the volumes that all tests use.
const VolumeEnv = "SCOPEFS_TEST_VOLUME"

// Kinds are the shared file systems to test on.
func Kinds() []Kind {
	if kind := os.Getenv(VolumeEnv); kind != "" {
		return []Kind{Kind(kind)}
	}
	return []Kind{MooseFS, SSHFS}
}

// kinds are how to serve and mount each kind. A script runs in a network namespace of its own, with a directory for its files
// and the directory of the mount points a and b. It prints the name and the pid of each process that it starts.
var kinds = map[Kind]struct {
	fsType   string // in /proc/mounts
	script   string
	programs []string
	pids     int
}{
	MooseFS: {"fuse", moosefsScript, []string{"mfsmaster", "mfschunkserver", "mfsmount", "ip"}, 4},
	SSHFS:   {"fuse.sshfs", sshfsScript, []string{"sshd", "sshfs", "ssh-keygen", "ip"}, 3},
	NFS:     {"nfs4", nfsScript, []string{"rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs4", "ip", "unshare", "nsenter"}, 3},
}

// Volume is a directory of a server that two clients have mounted, as two hosts would. Its processes are in network namespaces
// of their own: no port is taken, and the chunk server of MooseFS refuses loopback addresses.
type Volume struct {
	Kind Kind
	Type string // of its mounts, as in /proc/mounts
	A, B string // the mount points

	dir  string         // of the servers' files
	pids map[string]int // of master and chunk, server or net; of a and b
}

// The clients of each kind cache no directory entries and attributes: what a view shows stale is then the view's fault.
const moosefsScript = `set -e
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

const sshfsScript = `set -e
cd "$1"
ip link set lo up
mkdir -p disk /run/sshd
chmod 755 disk
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f key
echo "[127.0.0.1]:2222 $(cut -d' ' -f1-2 host.pub)" >known
cat >config <<EOF
ListenAddress 127.0.0.1
Port 2222
HostKey $1/host
AuthorizedKeysFile $1/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
EOF
exec 3>&1
begin() { name=$1; shift; "$@" >$name.log 2>&1 3>&- & echo $name $! >&3; }
begin server "$(command -v sshd)" -D -e -f "$1/config"
until (: </dev/tcp/127.0.0.1/2222) 2>/dev/null; do sleep 0.02; done
for at in a b; do
	begin $at sshfs -f -p 2222 -F none -o IdentityFile="$1/key",UserKnownHostsFile="$1/known",BatchMode=yes,allow_other,uid=1000,gid=1000 \
		-o dir_cache=no,entry_timeout=0,negative_timeout=0,attr_timeout=0 "root@127.0.0.1:$1/disk" "$2/$at"
done
exec 3>&- >&-
wait
`

// The clients are in network namespaces of their own, each with a link to the server's: to the kernel they are two. The server
// tells them apart by their host names (RFC 8881, section 2.4): clients of one name end each other's state.
const nfsScript = `set -e
cd "$1"
export PATH=$PATH:/usr/sbin:/sbin
mkdir -p disk /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs /run/rpc_pipefs
: >>/var/lib/nfs/etab
chmod 755 disk
ip link set lo up
mount -t nfsd nfsd /proc/fs/nfsd
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,sync,no_subtree_check,fsid=0,$3 "*:$1/disk"
exec 3>&1
begin() { name=$1; shift; "$@" >$name.log 2>&1 3>&- & echo $name $! >&3; }
begin server rpc.mountd -F -N 3
rpc.nfsd -N 3 -V 4.2 4
number=1
for at in a b; do
	begin $at unshare -n -u sh -c "hostname client-$at; exec sleep 100000"
	pid=$!
	until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
	ip link add name client-$at type veth peer name eth0 netns $pid
	ip address add 10.66.$number.1/24 dev client-$at
	ip link set dev client-$at up
	nsenter -t $pid -n ip link set lo up
	nsenter -t $pid -n ip address add 10.66.$number.2/24 dev eth0
	nsenter -t $pid -n ip link set dev eth0 up
	nsenter -t $pid -n -u mount.nfs4 -o vers=4.2,noac,hard,timeo=20 10.66.$number.1:/ "$2/$at"
	number=$((number + 1))
done
exec 3>&- >&-
wait
`

// NewVolume starts a volume of the kind that VolumeEnv names, or else of MooseFS, mounts it twice and waits until files can be
// written.
func NewVolume(t testing.TB) *Volume { return NewVolumeOf(t, Kinds()[0]) }

// NewVolumeOf is NewVolume of a kind. The options are for the server of NFS: no_root_squash by default.
func NewVolumeOf(t testing.TB, kind Kind, options ...string) *Volume {
	t.Helper()
	NeedFUSE(t)
	how, ok := kinds[kind]
	require.True(t, ok, kind)
	for _, program := range how.programs {
		need.Program(t, program)
	}
	dir, err := os.MkdirTemp("", TempPrefix)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	v := &Volume{Kind: kind, Type: how.fsType, A: filepath.Join(dir, "at/a"), B: filepath.Join(dir, "at/b"), dir: dir, pids: map[string]int{}}
	require.NoError(t, os.MkdirAll(v.A, 0o755))
	require.NoError(t, os.MkdirAll(v.B, 0o755))
	cmd := exec.Command("bash", "-c", how.script, "volume", dir, filepath.Dir(v.A), strings.Join(append(options, "no_root_squash")[:1], ""))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Setpgid: true}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	v.pids["net"] = cmd.Process.Pid
	t.Cleanup(func() {
		for _, at := range []string{v.A, v.B} {
			_ = unix.Unmount(at, unix.MNT_FORCE)
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
		if kind == NFS {
			_ = v.inServer("rpc.nfsd 0; exportfs -au; umount /proc/fs/nfsd")
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
	require.Len(t, v.pids, how.pids+1, "the script has failed")
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if v.mounted() {
			if err = os.WriteFile(filepath.Join(v.A, "ready"), []byte("ready"), 0o644); err == nil || len(options) > 0 {
				break
			}
		}
		if time.Now().After(end) {
			for _, log := range []string{"master", "chunk", "server", "a"} {
				text, _ := os.ReadFile(filepath.Join(dir, log+".log"))
				t.Logf("%s: %s", log, text)
			}
			t.Fatal("the volume cannot be written to: ", err)
		}
	}
	if len(options) == 0 {
		for _, at := range []string{v.A, v.B} { // the owner of a dir: needs it
			require.NoError(t, os.Chmod(at, 0o755))
		}
	}
	return v
}

// inServer is Server for a test that goes on.
func (v *Volume) inServer(command string) error {
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(v.pids["net"]), "-n", "sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; "+command).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// Served is the server's directory, as programs of the server see it: of SSHFS and NFS.
func (v *Volume) Served() string { return filepath.Join(v.dir, "disk") }

// Server runs a shell command in the network namespace of the server of NFS, in which /proc/fs/nfsd is.
func (v *Volume) Server(t testing.TB, command string) {
	t.Helper()
	require.NoError(t, v.inServer(command))
}

// Stall stops the client of A, or cuts its link to the server, until the function that it returns is called.
func (v *Volume) Stall(t testing.TB) (goOn func()) {
	t.Helper()
	if v.Kind == NFS {
		require.NoError(t, v.inServer("ip link set dev client-a down"))
		return sync.OnceFunc(func() {
			if err := v.inServer("ip link set dev client-a up"); err != nil {
				t.Error(err)
			}
		})
	}
	v.Signal(t, "a", syscall.SIGSTOP)
	return sync.OnceFunc(func() { v.Signal(t, "a", syscall.SIGCONT) })
}

func (v *Volume) mounted() bool {
	text, _ := os.ReadFile("/proc/self/mounts")
	return strings.Contains(string(text), " "+v.A+" "+v.Type+" ") && strings.Contains(string(text), " "+v.B+" "+v.Type+" ")
}

// Signal sends a signal to the process master, chunk, server, a or b.
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
