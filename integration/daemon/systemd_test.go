package daemon

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/companion"
	"github.com/scopefs/scopefs/internal/need"
)

// bootScript boots systemd in a container whose root is the directory $1, below an overlay that $2/lay has changed. It runs
// $2/guest in it, and leaves its output in $2/out. All mounts are in a namespace that ends with it.
//
// bubblewrap counts namespaces in /proc/sys/user. The rest of /proc/sys stays read-only: it is the host's.
const bootScript = `set -e
top=$2/top
mkdir -p /run/systemd "$top"
mount -t tmpfs none /run/systemd # systemd-nspawn empties a directory there only if it is not on a disk
mount -t tmpfs none "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay -o "lowerdir=$1,upperdir=$top/upper,workdir=$top/work" none "$top/root"
cd "$top/root"
rm -f etc/machine-id
: >etc/machine-id
sh -e "$2/lay" "$2"
printf '[Service]\nType=oneshot\nExecStartPre=mount --bind /proc/sys/user /proc/sys/user\nExecStartPre=mount -o remount,rw,bind /proc/sys/user\nExecStart=/bin/sh -c "sh /out/guest >/out/out 2>&1"\nExecStopPost=systemctl --no-block poweroff\n' >etc/systemd/system/guest.service
exec systemd-nspawn --quiet --directory="$top/root" --register=no --keep-unit --private-network --bind=/dev/fuse --bind="$2:/out" \
	--capability=all --system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self @mount @file-system @process @privileged' \
	--tmpfs=/tmp --console=pipe --boot systemd.unit=guest.service`

// layScript installs the programs $1/scopefs* and the unit $1/scopefs.service in a copy of this host's root. The daemon's output goes
// to $1/err.
const layScript = `rm -rf etc/systemd/system/*.wants lib/systemd/system/*.wants
mkdir -p usr/local/bin etc/systemd/system/scopefs.service.d
find "$1" -maxdepth 1 -name 'scopefs*' ! -name '*.*' -exec cp -t usr/local/bin {} +
cp "$1/scopefs.service" etc/systemd/system/
printf '[Service]\nStandardError=append:/out/err\n' >etc/systemd/system/scopefs.service.d/err.conf
`

// guestScript prints a line for each end of the daemon: what ended it, whether the unit is active then, and the
// number of restarts since it was started.
const guestScript = `of() { systemctl show -P "$1" scopefs; }
settled() { # waits until the daemon runs again or will not
	for i in $(seq 300); do
		case "$(of ActiveState) $(of MainPID)" in "active $old" | "active 0") ;; active* | failed*) break ;; esac
		sleep 0.1
	done
	echo "$1 $(of ActiveState) $(of NRestarts)"
}
mkdir -p /var/lib/scopefs/agents.d
printf -- '---\nname: a\ndescription: test\n---\nx\n' >/var/lib/scopefs/agents.d/a.md
view() { scopefs --base /var/lib/scopefs --run /run/scopefs ps | awk '$2 == "mounted" { print $3 }'; }
systemctl start scopefs
until first=$(view) && [ -n "$first" ]; do sleep 0.1; done
for signal in ABRT SEGV QUIT KILL; do
	old=$(of MainPID)
	systemctl kill --kill-who=main -s $signal scopefs
	settled $signal
done
scopefs --base /var/lib/scopefs --run /run/scopefs ps >/dev/null && echo answers
lives() { [ "$(view)" = "$first" ] && echo "the view lives on"; }
lives
systemctl restart scopefs
lives
systemctl stop scopefs
echo "stopped $(of ActiveState)"
pgrep -f '^scopefs-' || echo "nothing is left"
echo 'nonsense: [' >/var/lib/scopefs/scopefs.yaml
old=none
systemctl start scopefs 2>/dev/null
settled refused
echo "status $(of ExecMainStatus)"
`

// userGuestScript has a user's manager start the daemon for a connection, and prints a line for each run of a project.
const userGuestScript = `useradd -u 1234 -m -d /home/u -s /bin/sh u
chmod 666 /dev/fuse
mkdir -p /etc/systemd/user /home/u/p /run/user/1234
cp /out/scopefs-user.service /etc/systemd/user/scopefs.service
cp /out/scopefs-user.socket /etc/systemd/user/scopefs.socket
chown 1234:1234 /home/u/p /run/user/1234
chmod 700 /run/user/1234
cd /home/u/p
systemd-run --quiet --unit=manager -p User=1234 -p Delegate=yes -p Type=notify -p Environment="XDG_RUNTIME_DIR=/run/user/1234 HOME=/home/u" /lib/systemd/systemd --user
as() { setpriv --reuid 1234 --regid 1234 --clear-groups env HOME=/home/u XDG_RUNTIME_DIR=/run/user/1234 "$@"; }
of() { as systemctl --user show -P "$1" scopefs.service; }
as systemctl --user start scopefs.socket
echo "before $(of ActiveState)"
as scopefs run -q --dir . -- echo served
echo "then $(of ActiveState)"
old=$(pgrep -u 1234 -f -- --leash) # the daemons of bases: a command that reaches one that is ending gets an error
kill -9 $(of MainPID)
for pid in $old; do while kill -0 $pid 2>/dev/null; do sleep 0.1; done; done
as scopefs run -q --dir . -- echo again
as scopefs daemon --user --stop
for i in $(seq 300); do
	case $(of ActiveState) in active | deactivating) sleep 0.1 ;; *) break ;; esac
done
echo "stopped $(of ActiveState) $(of Result)"
as scopefs run -q --dir . -- echo anew
`

// TestSystemd: systemd starts the daemon again after every end but a refused configuration. Such an end and a restart keep
// views, a stop does not. Go ends with status 2 after SIGABRT, which systemd's watchdog sends, and after a panic.
func TestSystemd(t *testing.T) {
	need.Once(t)
	t.Parallel()
	harness.NeedFUSE(t)
	need.Program(t, "systemd-nspawn")
	out, said := boot(t, guestScript, "scopefs.service")
	assert.Equal(t, "ABRT active 1\nSEGV active 2\nQUIT active 3\nKILL active 4\nanswers\nthe view lives on\nthe view lives on\nstopped inactive\nnothing is left\nrefused failed 0\nstatus 78\n", out, said)
}

// TestSystemdUser: the user's manager listens, and starts the daemon for the first command of a project, also after the daemon
// was killed or stopped.
func TestSystemdUser(t *testing.T) {
	need.Once(t)
	t.Parallel()
	harness.NeedFUSE(t)
	need.Program(t, "systemd-nspawn")
	out, said := boot(t, userGuestScript, "scopefs.service", "scopefs-user.service", "scopefs-user.socket")
	assert.Equal(t, "before inactive\nserved\nthen active\nagain\nstopped inactive success\nanew\n", out, said)
}

// boot runs a script in a container with systemd, the program and shipped units, scopefs.service installed. It returns the
// script's output, and everything else that was said.
func boot(t *testing.T, script string, units ...string) (out, said string) {
	t.Helper()
	files := map[string]string{"scopefs": harness.Program}
	for name := range companion.Programs() {
		files[name] = filepath.Join(filepath.Dir(harness.Program), name)
	}
	for _, unit := range units {
		files[unit] = "../../packaging/" + unit
	}
	return bootIn(t, "/", layScript, script, files)
}

// bootIn runs a script in a container with systemd, whose root is a copy of a directory that the script lay has changed. Both
// scripts have the files, by name: lay in $1, the other one in /out.
func bootIn(t *testing.T, root, lay, script string, files map[string]string) (out, said string) {
	t.Helper()
	dir := t.TempDir()
	for name, source := range files {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		harness.Executable(t, filepath.Join(dir, name), text)
	}
	for name, text := range map[string]string{"lay": lay, "guest": script} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", bootScript, "sh", root, dir)
	text, err := cmd.CombinedOutput()
	printed, _ := os.ReadFile(filepath.Join(dir, "out"))
	require.NoError(t, err, "%s\n%s", text, printed)
	log, _ := os.ReadFile(filepath.Join(dir, "err"))
	return string(printed), fmt.Sprintf("%s\n%.3000s", text, log)
}
