package daemon

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/need"
)

// bootScript boots systemd in a container whose root is this host's, below an overlay, with the shipped unit and
// the program $1. It runs $2/guest in it, and leaves its output in $2/out and the daemon's in $2/err. All mounts
// are in a namespace that ends with it.
const bootScript = `set -e
top=$2/top
mkdir -p /run/systemd "$top"
mount -t tmpfs none /run/systemd # systemd-nspawn empties a directory there only if it is not on a disk
mount -t tmpfs none "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" none "$top/root"
cd "$top/root"
rm -f etc/machine-id
: >etc/machine-id
rm -rf etc/systemd/system/*.wants lib/systemd/system/*.wants
mkdir -p usr/local/bin etc/systemd/system/scopefs.service.d
cp "$1" usr/local/bin/scopefs
cp "$3" etc/systemd/system/
printf '[Service]\nStandardError=append:/out/err\n' >etc/systemd/system/scopefs.service.d/err.conf
printf '[Service]\nType=oneshot\nExecStart=/bin/sh -c "sh /out/guest >/out/out 2>&1"\nExecStopPost=systemctl --no-block poweroff\n' >etc/systemd/system/guest.service
exec systemd-nspawn --quiet --directory="$top/root" --register=no --keep-unit --private-network --bind=/dev/fuse --bind="$2:/out" \
	--capability=all --system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self @mount @file-system @process @privileged' \
	--tmpfs=/tmp --console=pipe --boot systemd.unit=guest.service`

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
systemctl start scopefs
for signal in ABRT SEGV QUIT KILL; do
	old=$(of MainPID)
	systemctl kill --kill-who=main -s $signal scopefs
	settled $signal
done
scopefs --base /var/lib/scopefs --run /run/scopefs ps >/dev/null && echo answers
systemctl stop scopefs
echo "stopped $(of ActiveState)"
echo 'nonsense: [' >/var/lib/scopefs/scopefs.yaml
old=none
systemctl start scopefs 2>/dev/null
settled refused
echo "status $(of ExecMainStatus)"
`

// TestSystemd: systemd starts the daemon again after every end but a refused configuration. Go ends with status 2
// after SIGABRT, which systemd's watchdog sends, and after a panic.
func TestSystemd(t *testing.T) {
	need.Once(t)
	t.Parallel()
	harness.NeedFUSE(t)
	need.Program(t, "systemd-nspawn")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "guest"), []byte(guestScript), 0o644))
	unit, err := filepath.Abs("../../packaging/scopefs.service")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	boot := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
		"sh", "-c", bootScript, "sh", harness.Program, dir, unit)
	said, err := boot.CombinedOutput()
	require.NoError(t, err, "%s", said)
	out, _ := os.ReadFile(filepath.Join(dir, "out"))
	log, _ := os.ReadFile(filepath.Join(dir, "err"))
	assert.Equal(t, "ABRT active 1\nSEGV active 2\nQUIT active 3\nKILL active 4\nanswers\nstopped inactive\nrefused failed 0\nstatus 78\n",
		string(out), "%s\n%.3000s", said, log)
}
