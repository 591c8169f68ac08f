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
	NFS     Kind = "nfs"     // on a kernel that has them: make test-nfs
	JuiceFS Kind = "juicefs" // with juicefs in PATH, which no registry has: SCOPEFS_TEST_VOLUME=juicefs
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
}{
	MooseFS: {"fuse", moosefsScript, []string{"mfsmaster", "mfschunkserver", "mfsmount", "ip"}},
	SSHFS:   {"fuse.sshfs", sshfsScript, []string{"sshd", "sshfs", "ssh-keygen", "ip"}},
	NFS:     {"nfs4", nfsScript, []string{"rpc.nfsd", "rpc.mountd", "exportfs", "mount.nfs4", "ip", "unshare", "nsenter"}},
	JuiceFS: {"fuse.juicefs", juicefsScript, []string{"redis-server", "versitygw", "juicefs", "ip"}},
}

// Volume is a directory of a server that two clients have mounted, as two hosts would. Its processes are in network namespaces
// of their own: no port is taken, and the chunk server of MooseFS refuses loopback addresses.
type Volume struct {
	Kind Kind
	Type string // of its mounts, as in /proc/mounts
	A, B string // the mount points

	dir  string         // of the servers' files
	pids map[string]int // of master and chunk, server or net; of a and b

	restarted []*exec.Cmd // by functions that Kill has returned
}

// beginScript begins each script: begin NAME COMMAND... starts a process of the volume. A server listens at 10.66.0.1, and is reached
// at $server. That is the same address, or with a slow network another one: see slow.
const beginScript = `set -e
cd "$1"
exec 3>&1
begin() { name=$1; shift; printf '%s\0' "$@" >$name.args; "$@" >$name.log 2>&1 3>&- & echo $name $! >&3; }
port() { until (: </dev/tcp/10.66.0.1/$1) 2>/dev/null; do sleep 0.02; done; }
server=10.66.0.1
ip link set lo up
ip address add $server/32 dev lo
if [ -n "$4" ]; then
	begin slow env ` + RoleEnv + `=slow "$4"
	until ip link set slow0 up 2>/dev/null; do kill -0 $!; sleep 0.02; done
	ip route add 10.66.0.2 dev slow0 src $server
	server=10.66.0.2
fi
`

// The clients of each kind cache no directory entries and attributes: what a view shows stale is then the view's fault.
const moosefsScript = beginScript + `
mkdir master chunk disk
cp /var/lib/mfs/metadata.mfs.empty master/metadata.mfs
echo "* / rw,alldirs,maproot=0" >exports
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
MASTER_HOST = $server
EOF
begin master mfsmaster -f -a -c "$1/master.cfg" start
port 9420; port 9421
begin chunk mfschunkserver -f -c "$1/chunk.cfg" start
for at in a b; do
	begin $at mfsmount -f -o mfsmaster=$server,mfstimeout=30,mfsdirentrycacheto=0,mfsattrcacheto=0 "$2/$at"
done
exec 3>&- >&-
wait
`

const sshfsScript = beginScript + `
mkdir -p disk /run/sshd
chmod 755 disk
ssh-keygen -q -t ed25519 -N '' -f host
ssh-keygen -q -t ed25519 -N '' -f key
echo "[$server]:2222 $(cut -d' ' -f1-2 host.pub)" >known
cat >config <<EOF
ListenAddress 10.66.0.1
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
begin server "$(command -v sshd)" -D -e -f "$1/config"
port 2222
for at in a b; do
	begin $at sshfs -f -p 2222 -F none -o IdentityFile="$1/key",UserKnownHostsFile="$1/known",BatchMode=yes,allow_other,uid=1000,gid=1000 \
		-o dir_cache=no,entry_timeout=0,negative_timeout=0,attr_timeout=0 "root@$server:$1/disk" "$2/$at"
done
exec 3>&- >&-
wait
`

// Redis syncs each change to its disk before it answers. Nothing leaves the network namespace. JFS_SUPERVISOR: a client is one process,
// and leaves nothing in /tmp.
const juicefsScript = beginScript + `
mkdir -p master disk/volume sidecar
begin master redis-server --bind 10.66.0.1 --protected-mode no --port 6379 --dir "$1/master" --save "" --appendonly yes --appendfsync always
export ROOT_ACCESS_KEY=volume ROOT_SECRET_KEY=volume-secret ACCESS_KEY=volume SECRET_KEY=volume-secret JFS_SUPERVISOR=volume
begin chunk versitygw --port 10.66.0.1:7070 --quiet --iam-dir "$1" posix --sidecar "$1/sidecar" "$1/disk"
port 6379; port 7070
juicefs format --no-color --storage s3 --bucket http://$server:7070/volume redis://$server:6379/1 volume >format.log 2>&1
for at in a b; do
	begin $at juicefs mount --no-color --no-usage-report --no-syslog --no-agent --no-bgjob --metrics 127.0.0.1:0 --backup-meta 0 --cache-dir "$1/cache-$at" --cache-size 100 \
		--attr-cache 0 --entry-cache 0 --dir-entry-cache 0 --negative-entry-cache 0 --open-cache 0 redis://$server:6379/1 "$2/$at"
done
exec 3>&- >&-
wait
`

// The clients are in network namespaces of their own, each with a link to the server's: to the kernel they are two. The server
// tells them apart by their host names (RFC 8881, section 2.4): clients of one name end each other's state.
const nfsScript = beginScript + `
export PATH=$PATH:/usr/sbin:/sbin
mkdir -p disk /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs /run/rpc_pipefs
: >>/var/lib/nfs/etab
chmod 755 disk
mount -t nfsd nfsd /proc/fs/nfsd
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,sync,no_subtree_check,fsid=0,$3 "*:$1/disk"
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
	[ -z "$4" ] || tc qdisc add dev client-$at root netem delay 20ms loss 1%
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
	return newVolume(t, kind, "", options)
}

// NewSlowVolumeOf is NewVolume of a kind, with a network between the clients and the servers that delays and loses packets.
func NewSlowVolumeOf(t testing.TB, kind Kind) *Volume {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil && kind != NFS {
		need.Skip(t, err)
	}
	slow, err := os.Executable()
	require.NoError(t, err)
	return newVolume(t, kind, slow, nil)
}

// newVolume starts a volume. The program slow, if any, has the role slow.
func newVolume(t testing.TB, kind Kind, slow string, options []string) *Volume {
	t.Helper()
	need.All(t, "servers of shared file systems")
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
	cmd := exec.Command("bash", "-c", how.script, "volume", dir, filepath.Dir(v.A), append(options, "no_root_squash")[0], slow)
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
		for _, cmd := range append(v.restarted, cmd) {
			_ = cmd.Wait()
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	for in := bufio.NewScanner(out); in.Scan(); {
		name, pid, _ := strings.Cut(in.Text(), " ")
		v.pids[name], err = strconv.Atoi(pid)
		require.NoError(t, err)
	}
	if v.pids["a"] == 0 || v.pids["b"] == 0 {
		v.dump(t)
		t.Fatal("the script has failed")
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if v.mounted() {
			if err = os.WriteFile(filepath.Join(v.A, "ready"), []byte("ready"), 0o644); err == nil || len(options) > 0 {
				break
			}
		}
		if time.Now().After(end) {
			v.dump(t)
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

// dump logs what the processes have said.
func (v *Volume) dump(t testing.TB) {
	logs, _ := filepath.Glob(filepath.Join(v.dir, "*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		t.Logf("%s: %s", filepath.Base(log), text)
	}
}

// inServer is Server for a test that goes on.
func (v *Volume) inServer(command string) error {
	out, err := exec.Command("nsenter", "-t", strconv.Itoa(v.pids["net"]), "-n", "sh", "-c",
		"PATH=$PATH:/usr/sbin:/sbin; "+command).CombinedOutput()
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

// Servers are the processes of a kind that serve metadata and data, and that a test can kill and start again.
func (k Kind) Servers() []string {
	if k == MooseFS || k == JuiceFS {
		return []string{"master", "chunk"}
	}
	return nil
}

// Kill kills the process master, chunk, a or b. The function that it returns starts it again, with the same arguments. The client of
// NFS is the kernel: Kill cuts its link.
func (v *Volume) Kill(t testing.TB, name string) (restart func()) {
	t.Helper()
	if v.Kind == NFS {
		return v.Stall(t)
	}
	args, err := os.ReadFile(filepath.Join(v.dir, name+".args"))
	require.NoError(t, err)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", v.pids[name]))
	require.NoError(t, err)
	v.Signal(t, name, syscall.SIGKILL)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if state := StateOf(v.pids[name]); state == 0 || state == 'Z' {
			break
		}
		require.True(t, time.Now().Before(end), "%s lives on", name)
	}
	return func() {
		if name == "a" || name == "b" {
			_ = unix.Unmount(filepath.Join(filepath.Dir(v.A), name), unix.MNT_DETACH)
		}
		if err := v.again(name, args, env); err != nil {
			t.Error(err)
		}
	}
}

// again starts a process that was killed, and waits until both clients are mounted.
func (v *Volume) again(name string, args, env []byte) error {
	log, err := os.OpenFile(filepath.Join(v.dir, name+".log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	words := func(text []byte) []string { return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00") }
	cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(v.pids["net"]), "-n", "--"}, words(args)...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = v.dir, words(env), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: v.pids["net"]}
	if err := cmd.Start(); err != nil {
		return err
	}
	v.pids[name] = cmd.Process.Pid
	v.restarted = append(v.restarted, cmd)
	for end := time.Now().Add(patience); !v.mounted(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s is not mounted again", name)
		}
	}
	return nil
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
