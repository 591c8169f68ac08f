package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/scopefs/scopefs/integration/harness"
	"github.com/scopefs/scopefs/internal/exit"
	"github.com/scopefs/scopefs/internal/need"
)

const shipped = "../../packaging/scopefs.service"

// few returns the shell command that executes a program with capabilities and no others. names are as in a unit: CAP_KILL.
func few(t *testing.T, names []string) string {
	t.Helper()
	require.Greater(t, len(names), 5)
	set := "-all"
	for _, name := range names {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return "exec setpriv --bounding-set " + set + " --inh-caps -all --no-new-privs --"
}

// unitKeys returns the words of each key of the shipped unit's [Service].
func unitKeys(t *testing.T) map[string][]string {
	t.Helper()
	_, service, _ := strings.Cut(harness.ReadAll(t, shipped), "\n[Service]\n")
	keys := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^(\w+)=(.*)$`).FindAllStringSubmatch(service, -1) {
		keys[m[1]] = append(keys[m[1]], strings.Fields(m[2])...)
	}
	return keys
}

// TestUnit: with the directories that the shipped unit or the package makes on a fresh host, and with the unit's capabilities, a
// daemon mounts an agent that has nothing but a name, and runs its commands and tools.
func TestUnit(t *testing.T) {
	keys := unitKeys(t)
	for name, lay := range map[string]func(t *testing.T, root string){
		"StateDirectory": func(t *testing.T, root string) {
			mode, err := strconv.ParseUint(keys["StateDirectoryMode"][0], 8, 32)
			require.NoError(t, err)
			for _, dir := range keys["StateDirectory"] { // each part gets the mode: systemd.exec(5)
				require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib", dir), os.FileMode(mode)))
			}
		},
		"tmpfiles.d": func(t *testing.T, root string) {
			cmd := exec.Command(need.Program(t, "systemd-tmpfiles"), "--create", "--root", root, "-")
			cmd.Stdin = strings.NewReader(harness.ReadAll(t, "../../packaging/tmpfiles.conf"))
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.LayOut(t, nil)
			root := h.Base
			t.Cleanup(func() { h.Base = root }) // to remove
			require.NoError(t, os.Remove(filepath.Join(root, "agents.d")))
			lay(t, root)
			for _, v := range keys["Environment"] {
				key, dir, _ := strings.Cut(v, "=")
				t.Setenv(key, filepath.Join(root, dir))
			}
			h.Base = os.Getenv("SCOPEFS_BASE")
			h.Define("a", "")
			h.StartBy("umask " + keys["UMask"][0] + "; ulimit -n " + keys["LimitNOFILE"][0] + " 2>/dev/null\n" + few(t, keys["CapabilityBoundingSet"]))
			require.Equal(t, "mounted", h.Agent("a").State, h.Agent("a").Error)
			h.Must("run", "a", "--", "sh", "-c", "echo text >file")
			assert.Contains(t, h.Must("call", "--agent", "a", "bash", "command=cat file"), "text")
			assert.Contains(t, h.Must("call", "--agent", "a", "read_file", "path=file"), "text")
			var agents, file unix.Stat_t
			require.NoError(t, unix.Stat(filepath.Join(h.Base, "agents"), &agents))
			assert.Equal(t, uint32(0o711), agents.Mode&0o7777, "agents' users pass through it and do not list it")
			require.NoError(t, unix.Stat(h.Scope("a", "file"), &file))
			assert.Zero(t, file.Uid, "the agent is root")
		})
	}
}

// TestUnitStatuses: systemd starts no daemon again that has refused its configuration, or that the host cannot serve.
func TestUnitStatuses(t *testing.T) {
	for _, unit := range []string{shipped, "../../packaging/scopefs-user.service"} {
		assert.Contains(t, harness.ReadAll(t, unit), fmt.Sprintf("\nRestartPreventExitStatus=%d %d\n", exit.Host, exit.Config), unit)
	}
}
