package view

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/scopefs/scopefs/integration/harness"
)

// refusedByRule are the cases of go-fuse's suite that a view must fail, each
// with the rule of security that it breaks.
var refusedByRule = map[string]string{
	"OpenSymlinkRace": "makes a link to /etc/passwd: a link that leads outside is refused",
	"SymlinkReadlink": "makes a link to /foobar: a link that leads outside is refused",
	"FcntlFlockLocksFile": "wants a process's own locks to conflict, as they do where they are forwarded to a server: " +
		"ours stay in the kernel, where they do not (fcntl(2)); it fails on ext4 as well",
}

// TestPosix runs go-fuse's suite against a view.
func TestPosix(t *testing.T) {
	for _, data := range []string{"passthrough", "mediated", "passthrough, changes: kept", "mediated, changes: kept", "passthrough, changes: held", "mediated, changes: held"} {
		h := harness.NewHost(t, map[string]string{"posix": "view: {xattrs: true, data: " + data + "}"})
		for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
			if why, ok := refusedByRule[name]; ok {
				t.Run(data+"/"+name, func(t *testing.T) { t.Logf("not run: %s", why) })
				continue
			}
			t.Run(data+"/"+name, func(t *testing.T) {
				defer func() {
					// ext4 takes no attribute that large, natively either.
					if t.Skipped() && name != "XAttrLarge" {
						t.Error("the suite's test skips itself: something is missing that a view has")
					}
				}()
				h.Must("run", "posix", "--", "sh", "-c", "rm -rf /workspace/* /workspace/.[a-z]*")
				posixtest.All[name](t, h.View("posix"))
			})
		}
		if strings.HasSuffix(data, "held") {
			entries, err := os.ReadDir(h.Scope("posix"))
			require.NoError(t, err)
			assert.Empty(t, entries, "the directory has changed")
		}
	}
}
