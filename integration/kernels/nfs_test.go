package kernels

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// shares are the tests of a shared file system, with the kernel's NFS server and two of its clients in one guest.
var shares = []suite{
	{name: "nfs", pkg: "integration/view", run: "^Test(Elsewhere|NFS)", env: "SCOPEFS_TEST_VOLUME=nfs REQUIRE_FUSE=1", time: 30 * time.Minute},
	{name: "placement", pkg: "integration/fleet", run: "^TestPlacement", env: "SCOPEFS_TEST_VOLUME=nfs REQUIRE_FUSE=1", time: 10 * time.Minute},
}

// TestNFS boots User-Mode Linux and runs the tests of shared file systems on the kernel's own NFS.
func TestNFS(t *testing.T) {
	kernels := os.Getenv(directoryEnv)
	if kernels == "" {
		t.Skip("make test-nfs sets " + directoryEnv)
	}
	work := t.TempDir()
	g := &guest{version: userMode, kernel: filepath.Join(kernels, userMode), disk: makeDisk(t, work, "", shares), suites: shares,
		console: filepath.Join(kernels, "nfs.console"), log: filepath.Join(kernels, "nfs.log")}
	g.initramfs = makeInitramfs(t, g.kernel, filepath.Join(work, "initramfs"))
	began := time.Now()
	require.NoError(t, g.run(""))
	t.Log(g.report(t, time.Since(began)))
	for _, s := range shares {
		if r := g.results[s.name]; r != nil {
			t.Logf("%s:\n%s", s.name, r.output.String())
		}
	}
}
